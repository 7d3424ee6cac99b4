"""Scores of completions, each from the reward pool of its task, and their parts as tensors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tinyzero_sdk import Completion, Task
from tinyzero_sdk.errors import BrokenTaskError
from tinyzero_sdk.records import SCORER_FAILURES, TASK_PART
from tinyzero_sdk.rewards.wrappers import term_of
from tinyzero_trainer.data.tokenization import decode_texts
from tinyzero_trainer.rewards.reward_pool import RewardPool
from tinyzero_trainer.types import Generation, Prompt, Rollout

_ROUNDING = 1e-4


def counts(rollout: Rollout, tasks: Mapping[str, Task]) -> bool:
    """Whether a completion counts in accuracies and mean scores: all do but those whose asynchronous scorer failed.

    One on which the task's own code fails counts as wrong and scores 0, as in scored files.
    """
    return rollout.score.reason not in SCORER_FAILURES or not tasks[rollout.prompt.task].is_async


def counted(rollouts: Sequence[Rollout], tasks: Mapping[str, Task]) -> Sequence[Rollout]:
    """The rollouts that count; all if none does."""
    return [rollout for rollout in rollouts if counts(rollout, tasks)] or rollouts


def score(
    generated: Sequence[tuple[Prompt, Generation]],
    tokenizer: PreTrainedTokenizerBase,
    pools: Mapping[str, RewardPool],
    *,
    group_size: int,
    max_failure_rate: float = 1.0,
    on_failure: Callable[[str, str], None] = lambda task, message: None,
) -> list[Rollout]:
    """Score completions, in the order given; those of a problem are adjacent.

    A completion whose scorer failed is masked: nothing is known about it, and 0 may be more than a wrong answer gets.
    `on_failure` is told the task, and a message; above `max_failure_rate` it is raised as a BrokenTaskError.
    """
    texts = decode_texts(tokenizer, [generation.token_ids for _, generation in generated])
    rollouts: dict[int, Rollout] = {}
    for name, pool in pools.items():
        indices = [index for index, (prompt, _) in enumerate(generated) if prompt.task == name]
        completions = [
            Completion(texts[index], len(generated[index][1].token_ids), generated[index][1].finished)
            for index in indices
        ]
        truths, groups = [generated[index][0].item.ground_truth for index in indices], len(indices) // group_size
        scores = pool.score(completions, truths, [group_size] * groups)
        if failed := sum(score.reason in SCORER_FAILURES for score in scores):
            error = pool.first_error or "it took longer than reward.timeout, or its process ended"
            cause = error.splitlines()[-1][:500]
            failure = f"the scorer of task {name!r} failed on {failed} of {len(scores)} completions ({cause})"
            limit = f"reward.max_failure_rate={max_failure_rate:g}"
            if failed > max_failure_rate * len(scores):
                raise BrokenTaskError(f"{failure}; expected at most {limit}: fix the task, or raise reward.timeout")
            on_failure(name, f"{failure}, which are left out of training; the run stops above {limit}")
        for index, result in zip(indices, scores, strict=True):
            if result.reason in SCORER_FAILURES:
                result = replace(result, masked=True)
            rollouts[index] = Rollout(*generated[index], texts[index], result)
    return [rollouts[index] for index in range(len(generated))]


def part_columns(rollouts: Sequence[Rollout], tasks: Mapping[str, Task]) -> dict[str, Tensor]:
    """`reward_parts` and `part_weights` of a `TrainingBatch`: each completion's score is the sum of their products."""
    weights = {}
    for name, task in tasks.items():
        declared = {part: own.weight for part, own in task.info.parts.items()} or {TASK_PART: 1.0}
        weights[name] = declared | dict.fromkeys(map(term_of, task.wrappers), 1.0)
    names = sorted(set().union(*weights.values()))
    parts = [{TASK_PART: rollout.score.unshaped, **rollout.score.parts} for rollout in rollouts]
    reward_parts = torch.tensor([[own.get(name, 0.0) for name in names] for own in parts])
    part_weights = torch.tensor(
        [[weights[rollout.prompt.task].get(name, 0.0) for name in names] for rollout in rollouts]
    )
    rest = torch.tensor([rollout.score.value for rollout in rollouts]) - (reward_parts * part_weights).sum(dim=1)
    if rest.abs().max() > _ROUNDING:  # a wrapper of a plugin names its term otherwise, or not at all
        reward_parts = torch.cat([reward_parts, rest[:, None]], dim=1)
        part_weights = torch.cat([part_weights, torch.ones_like(rest)[:, None]], dim=1)
    return {"reward_parts": reward_parts, "part_weights": part_weights}
