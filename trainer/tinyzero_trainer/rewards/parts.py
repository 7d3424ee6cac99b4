"""The parts of rewards as tensors: those that a task declares, or its score as a whole, and what its wrappers add."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tinyzero_sdk import Score, Task
from tinyzero_sdk.records import TASK_PART
from tinyzero_sdk.rewards.wrappers import term_of
from tinyzero_trainer.types import Rollout

_ROUNDING = 1e-4


def part_columns(rollouts: Sequence[Rollout], tasks: Mapping[str, Task]) -> dict[str, Tensor]:
    """`reward_parts` and `part_weights` of a `TrainingBatch`: each completion's score is the sum of their products."""
    weights = {name: _weights(task) for name, task in tasks.items()}
    names = sorted(set().union(*weights.values()))
    reward_parts = torch.tensor([[_part(rollout.score, name) for name in names] for rollout in rollouts])
    part_weights = torch.tensor(
        [[weights[rollout.prompt.task].get(name, 0.0) for name in names] for rollout in rollouts]
    )
    rest = torch.tensor([rollout.score.value for rollout in rollouts]) - (reward_parts * part_weights).sum(dim=1)
    if rest.abs().max() > _ROUNDING:  # a wrapper of a plugin names its term otherwise, or not at all
        reward_parts = torch.cat([reward_parts, rest[:, None]], dim=1)
        part_weights = torch.cat([part_weights, torch.ones_like(rest)[:, None]], dim=1)
    return {"reward_parts": reward_parts, "part_weights": part_weights}


def _weights(task: Task) -> dict[str, float]:
    declared = {name: part.weight for name, part in task.info.parts.items()} or {TASK_PART: 1.0}
    return declared | dict.fromkeys(map(term_of, task.wrappers), 1.0)


def _part(score: Score, name: str) -> float:
    return score.unshaped if name == TASK_PART else score.parts.get(name, 0.0)
