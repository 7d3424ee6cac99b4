"""What a model thinks of given completions: log-probability, entropy and divergence of each token.

Only completion tokens go through the head, and never more of them at once than a chunk of logits, here or in head.py:
with a vocabulary of 150,000 the logits of a batch are what a training step runs out of memory on.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from tinyzero_trainer.algorithms.kl import SAMPLED, entropy, exact
from tinyzero_trainer.config import Estimator
from tinyzero_trainer.distributed import ulysses
from tinyzero_trainer.distributed.fsdp import call
from tinyzero_trainer.models.fused_logprobs import token_divergences, token_logprobs
from tinyzero_trainer.models.lora import switched_off
from tinyzero_trainer.training import varlen_attention as attention
from tinyzero_trainer.training.micro_batches import MicroBatch

CHUNK_ELEMENTS = 2**26
"""Logits held at a time: 256 MiB in float32."""

Head = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class TokenStatistics:
    """Of each completion token of a micro-batch; all [tokens]."""

    logprobs: Tensor
    """log π of the token, with gradient."""

    entropy: Tensor
    """Entropy of π where the token was drawn, in nats; with gradient where that was asked for."""

    divergence: Tensor | None
    """KL(π ‖ π_ref), with gradient; None without a reference model."""


def token_statistics(
    model: PreTrainedModel,
    batch: MicroBatch,
    *,
    temperature: float,
    reference: "Reference | None" = None,
    estimator: Estimator = "k3",
    entropy_gradient: bool = False,
) -> TokenStatistics:
    """Run the model over a micro-batch.

    Args:
        model: the policy.
        batch: see `MicroBatch`.
        temperature: logits are divided by it, as when the tokens were sampled.
        reference: what `divergence` is measured to.
        estimator: how, `exact` or one of `divergences.SAMPLED`.
        entropy_gradient: whether the entropy carries a gradient, for a bonus in the loss.
    """
    states = completion_states(model, batch)  # [own tokens, hidden]
    weight, divergence = plain_head(model), None
    if weight is None or (estimator == "exact" and not fuses_exact(states)):
        own = _written_out(model, states, batch, temperature, reference, estimator, entropy_gradient)
        logprobs, entropies, *divergences = ulysses.all_gather(own, batch.counts, batch.line)
        divergence = divergences[0] if divergences else None
    elif reference is None or estimator != "exact":
        own = token_logprobs(states, weight, batch.targets, temperature=temperature)
        logprobs, entropies = ulysses.all_gather(own, batch.counts, batch.line)
        if reference is not None:
            assert estimator != "exact"
            divergence = SAMPLED[estimator](logprobs, reference.logprobs(batch, temperature=temperature))
    else:
        anchor_states = reference.states(batch)
        anchor = plain_head(reference.model)  # after the pass, which has gathered it
        assert anchor is not None, "the reference is of the policy's architecture"
        given = (states, weight, batch.targets, anchor_states, anchor)
        own = token_divergences(*given, temperature=temperature)
        logprobs, entropies, divergence = ulysses.all_gather(own, batch.counts, batch.line)
    return TokenStatistics(logprobs, entropies if entropy_gradient else entropies.detach(), divergence)


def fuses_exact(states: Tensor) -> bool:
    """Whether the exact divergence is fused too: on a CPU autograd keeps what that would compute again."""
    return states.is_cuda


def _written_out(
    model: PreTrainedModel,
    states: Tensor,
    batch: MicroBatch,
    temperature: float,
    reference: "Reference | None",
    estimator: Estimator,
    entropy_gradient: bool,
) -> tuple[Tensor, ...]:
    """`token_statistics` from last hidden states [own tokens, hidden] in plain PyTorch, for heads of any kind."""
    reference_states = None if reference is None else reference.states(batch)
    head, reference_head = head_of(model), None if reference is None else head_of(reference.model)

    def statistics(rows: slice) -> tuple[Tensor, ...]:
        distribution = torch.log_softmax(head(states[rows]).float() / temperature, dim=-1)  # [chunk, vocabulary]
        logprobs = distribution.gather(1, batch.targets[rows, None]).squeeze(1)
        results = (logprobs, entropy(distribution if entropy_gradient else distribution.detach()))
        if reference_states is None or reference_head is None:
            return results
        with torch.no_grad():
            anchor = torch.log_softmax(reference_head(reference_states[rows]).float() / temperature, dim=-1)
        if estimator == "exact":
            return *results, exact(distribution, anchor)
        return *results, SAMPLED[estimator](logprobs, anchor.gather(1, batch.targets[rows, None]).squeeze(1))

    size = max(1, CHUNK_ELEMENTS // model.config.get_text_config().vocab_size)
    chunks = [slice(start, start + size) for start in range(0, max(1, len(states)), size)]
    if len(chunks) == 1:
        return statistics(chunks[0])
    # Recomputing a chunk's logits in the backward pass is what keeps only one chunk of them alive.
    parts = [checkpoint(statistics, rows, use_reentrant=False) for rows in chunks]
    return tuple(map(torch.cat, zip(*parts, strict=True)))


@torch.no_grad()
def sampled_logprobs(model: PreTrainedModel, batch: MicroBatch, *, temperature: float) -> Tensor:
    """[tokens] log π of each completion token of a micro-batch, without gradient; the model may be sharded."""
    return call(model, lambda: token_statistics(model, batch, temperature=temperature).logprobs)


class Reference:
    """The model that a KL is measured to: one of its own, or the policy's model without its adapter."""

    def __init__(self, model: PreTrainedModel) -> None:
        """
        Args:
            model: run without gradient, in evaluation mode and with any adapter off; left as it was found.
        """
        self.model = model

    def states(self, batch: MicroBatch) -> Tensor:
        """[own tokens, hidden] see `completion_states`; the head, which no adapter changes, is the model's."""
        with _as_it_started(self.model):
            return call(self.model, partial(completion_states, self.model, batch))

    def logprobs(self, batch: MicroBatch, *, temperature: float) -> Tensor:
        """[tokens] log π_ref of each completion token of a micro-batch."""
        with _as_it_started(self.model):
            return sampled_logprobs(self.model, batch, temperature=temperature)


@contextmanager
def _as_it_started(model: PreTrainedModel) -> Iterator[None]:
    with torch.no_grad(), evaluating(model), switched_off(model):
        yield


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Within, the model is in evaluation mode, without dropout; afterwards in the mode that it was in."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def completion_states(model: PreTrainedModel, batch: MicroBatch) -> Tensor:
    """Last hidden states [own tokens, hidden] from which the completion tokens are predicted.

    Own are those that `batch.predicts` has: all of them, or those of this rank's slice of the line.
    """
    output = model.base_model(input_ids=batch.tokens, use_cache=False, **attention.arguments(model, batch))
    states: Tensor = output.last_hidden_state.flatten(0, 1).index_select(0, batch.predicts)
    return states


def plain_head(model: PreTrainedModel) -> Tensor | None:
    """The output head's matrix [vocabulary, hidden], if logits are its product with the states and nothing else."""
    config, output = model.config.get_text_config(), model.get_output_embeddings()
    changed = ("logit_scale", "logits_scaling", "final_logit_softcapping")
    if any(getattr(config, name, None) for name in changed) or getattr(output, "bias", None) is not None:
        return None
    return output.weight if type(output) is nn.Linear else None


def head_of(model: PreTrainedModel) -> Head:
    """From hidden states to logits, with the scaling and capping that a few architectures add."""
    config = model.config.get_text_config()
    output = model.get_output_embeddings()
    scale = getattr(config, "logit_scale", None) or 1.0 / (getattr(config, "logits_scaling", None) or 1.0)
    cap = getattr(config, "final_logit_softcapping", None)

    def head(states: Tensor) -> Tensor:
        logits: Tensor = output(states)
        if scale != 1.0:
            logits = logits * scale
        return logits if cap is None else torch.tanh(logits / cap) * cap

    return head
