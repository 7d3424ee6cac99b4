"""One whole step with fakes at its ends, and what it makes of scores and log-probabilities: penalties, returns, the KL.

Each value of the step reaches what needs it, and nothing is swapped: here every number differs from every other.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.trainer.controller.fakes import FakeStream, fake_workers
from tests.trainer.samples import make_rollout
from tinyzero_sdk import Item, Score
from tinyzero_trainer.algorithms.advantages import gae, remax
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.config import (
    AlgorithmConfig,
    CriticConfig,
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
from tinyzero_trainer.utils.signals import StopFlag

POLICY, ENGINE, REFERENCE = -1.0, -1.5, -1.25
"""log π of every token, as each of them has it."""

LENGTHS, SCORES = [3, 1, 2, 4], [Score(1.0, True), Score(0.0, False), Score(0.0, False), Score(1.0, True)]
"""Of the completions; each prompt has two."""

ROLLOUT = {"group_size": 2, "max_completion_tokens": 8, "temperature": 1.0, "temperature_end": 0.5}
TEMPERATURE = 0.75
"""The temperature in the second of three steps."""


class FakePolicy:
    """Records its calls and their temperature."""

    world_size = 1

    def __init__(self) -> None:
        self.calls: list[tuple[str, float]] = []
        self.updates: list[tuple[TrainingBatch, StepSettings]] = []
        self.rollouts: list[Rollout] = []  # what the step has returned

    def gpu_memory(self) -> list[Any]:
        return []

    def logprobs(self, samples: Sequence[Rollout], temperature: float) -> torch.Tensor:
        self.calls.append(("policy", temperature))
        return torch.full((sum(LENGTHS),), POLICY)

    def reference_logprobs(self, samples: Sequence[Rollout], temperature: float) -> torch.Tensor:
        self.calls.append(("reference", temperature))
        return torch.full((sum(LENGTHS),), REFERENCE)

    def update(self, batch: TrainingBatch, settings: StepSettings) -> dict[str, float]:
        self.updates.append((batch, settings))
        return {}

    def entropies(self) -> torch.Tensor:
        return torch.arange(float(sum(LENGTHS)))


class FakeEngine:
    """Records the sampling parameters."""

    def __init__(self) -> None:
        self.params: list[SamplingParams] = []
        self.loaded = 0

    def load_weights(self) -> None:
        self.loaded += 1

    def sleep(self) -> None:
        pass

    def generate(
        self, prompts: Sequence[list[int]], samples: int, params: SamplingParams, **_: Any
    ) -> list[list[Generation]]:
        self.params.append(params)
        rollouts = [
            Generation([2] * length, [ENGINE] * length if params.logprobs else None, True) for length in LENGTHS
        ]
        return [rollouts[start : start + samples] for start in range(0, samples * len(prompts), samples)]


@pytest.fixture(autouse=True)
def _fake_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "training_stream", lambda config, tasks, progress: FakeStream(progress))


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple]:
    """Take the second of three steps; the fakes with their records, its metrics and seconds."""

    def take_step(
        scores: Sequence[Score] = SCORES, *, rollout: dict[str, Any] | None = None, log: Any = print, **groups: Any
    ) -> tuple:
        monkeypatch.setattr(
            collecting,
            "score",
            lambda rollouts, tokenizer, pools, group_size, max_failure_rate, on_failure: [
                Rollout(*each, "", score) for each, score in zip(rollouts, scores, strict=True)
            ],
        )
        policy, engine = FakePolicy(), FakeEngine()
        config = TrainConfig(
            run=RunConfig(steps=3),
            data=DataConfig(prompts_per_step=2),
            rollout=RolloutConfig(**{**ROLLOUT, **(rollout or {})}),
            **groups,
        )
        step = TrainingStep(config, fake_workers(policy, engine, log=log), TrainerState(), None)
        policy.rollouts, metrics = step.take(2)
        seconds = {name.removeprefix("timing_s/"): value for name, value in metrics.items()}
        assert engine.loaded == 1
        return policy, engine, metrics, seconds

    return take_step


def test_completions_old_and_reference_logprobs_are_at_the_temperature_of_the_step(take) -> None:
    policy, engine, metrics, _ = take(
        algorithm=AlgorithmConfig(kl_coefficient=0.4, kl_coefficient_end=0.2, kl_placement="reward", kl_estimator="k1"),
        optimizer=OptimizerConfig(num_mini_batches=2),
    )
    assert [params.temperature for params in engine.params] == [TEMPERATURE]
    assert policy.calls == [("policy", TEMPERATURE), ("reference", TEMPERATURE)]
    assert metrics["actor/kl_coef"] == pytest.approx(0.3)
    assert metrics["actor/reward_kl_penalty"] == pytest.approx(POLICY - REFERENCE)
    ((_, settings),) = policy.updates
    assert (settings.temperature, settings.kl_coefficient) == (TEMPERATURE, pytest.approx(0.3))


def test_the_correction_weighs_the_policy_over_the_engine(take) -> None:
    """Not the other way round: a token that the engine drew too seldom counts for more."""
    policy, _, metrics, _ = take(
        rollout={"return_logprobs": "always"},
        rollout_correction=RolloutCorrectionConfig(is_level="token", is_threshold=9.0),
    )
    ((batch, _),) = policy.updates
    expected = math.exp(POLICY - ENGINE)
    assert batch.is_weights.tolist() == pytest.approx([expected] * sum(LENGTHS))
    assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(expected)
    assert batch.old_logprobs.unique().tolist() == [POLICY]
    assert batch.engine_logprobs.unique().tolist() == [ENGINE]


def test_the_engines_logprobs_are_the_old_ones_where_nothing_is_corrected(take) -> None:
    policy, _, _, _ = take(rollout={"return_logprobs": "always"}, optimizer=OptimizerConfig(num_mini_batches=2))
    ((batch, _),) = policy.updates
    assert policy.calls == []
    assert batch.is_weights is None
    assert batch.old_logprobs.unique().tolist() == [ENGINE]


def test_tokens_are_summed_over_the_only_rank(take) -> None:
    """verl's `global_seqlen` is of the sums of the data-parallel ranks, not of single sequences."""
    _, _, metrics, _ = take()
    total = sum(LENGTHS) + 2 * 1 + 2 * 2
    names = ("min", "max", "mean", "balanced_min", "balanced_max")
    found = {name: value for name, value in metrics.items() if name.startswith("global_seqlen/")}
    assert found == {**{f"global_seqlen/{name}": total for name in names}, "global_seqlen/minmax_diff": 0}
    assert metrics["perf/total_num_tokens"] == total


def test_a_completion_that_was_trained_on_has_its_advantage_and_entropies(take) -> None:
    masked = [SCORES[0], SCORES[1], Score(0.0, False, masked=True), SCORES[3]]
    policy, *_ = take(masked)
    scale = math.sqrt(0.5)  # grpo: of 1 and 0
    found = [(rollout.advantage, rollout.entropies and list(rollout.entropies)) for rollout in policy.rollouts]
    assert [advantage for advantage, _ in found] == pytest.approx([scale, -scale, None, scale], abs=1e-4)
    assert [entropies for _, entropies in found] == [[0, 1, 2], [3], None, [6, 7, 8, 9]]


def test_a_token_of_the_update_is_one_that_was_trained_on(take) -> None:
    masked = [SCORES[0], SCORES[1], Score(0.0, False, masked=True), SCORES[3]]
    _, _, metrics, seconds = take(masked)
    trained = LENGTHS[0] + LENGTHS[1] + LENGTHS[3] + 1 + 1 + 2
    assert metrics["timing_per_token_ms/update_actor"] == pytest.approx(1000 * seconds["update_actor"] / trained)
    assert metrics["timing_per_token_ms/gen"] == pytest.approx(1000 * seconds["gen"] / sum(LENGTHS))
    _, _, metrics, _ = take([Score(0.0, False, masked=True)] * 4)
    assert "timing_per_token_ms/update_actor" not in metrics
    assert "critic/advantages/mean" not in metrics


RAFT = AlgorithmConfig(advantage_estimator="raft", policy_loss="reinforce", loss_aggregation="token-mean")


def test_raft_trains_on_right_completions_alone_and_says_if_there_are_none(take) -> None:
    policy, _, metrics, seconds = take(algorithm=RAFT)
    ((batch, _),) = policy.updates
    assert batch.mask.tolist() == [True, False, False, True]
    assert batch.advantages.tolist() == [1.0] * sum(LENGTHS)
    assert metrics["critic/score/mean"] == 0.5  # of all
    trained = LENGTHS[0] + LENGTHS[3] + 1 + 2
    assert metrics["timing_per_token_ms/update_actor"] == pytest.approx(1000 * seconds["update_actor"] / trained)
    logged: list[str] = []
    take([Score(0.5, False)] * 4, algorithm=RAFT, log=logged.append)
    take([Score(0.0, False, masked=True)] * 4, log=logged.append)
    assert logged == [
        "step 2: no completion is correct, so it trains nothing",
        "step 2: all completions are masked, so it trains nothing",
    ]


def test_raft_takes_the_first_right_completions_of_each_prompt(take) -> None:
    right = Score(1.0, True)
    policy, *_ = take([right, right, replace(right, masked=True), right], algorithm=replace(RAFT, max_accepted=1))
    assert policy.updates[0][0].mask.tolist() == [True, False, False, True]


def test_the_advantages_reported_are_those_of_the_loss(take) -> None:
    """Without masked ones, whose scores still count in the mean of their group."""
    masked = [SCORES[0], SCORES[1], Score(0.5, False, masked=True), SCORES[3]]
    policy, _, metrics, _ = take(masked, algorithm=AlgorithmConfig(advantage_estimator="reinforce_pp_baseline"))
    ((batch, _),) = policy.updates
    advantages = batch.advantages.split(LENGTHS)
    counted = torch.cat([advantages[0], advantages[1], advantages[3]])
    assert metrics["critic/advantages/mean"] == pytest.approx(0.0, abs=1e-6) == counted.mean().item()
    assert metrics["critic/advantages/max"] == counted.max().item()
    assert metrics["critic/rewards/mean"] == pytest.approx(2.5 / 4)


ROW_LENGTHS, REWARDS = [2, 1, 3, 2], [1.0, 0.0, 0.25, 0.5]
OLD_LOGPROBS = torch.tensor([-1.0, -2.0, -0.5, -1.5, -0.1, -3.0, -2.5, -0.7])
REFERENCE_LOGPROBS = torch.tensor([-1.2, -1.0, -0.9, -1.5, -0.3, -2.0, -2.0, -1.7])
LOG_RATIOS = (OLD_LOGPROBS.double() - REFERENCE_LOGPROBS.double()).tolist()
SETTINGS = StepSettings(learning_rate=1e-3, temperature=0.7, kl_coefficient=0.2)


def sample(reward: float, length: int) -> Rollout:
    return make_rollout([1], [2] * length, [-1.0] * length, Score(reward, False))


SAMPLES = [sample(reward, length) for reward, length in zip(REWARDS, ROW_LENGTHS, strict=True)]


def a_step(critic: object | None = None, *, warmup_steps: int = 0, **algorithm: Any) -> TrainingStep:
    """A step of a run with fakes for its workers."""
    config = TrainConfig(
        run=RunConfig(steps=9),
        rollout=RolloutConfig(group_size=2, max_completion_tokens=64),
        algorithm=AlgorithmConfig(**algorithm),
        critic=CriticConfig(warmup_steps=warmup_steps),
    )
    policy = SimpleNamespace(
        reference_logprobs=lambda samples, temperature: {SETTINGS.temperature: REFERENCE_LOGPROBS}[temperature],
        update=lambda batch, now: {"actor/updated": 1.0},
        entropies=lambda: None,
    )
    workers = fake_workers(policy, SimpleNamespace(sleep=lambda: None), critic)
    return TrainingStep(config, workers, TrainerState(), StopFlag())


def batch_of(step: TrainingStep, samples: list[Rollout] = SAMPLES) -> TrainingBatch:
    gamma, gae_lambda = step.config.algorithm.gamma, step.config.algorithm.gae_lambda
    batch = TrainingBatch.of(samples, 2, old_logprobs=OLD_LOGPROBS, gamma=gamma, gae_lambda=gae_lambda)
    step.add_penalties_and_values(batch, SETTINGS)
    return batch


def rows(values: list[float]) -> list[list[float]]:
    ends = [sum(ROW_LENGTHS[: place + 1]) for place in range(len(ROW_LENGTHS))]
    return [values[end - length : end] for end, length in zip(ends, ROW_LENGTHS, strict=True)]


@pytest.mark.parametrize(
    ("estimator", "of_gap"), [("k1", lambda d: d), ("k2", lambda d: d * d / 2), ("k3", lambda d: math.exp(-d) - 1 + d)]
)
def test_the_kl_in_the_reward_is_taken_off_each_token(estimator: str, of_gap) -> None:
    """r_t = −β·kl_t, and the score at the last token: REINFORCE++ (arXiv 2501.03262)."""
    step = a_step(advantage_estimator="reinforce_pp", kl_coefficient=0.2, kl_placement="reward", kl_estimator=estimator)
    batch = batch_of(step)
    expected = [0.2 * of_gap(gap) for gap in LOG_RATIOS]
    assert batch.kl_penalties.tolist() == pytest.approx(expected, abs=1e-5)


def test_with_a_critic_the_advantages_are_whitened_without_masked_ones_and_the_returns_are_not() -> None:
    """They are left out of the loss, so of the mean and the variance too."""
    values = torch.linspace(-1, 1, 8)
    critic = SimpleNamespace(values=lambda samples: values)
    step = a_step(critic, advantage_estimator="gae")
    masked = [replace(each, score=replace(each.score, masked=place == 2)) for place, each in enumerate(SAMPLES)]
    batch = batch_of(step, masked)
    raw = gae(batch)
    step.add_advantages(batch)
    torch.testing.assert_close(batch.returns, raw + values)
    kept = [value for row in (0, 1, 3) for value in rows(raw.tolist())[row]]
    mean, deviation = statistics.fmean(kept), statistics.stdev(kept)
    found = rows(batch.advantages.tolist())
    assert found[0] + found[1] + found[3] == pytest.approx([(value - mean) / deviation for value in kept], abs=1e-5)
    assert found[2] == [0.0] * 3


def test_the_coefficient_adapts_to_the_kl_that_was_measured() -> None:
    """In the loss to the update's own, in the reward to the penalty without its coefficient; e·n/horizon of n = 4."""
    settings = {"kl_coefficient": 0.2, "kl_target": 0.1, "kl_horizon": 40}
    step = a_step(**settings)
    assert step.adapt_kl(batch_of(step), {"actor/kl_loss": 0.11}, SETTINGS) == {"actor/kl_coef": 0.2}
    assert step.state.kl_coefficient == pytest.approx(0.2 * (1 + 0.1 * 4 / 40))
    assert step.settings_at(3).kl_coefficient == step.state.kl_coefficient
    before = step.state.kl_coefficient
    step.adapt_kl(batch_of(step), {"actor/kl_loss": math.nan}, SETTINGS)  # of an update that was skipped
    assert step.state.kl_coefficient == before

    step = a_step(**settings, kl_placement="reward", kl_estimator="k2")
    measured = statistics.fmean(d * d / 2 for d in LOG_RATIOS)
    metrics = step.adapt_kl(batch_of(step), {}, SETTINGS)
    assert metrics == {"actor/kl_coef": 0.2, "actor/reward_kl_penalty": pytest.approx(measured)}
    assert step.state.kl_coefficient == pytest.approx(0.2 * (1 + 0.2 * 4 / 40))  # far off: a fifth at most

    step = a_step(kl_coefficient=0.2)
    batch = batch_of(step)
    step.adapt_kl(batch, {"actor/kl_loss": 0.5}, SETTINGS)
    assert (step.state.kl_coefficient, batch.kl_penalties) == (None, None)


def test_while_the_critic_warms_up_the_policy_is_not_updated() -> None:
    critic = SimpleNamespace(update=lambda batch: {"critic/updated": 1.0})
    step = a_step(critic, advantage_estimator="gae", warmup_steps=2)
    taken = [step.update(TrainingBatch.of(SAMPLES, 2), SETTINGS, number) for number in (1, 2, 3)]
    assert [sorted(metrics) for metrics in taken] == [["critic/updated"]] * 2 + [["actor/updated", "critic/updated"]]


def test_a_masked_completion_has_no_say_in_the_kl_that_the_coefficient_adapts_to() -> None:
    """As in the loss, where it is left out of the mean too."""
    step = a_step(kl_coefficient=0.2, kl_placement="reward", kl_estimator="k2")
    gaps = rows([d * d / 2 for d in LOG_RATIOS])
    masked = [replace(each, score=replace(each.score, masked=place == 2)) for place, each in enumerate(SAMPLES)]
    metrics = step.adapt_kl(batch_of(step, masked), {}, SETTINGS)
    assert metrics["actor/reward_kl_penalty"] == pytest.approx(statistics.fmean(gaps[0] + gaps[1] + gaps[3]))
    none = [replace(each, score=replace(each.score, masked=True)) for each in SAMPLES]
    assert step.adapt_kl(batch_of(step, none), {}, SETTINGS) == {"actor/kl_coef": 0.2}


def test_remax_compares_with_the_greedy_completion_at_full_length(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def generate(model, engine, prompts, samples, params, **_):
        calls.append((len(prompts), params.max_tokens, params.temperature, samples))
        return prompts

    monkeypatch.setattr(collecting, "generate", generate)
    monkeypatch.setattr(collecting, "score", lambda *_, **kw: [sample(0.75, 1), sample(0.25, 1)])
    greedy_rewards = a_step(advantage_estimator="remax").collector.greedy_rewards(SAMPLES, StopFlag())
    advantages = remax(TrainingBatch.of(SAMPLES, 2, greedy_rewards=torch.tensor(greedy_rewards)))
    assert calls == [(2, 64, 0.0, 1)]
    assert advantages.tolist() == [0.25, 0.25, -0.75, 0.0, 0.0, 0.0, 0.25, 0.25]


def test_a_problem_of_unknown_difficulty_is_of_no_level() -> None:
    task = SimpleNamespace(difficulties=lambda items: [math.nan if item.ground_truth == 0 else 2.5 for item in items])
    right = make_rollout([1], [1], None, Score(1.0, True))
    samples = [replace(right, prompt=Prompt(Item(truth, {}), "", [1])) for truth in (0, 1)]
    assert step_metrics._by_difficulty(task, samples, "acc") == {"acc/2": 1.0}
