"""What a step samples and trains on, and what it hands to the next."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from tinyzero_sdk import Item, Score
from tinyzero_trainer import training_step
from tinyzero_trainer.config import DataConfig, RolloutConfig, TrainConfig
from tinyzero_trainer.prompts import Progress
from tinyzero_trainer.records import Prompt, Rollout, Sample
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.training_step import Carried, TrainingStep
from tinyzero_trainer.window import WindowState

PARAMS = SamplingParams(8, 1.0)


def collect(monkeypatch: pytest.MonkeyPatch, groups: list[list[float]], *, prompts: int, rounds: int):
    """A step's sampling, where the n-th problem drawn gets the n-th group of rewards."""
    stream = iter([Prompt(Item(index), str(index), [1]) for index in range(len(groups))])
    roles = SimpleNamespace(policy=object(), tasks={})
    monkeypatch.setattr(training_step, "training_stream", lambda config, tasks, progress: stream)
    seeds = []

    def generate(roles, batch, params, *, samples, seed, stop):
        seeds.append(seed)
        return [(prompt, Rollout([2], [-1.0], True)) for prompt in batch for _ in range(samples)]

    def score(roles, rollouts, *, max_failed_share):
        values = [value for prompt in rollouts[:: len(groups[0])] for value in groups[prompt[0].item.ground_truth]]
        return [
            Sample(prompt, rollout, "", Score(value, value == 1.0))
            for (prompt, rollout), value in zip(rollouts, values, strict=True)
        ]

    monkeypatch.setattr(training_step, "generate", generate)
    monkeypatch.setattr(training_step, "score", score)
    config = TrainConfig(
        data=DataConfig(prompts_per_step=prompts, dynamic_rounds=rounds),
        rollout=RolloutConfig(samples_per_prompt=len(groups[0])),
    )
    step = TrainingStep(config, roles, Carried(), None, None)  # type: ignore[arg-type]
    samples, kept = step.collect(PARAMS, 1, training_step._Clock())
    drawn = len(groups) - len(list(stream))
    assert len(set(seeds)) == len(seeds)
    return [[sample.prompt.item.ground_truth for sample in part[:: len(groups[0])]] for part in (samples, kept)], drawn


MIXED, EQUAL = [1.0, 0.0], [0.0, 0.0]


def test_without_dynamic_sampling_every_group_is_trained_on(monkeypatch) -> None:
    assert collect(monkeypatch, [MIXED, EQUAL, MIXED], prompts=2, rounds=0) == ([[0, 1], [0, 1]], 2)


def test_groups_of_equal_rewards_are_replaced(monkeypatch) -> None:
    groups = [EQUAL, MIXED, [1.0, 1.0], MIXED, EQUAL, MIXED, MIXED]
    assert collect(monkeypatch, groups, prompts=3, rounds=5) == ([[0, 1, 2, 3, 4, 5], [1, 3, 5]], 6)


def test_the_rounds_have_a_limit(monkeypatch) -> None:
    groups = [EQUAL, MIXED, EQUAL, MIXED]
    assert collect(monkeypatch, groups, prompts=2, rounds=2) == ([[0, 1, 2], [1]], 3)


def test_without_any_group_to_learn_from_the_step_still_has_a_batch(monkeypatch) -> None:
    assert collect(monkeypatch, [EQUAL] * 6, prompts=2, rounds=3) == ([[0, 1, 2, 3, 4, 5], [0, 1]], 6)


def test_what_is_carried_survives_json() -> None:
    progress = {"toy": Progress(7, 1, 5, (2, 1), (0.25, None)), "other": Progress()}
    carried = Carried(progress, 0.25, WindowState(tokens=64, success_rate=0.5))
    assert Carried.from_json(json.loads(json.dumps(asdict(carried)))) == carried
