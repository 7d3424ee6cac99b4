"""Synthetic rollouts, batches and policies for tests of the update."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from tinyzero_sdk import Item, Score
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.config import AlgorithmConfig, OptimizerConfig
from tinyzero_trainer.models.loading import LanguageModel, from_parts
from tinyzero_trainer.training.logprobs import PolicyModel, completion_states
from tinyzero_trainer.training.micro_batches import completion_lengths, in_batch_order, micro_batches
from tinyzero_trainer.training.policy import Policy
from tinyzero_trainer.types import Generation, Prompt, Rollout
from tinyzero_trainer.utils import jagged

WRONG = Score(0.0, False, "wrong")


def make_rollout(
    prompt: list[int], ids: list[int], logprobs: list[float] | None = None, score: Score = WRONG
) -> Rollout:
    """A finished completion, without a reward unless it is given."""
    return Rollout(Prompt(Item(None), "", prompt), Generation(ids, logprobs, finished=True), "", score)


def make_sample(prompt: int, completion: int) -> Rollout:
    """Tokens that show their position: prompts count from 100, completions from 200."""
    return make_rollout(list(range(100, 100 + prompt)), list(range(200, 200 + completion)))


def mixed_lengths(vocabulary: int = 97) -> list[Rollout]:
    """Six random completions of 1 to 12 tokens after prompts of 1 to 7."""
    generator = torch.Generator().manual_seed(0)
    lengths = zip([7, 1, 4, 2, 6, 3], [5, 12, 1, 3, 9, 2], strict=True)
    return [
        make_rollout(*(torch.randint(0, vocabulary, (size,), generator=generator).tolist() for size in pair))
        for pair in lengths
    ]


def ragged_samples(language_model: LanguageModel, groups: int = 3, samples: int = 4, seed: int = 0) -> list[Rollout]:
    """Groups of completions of many lengths, with the log-probabilities that the model gives them at temperature 1."""
    generator = torch.Generator().manual_seed(seed)

    def sample(low: int, high: int) -> list[int]:
        count = int(torch.randint(low, high, (1,), generator=generator))
        return torch.randint(0, 1252, (count,), generator=generator).tolist()

    rollouts = []
    for _ in range(groups):
        prompt = sample(1, 9)
        for _ in range(samples):
            ids = sample(1, 25)
            rollouts.append(make_rollout(prompt, ids, token_logprobs(language_model, prompt, ids)))
    return rollouts


def masked(rollout: Rollout) -> Rollout:
    """The same rollout, which does not count."""
    return replace(rollout, score=replace(rollout.score, masked=True))


def with_advantages(samples: Sequence[Rollout], advantages: Sequence[float]) -> TrainingBatch:
    """One advantage per completion; the old policy is the one that generated the samples."""
    old = torch.tensor([value for sample in samples for value in sample.generation.logprobs or ()])
    by_token = jagged.repeat_to_tokens(torch.tensor(advantages), completion_lengths(samples))
    return TrainingBatch.of(samples, 4, old_logprobs=old, advantages=by_token, engine_logprobs=old)


def build_policy(
    language_model: LanguageModel,
    *,
    reference: torch.nn.Module | None = None,
    optimizer: OptimizerConfig | None = None,
    max_tokens: int = 32,
    **algorithm: Any,
) -> Policy:
    """A policy whose gradients are not clipped, unless the optimizer's settings say so."""
    return Policy(
        language_model,
        algorithm=AlgorithmConfig(**algorithm),
        optimizer=optimizer or OptimizerConfig(max_grad_norm=1e9),
        max_tokens=max_tokens,
        reference=reference and PolicyModel(reference),
    )


def flat_gradient(model: torch.nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def with_dropout(language_model: LanguageModel) -> LanguageModel:
    """A GPT-2, which has dropout of 0.1, with the vocabulary of this model."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(language_model.tokenizer), n_embd=32, n_layer=2, n_head=2, n_positions=64, eos_token_id=0
    )
    assert config.resid_pdrop > 0
    return from_parts("with dropout", GPT2LMHeadModel(config).eval(), language_model.tokenizer)


@torch.no_grad()
def token_logprobs(
    language_model: LanguageModel, prompt: list[int], completion: Sequence[int], temperature: float = 1.0
) -> list[float]:
    """log π of each completion token, from one unpadded forward pass."""
    sequence = torch.tensor([[*prompt, *completion]], device=language_model.model.device)
    logits = language_model.model(sequence).logits[0, len(prompt) - 1 : -1] / temperature
    return torch.log_softmax(logits, dim=-1).gather(1, sequence[0, len(prompt) :, None])[:, 0].tolist()


@torch.no_grad()
def states_by_completion(
    model: Any, rollouts: Sequence[Rollout], layout: Any, *, share_prompts: bool = False
) -> Tensor:
    """[tokens, hidden] last states of the completions, in their order."""
    device = next(model.parameters()).device
    options = {"layout": layout, "share_prompts": share_prompts}
    batches = micro_batches(rollouts, token_budget=60, pad_id=0, device=device, **options)
    return in_batch_order(batches, lambda batch: completion_states(model, batch).float(), rollouts)
