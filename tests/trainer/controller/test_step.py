"""One whole step with fakes at its ends: each value of the step reaches what needs it, and nothing is swapped.

What each part computes is tested with it; here every number differs from every other.
"""

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tinyzero_sdk import Item, ItemColumns, Score, load_task
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.config import (
    AlgorithmConfig,
    DataConfig,
    OptimizerConfig,
    RolloutConfig,
    RolloutCorrectionConfig,
    RunConfig,
    TrainConfig,
)
from tinyzero_trainer.controller import collector as collecting
from tinyzero_trainer.controller import step_metrics
from tinyzero_trainer.controller.state import TrainerState
from tinyzero_trainer.controller.step import TrainingStep
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.types import Generation, Prompt, Rollout

POLICY, ENGINE, REFERENCE = -1.0, -1.5, -1.25
"""log π of every token, as each of them has it."""

LENGTHS, SCORES = [3, 1, 2, 4], [Score(1.0, True), Score(0.0, False), Score(0.0, False), Score(1.0, True)]
"""Of the completions; each prompt has two."""

ROLLOUT = {"group_size": 2, "max_completion_tokens": 8, "temperature": 1.0, "temperature_end": 0.5}
NOW = 0.75
"""The temperature in the second of three steps."""


class FakeStream:
    """Two problems a step, with prompts of one token and of two."""

    def __init__(self) -> None:
        self._drawn = 0

    def __next__(self) -> Prompt:
        self._drawn += 1
        return Prompt(Item(None), "", [1] * (1 + (self._drawn - 1) % 2), "toy")

    def close_step(self, samples: Sequence[Rollout]) -> dict[str, float]:
        return {}

    def progress(self) -> dict[str, Any]:
        return {}


class FakePolicy:
    """Records its calls and their temperature."""

    world_size = 1

    def __init__(self) -> None:
        self.asked: list[tuple[str, float]] = []
        self.updates: list[tuple[TrainingBatch, StepSettings]] = []

    def gpu_memory(self) -> list[Any]:
        return []

    def logprobs(self, samples: Sequence[Rollout], temperature: float) -> torch.Tensor:
        self.asked.append(("policy", temperature))
        return torch.full((sum(len(sample.generation.token_ids) for sample in samples),), POLICY)

    def reference_logprobs(self, samples: Sequence[Rollout], temperature: float) -> torch.Tensor:
        self.asked.append(("reference", temperature))
        return torch.full((sum(len(sample.generation.token_ids) for sample in samples),), REFERENCE)

    def update(self, experience: TrainingBatch, settings: StepSettings) -> dict[str, float]:
        self.updates.append((experience, settings))
        return {}


class FakeEngine:
    """Records the sampling parameters."""

    def __init__(self) -> None:
        self.params: list[SamplingParams] = []
        self.loaded = self.slept = 0

    def load_weights(self) -> None:
        self.loaded += 1

    def sleep(self) -> None:
        self.slept += 1

    def close(self) -> None:
        pass

    def generate(
        self,
        prompts: Sequence[list[int]],
        samples: int,
        params: SamplingParams,
        *,
        seed: int,
        first: int = 0,
        on_progress: Callable[[int], None] | None = None,
    ) -> list[list[Generation]]:
        self.params.append(params)
        rollouts = [
            Generation([2] * length, [ENGINE] * length if params.logprobs else None, True) for length in LENGTHS
        ]
        return [rollouts[start : start + samples] for start in range(0, samples * len(prompts), samples)]


Taken = tuple[FakePolicy, FakeEngine, dict[str, float], dict[str, float]]


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Taken]:
    """Take the second of three steps; its metrics and seconds, and the fakes with their records."""

    def take_step(scores: Sequence[Score] = SCORES, *, rollout: dict[str, Any] | None = None, **groups: Any) -> Taken:
        monkeypatch.setattr(collecting, "training_stream", lambda config, tasks, progress: FakeStream())
        monkeypatch.setattr(
            collecting,
            "score",
            lambda rollouts, tokenizer, pools, max_failure_rate: [
                Rollout(*each, "", score) for each, score in zip(rollouts, scores, strict=True)
            ],
        )
        policy, engine = FakePolicy(), FakeEngine()
        workers = SimpleNamespace(
            policy=policy,
            engine=engine,
            critic=None,
            tasks={"toy": SimpleNamespace(task=SimpleNamespace(difficulties=lambda items: [0.0] * len(items)))},
            language_model=SimpleNamespace(context=99, tokenizer=None),
            pools={},
            display=SimpleNamespace(advance=lambda finished: None, log=lambda text: None),
        )
        config = TrainConfig(
            run=RunConfig(steps=3),
            data=DataConfig(prompts_per_step=2),
            rollout=RolloutConfig(**{**ROLLOUT, **(rollout or {})}),
            **groups,
        )
        step = TrainingStep(config, workers, TrainerState(), None, None)  # type: ignore[arg-type]
        _, metrics = step.take(2)
        seconds = {name.removeprefix("timing_s/"): value for name, value in metrics.items()}
        assert engine.loaded == 1
        return policy, engine, metrics, seconds

    return take_step


def test_completions_are_drawn_at_the_temperature_of_the_step(take) -> None:
    _, engine, _, _ = take()
    assert [params.temperature for params in engine.params] == [NOW]


def test_old_and_reference_logprobs_are_those_at_the_temperature_of_the_step(take) -> None:
    policy, _, metrics, _ = take(
        algorithm=AlgorithmConfig(kl_coefficient=0.4, kl_coefficient_end=0.2, kl_placement="reward", kl_estimator="k1")
    )
    assert policy.asked == [("policy", NOW), ("reference", NOW)]
    assert metrics["actor/kl_coef"] == pytest.approx(0.3)
    assert metrics["actor/reward_kl_penalty"] == pytest.approx(POLICY - REFERENCE)
    ((_, settings),) = policy.updates
    assert (settings.temperature, settings.kl_coefficient) == (NOW, pytest.approx(0.3))


def test_a_pass_before_several_updates_is_at_the_temperature_of_the_step(take) -> None:
    policy, _, _, _ = take(optimizer=OptimizerConfig(num_mini_batches=2))
    assert policy.asked == [("policy", NOW)]


def test_the_correction_weighs_the_policy_over_the_engine(take) -> None:
    """Not the other way round: a token that the engine drew too seldom counts for more."""
    policy, _, metrics, _ = take(
        rollout={"return_logprobs": "always"},
        rollout_correction=RolloutCorrectionConfig(is_level="token", is_threshold=9.0),
    )
    ((experience, _),) = policy.updates
    expected = math.exp(POLICY - ENGINE)
    assert experience.is_weights is not None
    assert experience.is_weights.tolist() == pytest.approx([expected] * sum(LENGTHS))
    assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(expected)
    assert experience.old_logprobs is not None
    assert experience.engine_logprobs is not None
    assert experience.old_logprobs.unique().tolist() == [POLICY]
    assert experience.engine_logprobs.unique().tolist() == [ENGINE]


def test_the_engines_logprobs_are_the_old_ones_where_nothing_is_corrected(take) -> None:
    policy, _, _, _ = take(rollout={"return_logprobs": "always"}, optimizer=OptimizerConfig(num_mini_batches=2))
    ((experience, _),) = policy.updates
    assert policy.asked == []
    assert experience.is_weights is None
    assert experience.old_logprobs is not None
    assert experience.old_logprobs.unique().tolist() == [ENGINE]


def test_tokens_are_summed_over_the_only_rank(take) -> None:
    """verl's `global_seqlen` is of the sums of the data-parallel ranks, not of single sequences."""
    _, _, metrics, _ = take()
    total = sum(LENGTHS) + 2 * 1 + 2 * 2
    names = ("min", "max", "mean", "balanced_min", "balanced_max")
    found = {name: value for name, value in metrics.items() if name.startswith("global_seqlen/")}
    assert found == {**{f"global_seqlen/{name}": total for name in names}, "global_seqlen/minmax_diff": 0}
    assert metrics["perf/total_num_tokens"] == total


def test_a_token_of_the_update_is_one_that_was_trained_on(take) -> None:
    masked = [SCORES[0], SCORES[1], Score(0.0, False, masked=True), SCORES[3]]
    _, _, metrics, seconds = take(masked)
    trained = LENGTHS[0] + LENGTHS[1] + LENGTHS[3] + 1 + 1 + 2
    assert metrics["timing_per_token_ms/update_actor"] == pytest.approx(1000 * seconds["update_actor"] / trained)
    assert metrics["timing_per_token_ms/gen"] == pytest.approx(1000 * seconds["gen"] / sum(LENGTHS))
    _, _, metrics, _ = take([Score(0.0, False, masked=True)] * 4)
    assert "timing_per_token_ms/update_actor" not in metrics
    assert "critic/advantages/mean" not in metrics


def test_the_advantages_reported_are_those_of_the_loss(take) -> None:
    """Without masked ones, whose scores still count in the mean of their group."""
    masked = [SCORES[0], SCORES[1], Score(0.5, False, masked=True), SCORES[3]]
    policy, _, metrics, _ = take(masked, algorithm=AlgorithmConfig(advantage_estimator="reinforce_pp_baseline"))
    ((experience, _),) = policy.updates
    advantages = experience.advantages.split(LENGTHS)
    counted = torch.cat([advantages[0], advantages[1], advantages[3]])
    assert metrics["critic/advantages/mean"] == pytest.approx(0.0, abs=1e-6) == counted.mean().item()
    assert metrics["critic/advantages/max"] == counted.max().item()
    assert counted.std().item() == pytest.approx(1.0, abs=1e-5)
    raw = [0.5] * 3 + [-0.5] + [0.25] * 4
    assert (counted.max() - counted.min()).item() == pytest.approx(1.0 / torch.tensor(raw).std().item(), abs=1e-5)
    assert metrics["critic/rewards/mean"] == pytest.approx(2.5 / 4)


# ---- accuracy by difficulty ------------------------------------------------------------------------------------------


def rollout_of(prompt: Prompt, *, correct: bool) -> Rollout:
    return Rollout(prompt, Generation([1], None, True), "", Score(float(correct), correct))


def test_each_problem_is_looked_at_once(toy_task: str) -> None:
    task, asked = load_task(toy_task), []
    prompts = [
        Prompt(Item({"sum": 3}, {"numbers": [1, 2]}), "", [1]),
        Prompt(Item({"sum": 31}, {"numbers": [1, 30]}), "", [1]),
    ]
    difficulty = task.difficulty
    task.difficulty = lambda item: (asked.append(item), difficulty(item))[1]
    samples = [rollout_of(prompts[row % 2], correct=row < 3) for row in range(8)]
    assert step_metrics._by_difficulty(task, samples, "acc") == {"acc/0": 0.5, "acc/3": 0.25}
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("truths", "columns"),
    [([{"a": 1}, {"a": 2}], True), ([{"a": 1}, {"b": 2}], False), ([1, "x"], False), ([1, 2.5], False)],
    ids=["alike", "other fields", "other types", "other numbers"],
)
def test_columns_are_taken_only_where_they_hold_the_items_as_they_are(truths: list, columns: bool) -> None:
    items, given = [Item(truth, {"n": 1}) for truth in truths], []
    task = SimpleNamespace(difficulties=lambda items: (given.append(items), [1, 2])[1])
    samples = [rollout_of(Prompt(item, "", [1]), correct=True) for item in items]
    assert step_metrics._by_difficulty(task, samples, "acc") == {"acc/1": 1.0, "acc/2": 1.0}
    assert isinstance(given[0], ItemColumns) == columns
    assert list(given[0]) == items
