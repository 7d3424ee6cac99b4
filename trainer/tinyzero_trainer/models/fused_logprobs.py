"""Log-probability, entropy and KL of each token from hidden states, without all logits at a time.

With a vocabulary of 150,000 the logits of a batch are what a training step runs out of memory on. Here they exist for
one chunk of tokens, in the dtype of the weights, and are recomputed in the backward pass, which turns them into their
own gradient in place. Where there is room for all of them, they are kept instead.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from tinyzero_trainer.algorithms.kl import entropy, exact
from tinyzero_trainer.models.float8 import Rounded, cast, product
from tinyzero_trainer.models.float8_format import FP8, FP8_MAX, SMALLEST_SCALE
from tinyzero_trainer.models.sizes import HEAD_ELEMENTS, KEPT_ELEMENTS


def token_statistics(
    states: Tensor,
    weight: Tensor,
    targets: Tensor,
    reference: tuple[Tensor, Tensor] | None = None,
    *,
    temperature: float,
    recompute: bool = True,
    float8: bool = False,
    chunk_elements: int | None = None,
) -> tuple[Tensor, ...]:
    """log softmax(states · weightᵀ / temperature) at the targets, and the entropy of that distribution.

    With a reference also KL(π ‖ π_ref) over the whole vocabulary, exactly 0 where the logits are equal.

    Args:
        states: [tokens, hidden] last hidden states.
        weight: [vocabulary, hidden] of the output head.
        targets: [tokens] int64.
        reference: its states [tokens, hidden of the reference] and head; neither gets a gradient.
        recompute: False = keep all logits for the backward pass.
        float8: compute the logits, and without a reference the gradient of the states, in float8; see models/float8.py.
        chunk_elements: logits at a time, those of both models together; None = `HEAD_ELEMENTS`.

    Returns:
        Log-probabilities, entropies and divergences, [tokens] float32 each; gradients reach `states` and `weight`.
    """
    keeps = not recompute and torch.is_grad_enabled() and (states.requires_grad or weight.requires_grad)
    elements = chunk_elements or (KEPT_ELEMENTS if keeps and states.is_cuda else HEAD_ELEMENTS[states.dtype.itemsize])
    rows = max(1, elements // (len(weight) if reference is None else 2 * len(weight)))
    results: tuple[Tensor, ...] = _TokenStatistics.apply(
        states, weight, targets, *(reference or (None, None)), temperature, rows, keeps, float8
    )
    return results


class _TokenStatistics(torch.autograd.Function):
    """The results of `token_statistics`."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        targets: Tensor,
        anchor_states: Tensor | None,
        anchor_weight: Tensor | None,
        temperature: float,
        rows: int,
        keeps: bool,
        float8: bool,
    ) -> tuple[Tensor, ...]:
        columns = states.new_empty((3 if anchor_states is None else 5, len(states)), dtype=torch.float32)
        # A single chunk is kept on the CPU, where computing it again would take a tenth of the update.
        keeps = keeps or (len(states) <= rows and not states.is_cuda)
        kept = dict[int, tuple[Tensor, Tensor | None]]()  # by the first token of a chunk
        measure, _ = _passes(on_gpu=states.is_cuda)
        logits_of = _logits(states, weight, anchor_states, anchor_weight, float8=float8)
        for part in _chunks(len(states), rows):
            logits = logits_of(part)
            columns[:, part] = measure(*logits, targets[part], temperature)
            if keeps:
                kept[part.start] = logits
        ctx.save_for_backward(states, weight, targets, anchor_states, anchor_weight, columns)
        ctx.temperature, ctx.rows, ctx.kept, ctx.float8 = temperature, rows, kept, float8
        return (columns[0], columns[1]) if anchor_states is None else (columns[0], columns[1], columns[3])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, targets, anchor_states, anchor_weight, columns = ctx.saved_tensors
        grad_states = torch.empty_like(states)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        _, gradient_of = _passes(on_gpu=states.is_cuda)
        logits_of = None
        weight_columns = cast(weight.t()) if ctx.float8 and anchor_states is None else None
        for part in _chunks(len(states), ctx.rows):
            if (logits := ctx.kept.pop(part.start, None)) is None:  # kept ones are freed chunk by chunk
                logits_of = logits_of or _logits(states, weight, anchor_states, anchor_weight, float8=ctx.float8)
                logits = logits_of(part)
            upstream = [gradient[part] for gradient in gradients]
            arguments = (*logits, targets[part], columns[:, part], upstream, ctx.temperature)
            if weight_columns is None:
                grad_logits = gradient_of(*arguments)
                torch.mm(grad_logits, weight, out=grad_states[part])
            else:
                scales = _scales(upstream[0], upstream[1], columns[:, part], ctx.temperature)
                rounded = torch.empty_like(logits[0], dtype=FP8), scales
                grad_logits = gradient_of(*arguments, rounded)
                grad_states[part] = product(rounded, weight_columns, states.dtype)
            if grad_weight is not None:
                _add_product(grad_weight, grad_logits.T, states[part])
        return grad_states, None if grad_weight is None else grad_weight.to(weight.dtype), *[None] * 7


def _chunks(count: int, rows: int) -> Iterator[slice]:
    return (slice(start, start + rows) for start in range(0, count, rows))


def _logits(
    states: Tensor, weight: Tensor, anchor_states: Tensor | None, anchor_weight: Tensor | None, *, float8: bool
) -> Callable[[slice], tuple[Tensor, Tensor | None]]:
    """A function to the logits [chunk, vocabulary] of the policy, and those of the reference if there is one."""
    heads = [(states, weight, cast(weight) if float8 else None)]
    if anchor_states is not None and anchor_weight is not None:
        heads.append((anchor_states, anchor_weight, cast(anchor_weight) if float8 else None))

    def logits_of(part: slice) -> tuple[Tensor, Tensor | None]:
        own, *anchors = (
            states[part] @ weight.T if rounded is None else product(cast(states[part]), rounded, states.dtype)
            for states, weight, rounded in heads
        )
        return own, anchors[0] if anchors else None

    return logits_of


def _passes(*, on_gpu: bool) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """`_statistics` and `_gradient`, on a GPU the fused kernels for them."""
    if not on_gpu:
        return _statistics, _gradient
    from tinyzero_trainer.models import fused_logprobs_triton

    return fused_logprobs_triton.measure, fused_logprobs_triton.gradient


def _statistics(logits: Tensor, anchors: Tensor | None, targets: Tensor, temperature: float) -> Tensor:
    """[3, chunk] log-probability of the target, entropy and log-sum-exp of logits [chunk, vocabulary].

    With the reference's logits [5, chunk]: then the divergence, and the log-sum-exp of those.
    """
    scaled = logits.float() / temperature
    total = torch.logsumexp(scaled, dim=-1)
    logprobs = scaled - total[:, None]
    statistics = [logprobs.gather(1, targets[:, None]).squeeze(1), entropy(logprobs), total]
    if anchors is None:
        return torch.stack(statistics)
    scaled = anchors.float() / temperature
    total = torch.logsumexp(scaled, dim=-1)
    return torch.stack([*statistics, exact(logprobs, scaled - total[:, None]), total])


def _gradient(
    logits: Tensor,
    anchors: Tensor | None,
    targets: Tensor,
    columns: Tensor,
    upstream: Sequence[Tensor],
    temperature: float,
    rounded: Rounded | None = None,
) -> Tensor:
    """Gradient [chunk, vocabulary] with respect to the logits, arguments those of the results; may overwrite them."""
    grad_logprob, grad_entropy = upstream[0][:, None], upstream[1][:, None]
    logprobs = logits.float() / temperature - columns[2, :, None]
    probabilities = logprobs.exp()
    # d log p_t / d z_j = [j = t] - p_j;  d H / d z_j = -p_j (log p_j + H)
    pull = grad_logprob + grad_entropy * (logprobs + columns[1, :, None])
    if anchors is not None:  # d KL / d z_j = p_j (log p_j - log q_j - KL)
        log_ratio = logprobs - (anchors.float() / temperature - columns[4, :, None])
        pull = pull - upstream[2][:, None] * (log_ratio - columns[3, :, None])
    chosen = torch.arange(logits.shape[-1], device=logits.device) == targets[:, None]
    grad_logits = (grad_logprob * chosen - (probabilities * pull).masked_fill_(probabilities == 0, 0)) / temperature
    if rounded is not None:
        rounded[0].copy_(grad_logits / rounded[1])
    return grad_logits.to(logits.dtype)


def _scales(grad_logprob: Tensor, grad_entropy: Tensor, columns: Tensor, temperature: float) -> Tensor:
    """[chunk, 1] scales by which the gradients of all logits, without a reference, are within float8."""
    # | [j = t] a - p_j (a + b (log p_j + H)) | ≤ |a| (1 - p_t) + |b| H: another p_j is at most 1 - p_t, -p_j log p_j is
    # a part of H, and p_j H has the other sign. Of large logits, both may be off by as much as the 1e-4 that are added.
    bound = grad_logprob.abs() * (1e-4 - torch.expm1(columns[0])) + grad_entropy.abs() * (1e-4 + columns[1])
    return (bound / temperature / FP8_MAX).clamp(min=SMALLEST_SCALE)[:, None]


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left · right in float32, whatever the type of the factors."""
    if left.is_cuda and left.dtype != torch.float32:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total += left.float() @ right.float()
