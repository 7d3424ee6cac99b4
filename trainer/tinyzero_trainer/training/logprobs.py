"""Log-probability, entropy and KL of each token of given completions: the models whose forward passes give them.

Only completion tokens go through the head, and at most a chunk of logits at a time: see models/fused_logprobs.py.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from tinyzero_trainer.algorithms.kl import SAMPLED, entropy, exact
from tinyzero_trainer.config import KlEstimator
from tinyzero_trainer.distributed import ulysses
from tinyzero_trainer.distributed.fsdp import options_of, root_of
from tinyzero_trainer.models.float8 import Float8Linear
from tinyzero_trainer.models.fused_logprobs import token_statistics
from tinyzero_trainer.models.lora import switched_off
from tinyzero_trainer.training import varlen_attention as attention
from tinyzero_trainer.training.micro_batches import MicroBatch

CHUNK_ELEMENTS = 2**26
"""Logits held at a time: 256 MiB in float32."""


class TokenStatistics(NamedTuple):
    """Values of each completion token of a micro-batch, [tokens] each. A tuple, in which FSDP2 finds the tensors."""

    logprobs: Tensor
    """log π of the token, with gradient."""

    entropy: Tensor
    """Entropy of π where the token was sampled, in nats; with gradient where requested."""

    divergence: Tensor | None
    """KL(π ‖ π_ref), with gradient; None without a reference model."""


class TokenModel(nn.Module):
    """A transformers model whose forward pass gives values per completion token; FSDP2 wraps it with its head."""

    def __init__(self, body: PreTrainedModel) -> None:
        super().__init__()
        self.body = body

    def states(self, batch: MicroBatch) -> Tensor:
        """`completion_states`, from outside of the forward pass."""
        return completion_states(self.body, batch)


class PolicyModel(TokenModel):
    """A language model whose forward pass gives token statistics: the policy, or a reference, which is not trained."""

    @classmethod
    def of(cls, body: PreTrainedModel) -> Self:
        """The one that this transformers model was sharded in, or a new one."""
        root = root_of(body)
        return root if isinstance(root, cls) else cls(body)

    def forward(
        self,
        batch: MicroBatch,
        *,
        temperature: float,
        reference: "PolicyModel | None" = None,
        estimator: KlEstimator = "k3",
        entropy_gradient: bool = False,
    ) -> TokenStatistics:
        """Run the model over a micro-batch.

        Args:
            temperature: logits are divided by it, as when the tokens were sampled.
            reference: what `divergence` is measured to; with the same `body`, this model with its adapter off.
            estimator: `exact` or one of `kl.SAMPLED`.
            entropy_gradient: whether the entropy carries a gradient, for a bonus in the loss.
        """
        states, reference_states = completion_states(self.body, batch), None  # [own tokens, hidden]
        if reference is not None:
            with frozen(reference.body):
                own_body = reference.body is self.body  # whose weights this pass has gathered
                reference_states = completion_states(self.body, batch) if own_body else reference.states(batch)
        # After the passes, which have gathered them.
        weight, reference_weight = plain_head(self.body), None if reference is None else plain_head(reference.body)
        options = options_of(self)
        again = options is None or options.recompute_logits
        float8 = isinstance(self.body.get_output_embeddings(), Float8Linear)
        local: tuple[Tensor, ...]
        if weight is None or (estimator == "exact" and not fuses_exact(states)):
            anchor = None if reference is None or reference_states is None else (reference.body, reference_states)
            local = _written_out(self.body, states, anchor, batch, temperature, estimator, entropy_gradient)
        else:
            measure = partial(token_statistics, targets=batch.targets, temperature=temperature, float8=float8)
            other_head = None
            if reference_states is not None and reference_weight is not None:
                other_head = reference_states, reference_weight
            local = measure(states, weight, reference=other_head if estimator == "exact" else None, recompute=again)
            if other_head is not None and estimator != "exact":
                with torch.no_grad():
                    reference_logprobs, _ = measure(*other_head)
                local = *local, SAMPLED[estimator](local[0], reference_logprobs)
        logprobs, entropies, *divergences = ulysses.all_gather(local, batch.counts, batch.sequence_group)
        divergence = divergences[0] if divergences else None
        return TokenStatistics(logprobs, entropies if entropy_gradient else entropies.detach(), divergence)


def fuses_exact(states: Tensor) -> bool:
    """Whether the exact KL is fused too: on a CPU, autograd keeps what that would recompute."""
    return states.is_cuda


def _written_out(
    model: PreTrainedModel,
    states: Tensor,
    reference: tuple[PreTrainedModel, Tensor] | None,
    batch: MicroBatch,
    temperature: float,
    estimator: KlEstimator,
    entropy_gradient: bool,
) -> tuple[Tensor, ...]:
    """Log-probabilities, entropies and, with a reference and its states, KL in plain PyTorch, for heads of any kind."""

    def log_distribution(model: PreTrainedModel, states: Tensor) -> Tensor:  # [chunk, vocabulary]
        return torch.log_softmax(head_of(model)(states).float() / temperature, dim=-1)

    def statistics(rows: slice) -> tuple[Tensor, ...]:
        distribution, targets = log_distribution(model, states[rows]), batch.targets[rows, None]
        logprobs = distribution.gather(1, targets).squeeze(1)
        results = (logprobs, entropy(distribution if entropy_gradient else distribution.detach()))
        if reference is None:
            return results
        with torch.no_grad():
            of_reference = log_distribution(reference[0], reference[1][rows])
        if estimator == "exact":
            return *results, exact(distribution, of_reference)
        return *results, SAMPLED[estimator](logprobs, of_reference.gather(1, targets).squeeze(1))

    size = max(1, CHUNK_ELEMENTS // model.config.get_text_config().vocab_size)
    chunks = [slice(start, start + size) for start in range(0, max(1, len(states)), size)]
    if len(chunks) == 1:
        return statistics(chunks[0])
    # Recomputing a chunk's logits in the backward pass is what keeps only one chunk of them alive.
    columns = [checkpoint(statistics, rows, use_reentrant=False) for rows in chunks]
    return tuple(map(torch.cat, zip(*columns, strict=True)))


@contextmanager
def frozen(model: PreTrainedModel) -> Iterator[None]:
    """Within, a model computes as it did before training: without gradient, dropout and adapter."""
    with torch.no_grad(), evaluating(model), switched_off(model):
        yield


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Within, the model is in evaluation mode, without dropout; afterwards in its previous mode."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def completion_states(model: PreTrainedModel, batch: MicroBatch) -> Tensor:
    """Last hidden states [tokens of `batch.predicts`, hidden], from which the completion tokens are predicted."""
    output = model.base_model(input_ids=batch.tokens, use_cache=False, **attention.arguments(model, batch))
    states: Tensor = output.last_hidden_state.flatten(0, 1).index_select(0, batch.predicts)
    return states


def plain_head(model: PreTrainedModel) -> Tensor | None:
    """The output head's matrix [vocabulary, hidden], if logits are just its product with the states."""
    config, output = model.config.get_text_config(), model.get_output_embeddings()
    changed = ("logit_scale", "logits_scaling", "final_logit_softcapping")
    if any(getattr(config, name, None) for name in changed) or getattr(output, "bias", None) is not None:
        return None
    return output.weight if type(output) in (nn.Linear, Float8Linear) else None


def head_of(model: PreTrainedModel) -> Callable[[Tensor], Tensor]:
    """The function from hidden states to logits, with the scaling and capping of a few architectures."""
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
