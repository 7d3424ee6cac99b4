"""Log-probability and entropy of each token straight from hidden states, without all logits at a time.

With a vocabulary of 150,000 the logits of a batch are what a training step runs out of memory on. Here they exist for
one chunk of tokens, in the type of the weights, and are computed anew in the backward pass, which turns them into
their own gradient where they lie.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

CHUNK_ELEMENTS = {torch.float32: 2**26, torch.bfloat16: 2**28, torch.float16: 2**28}
"""Logits held at a time: 256 or 512 MiB. Small chunks cost time: each adds to the gradient of the whole head."""


def token_logprobs(
    states: Tensor, weight: Tensor, targets: Tensor, *, temperature: float, chunk_elements: int | None = None
) -> tuple[Tensor, Tensor]:
    """log softmax(states · weightᵀ / temperature) at the targets, and the entropy of that distribution.

    Args:
        states: [tokens, hidden] last hidden states.
        weight: [vocabulary, hidden] of the output head.
        targets: [tokens] int64.
        temperature: logits are divided by it.
        chunk_elements: logits at a time; none = `CHUNK_ELEMENTS`.

    Returns:
        Log-probabilities and entropies in nats, both [tokens] float32; gradients reach `states` and `weight`.
    """
    elements = chunk_elements or CHUNK_ELEMENTS[states.dtype]
    rows = max(1, elements // len(weight))
    logprobs, entropy = _TokenLogprobs.apply(states, weight, targets, temperature, rows)
    return logprobs, entropy


class _TokenLogprobs(torch.autograd.Function):
    """Both results of `token_logprobs`."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, targets: Tensor, temperature: float, rows: int
    ) -> tuple[Tensor, Tensor]:
        columns = states.new_empty((3, len(states)), dtype=torch.float32)  # log-probability, entropy, log-sum-exp
        logits = None
        for part in _chunks(len(states), rows):
            logits = states[part] @ weight.T  # [chunk, vocabulary]
            columns[:, part] = _measure(logits, targets[part], temperature)
        # A single chunk is kept on the CPU, where computing it again would take a tenth of the update.
        kept = logits if len(states) <= rows and not states.is_cuda else None
        ctx.save_for_backward(states, weight, targets, columns, kept)
        ctx.temperature, ctx.rows = temperature, rows
        return columns[0], columns[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, targets, columns, kept = ctx.saved_tensors
        of_states = torch.empty_like(states)
        of_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for part in _chunks(len(states), ctx.rows):
            logits = states[part] @ weight.T if kept is None else kept
            of_logprob, of_entropy = (gradient[part] for gradient in gradients)
            logits = _to_gradient(logits, targets[part], columns[:, part], of_logprob, of_entropy, ctx.temperature)
            torch.mm(logits, weight, out=of_states[part])
            if of_weight is not None:
                _add_product(of_weight, logits.T, states[part])
        return of_states, None if of_weight is None else of_weight.to(weight.dtype), None, None, None


def _chunks(count: int, rows: int) -> Iterator[slice]:
    return (slice(start, start + rows) for start in range(0, count, rows))


def _measure(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """[3, chunk] log-probability of the target, entropy and log-sum-exp of logits [chunk, vocabulary]."""
    if not logits.is_cuda:
        return _statistics(logits, targets, temperature)
    from tinyzero_trainer import head_kernels

    return head_kernels.measure(logits, targets, temperature)


def _to_gradient(
    logits: Tensor, targets: Tensor, columns: Tensor, of_logprob: Tensor, of_entropy: Tensor, temperature: float
) -> Tensor:
    """Gradient [chunk, vocabulary] with respect to the logits, given those of both results; may overwrite them."""
    if not logits.is_cuda:
        return _gradient(logits, targets, columns, of_logprob, of_entropy, temperature)
    from tinyzero_trainer import head_kernels

    return head_kernels.gradient(logits, targets, columns, of_logprob, of_entropy, temperature)


def _statistics(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    scaled = logits.float() / temperature
    total = torch.logsumexp(scaled, dim=-1)
    logprobs = scaled - total[:, None]
    entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
    return torch.stack([logprobs.gather(1, targets[:, None]).squeeze(1), entropy, total])


def _gradient(
    logits: Tensor, targets: Tensor, columns: Tensor, of_logprob: Tensor, of_entropy: Tensor, temperature: float
) -> Tensor:
    logprobs = logits.float() / temperature - columns[2, :, None]
    probabilities = logprobs.exp()
    # d log p_t / d z_j = [j = t] - p_j;  d H / d z_j = -p_j (log p_j + H)
    pull = of_logprob[:, None] + of_entropy[:, None] * (logprobs + columns[1, :, None])
    chosen = torch.arange(logits.shape[-1], device=logits.device) == targets[:, None]
    return ((of_logprob[:, None] * chosen - probabilities * pull) / temperature).to(logits.dtype)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left · right in float32, whatever the type of the factors."""
    if left.is_cuda and left.dtype != torch.float32:
        total += torch.mm(left, right, out_dtype=torch.float32)
    else:
        total += left.float() @ right.float()
