"""Whether an engine has the policy's weights: both compute the log-probabilities of the same few tokens.

This notices weights that the engine never received: its own are dummies at the start, and lost after each sleep.
Weights that are a few small updates old are not noticed: they differ by less than kernels do, until updates add up.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tinyzero_sdk import Item, Score
from tinyzero_trainer.distributed.fsdp import device_of, on_device
from tinyzero_trainer.errors import VllmError
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.rollout.engine import Completions, PromptBatch, SamplingParams
from tinyzero_trainer.training.float8 import without_float8
from tinyzero_trainer.training.logprobs import PolicyModel, evaluating
from tinyzero_trainer.training.micro_batches import in_batch_order, micro_batches
from tinyzero_trainer.types import Generation, Prompt, Rollout

PROBES, PROBE_TOKENS, COMPLETION_TOKENS = 4, 4, 8  # prompts, their tokens, and the tokens generated after each

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1}
"""Mean difference per token, in nats, between kernels of one dtype. A dummy weight gives far more, one step at a
learning rate of 1e-6 far less."""

PARAMS = SamplingParams(COMPLETION_TOKENS, temperature=1.0, ignore_eos=True, logprobs=True)


class SyncCheck:
    """Compares an engine with the policy, by the engine's completions of some prompts."""

    def __init__(self, language_model: LanguageModel, dtype: torch.dtype) -> None:
        """`language_model` is the policy's, `dtype` the engine's."""
        self._language_model, self._tolerance = language_model, TOLERANCE[dtype]
        step = max(1, len(language_model.tokenizer) // (PROBES * PROBE_TOKENS + 1))  # all over the vocabulary
        rows = [range(1 + row, 1 + row + PROBES * PROBE_TOKENS, PROBES) for row in range(PROBES)]
        self.batch = PromptBatch([[step * place for place in row] for row in rows], 1, PARAMS, seed=0)

    def compare(self, completions: Completions) -> None:
        """Compare an engine's completions of `batch` with the policy. All ranks must call this at the same time.

        Raises:
            VllmError: the engine has different weights.
        """
        generated = [completion for (completion,) in completions]
        theirs = torch.tensor([value for completion in generated for value in completion.logprobs or ()])
        ours = completion_logprobs(self._language_model, list(zip(self.batch.prompts, generated, strict=True)))
        gap = (theirs - ours).abs().mean()
        if not gap <= self._tolerance:  # also if it is NaN
            raise VllmError(
                f"vLLM's log-probabilities differ from the policy's by {gap:.3g} a token after its weights were sent, "
                f"expected at most {self._tolerance:g}: this vLLM does not take over all weights of "
                f"{type(self._language_model.model).__name__}; take rollout.engine=torch, or another version of vLLM"
            )


def completion_logprobs(language_model: LanguageModel, rows: Sequence[tuple[list[int], Generation]]) -> Tensor:
    """[tokens] log π of every token of some completions under the current weights, at temperature 1; on the CPU."""
    samples = [
        Rollout(Prompt(Item(None), "", prompt), rollout, "", Score(0.0, correct=False)) for prompt, rollout in rows
    ]
    model = PolicyModel.of(language_model.model)
    batches = micro_batches(samples, token_budget=2**12, pad_id=language_model.pad_id, device=device_of(model))
    with on_device(model), torch.no_grad(), evaluating(model.body), without_float8(model):
        return in_batch_order(batches, lambda batch: model(batch, temperature=1.0).logprobs, samples)
