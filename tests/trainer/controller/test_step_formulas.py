"""What a training step makes of scores and log-probabilities: penalties, returns, the coefficient that adapts."""

import math
import statistics
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tinyzero_sdk import Item, Score
from tinyzero_trainer.algorithms.advantages import ESTIMATORS
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.config import AlgorithmConfig, CriticConfig, RolloutConfig, RunConfig, TrainConfig
from tinyzero_trainer.controller import collector as collecting
from tinyzero_trainer.controller.state import TrainerState
from tinyzero_trainer.controller.step import TrainingStep
from tinyzero_trainer.monitoring.performance import StepTimer
from tinyzero_trainer.types import Generation, Prompt, Rollout
from tinyzero_trainer.utils.signals import StopFlag

LENGTHS, REWARDS = [2, 1, 3, 2], [1.0, 0.0, 0.25, 0.5]
OLD = torch.tensor([-1.0, -2.0, -0.5, -1.5, -0.1, -3.0, -2.5, -0.7])
REFERENCE = torch.tensor([-1.2, -1.0, -0.9, -1.5, -0.3, -2.0, -2.0, -1.7])
NOW = StepSettings(learning_rate=1e-3, temperature=0.7, kl_coefficient=0.2)


def sample(reward: float, length: int) -> Rollout:
    return Rollout(
        Prompt(Item(None), "", [1]), Generation([2] * length, [-1.0] * length, True), "", Score(reward, False)
    )


SAMPLES = [sample(reward, length) for reward, length in zip(REWARDS, LENGTHS, strict=True)]


def a_step(critic: object | None = None, *, warmup_steps: int = 0, **algorithm: object) -> TrainingStep:
    """A step of a run with fakes for its roles; the policy notes each update."""
    step = object.__new__(TrainingStep)
    step.config = TrainConfig(
        run=RunConfig(steps=9),
        rollout=RolloutConfig(group_size=2, max_completion_tokens=64),
        algorithm=AlgorithmConfig(**algorithm),  # type: ignore[arg-type]
        critic=CriticConfig(warmup_steps=warmup_steps),
    )
    step.policy = SimpleNamespace(  # type: ignore[assignment]
        reference_logprobs=lambda samples, temperature: REFERENCE if temperature == NOW.temperature else None,
        update=lambda batch, now: {"actor/updated": 1.0},
    )
    engine = SimpleNamespace(sleep=lambda: None)
    step.workers = SimpleNamespace(critic=critic, policy=step.policy, engine=engine)  # type: ignore[assignment]
    step.state, step.stop = TrainerState(), None  # type: ignore[assignment]
    step._timer = StepTimer()
    return step


def outcome_of(step: TrainingStep, samples: list[Rollout] = SAMPLES) -> TrainingBatch:
    settings = step.config.algorithm
    batch = TrainingBatch.of(samples, 2, old_logprobs=OLD, gamma=settings.gamma, gae_lambda=settings.gae_lambda)
    step.add_penalties_and_values(batch, NOW)
    return batch


def rows(values: list[float]) -> list[list[float]]:
    ends = [sum(LENGTHS[: place + 1]) for place in range(len(LENGTHS))]
    return [values[end - length : end] for end, length in zip(ends, LENGTHS, strict=True)]


@pytest.mark.parametrize(
    ("estimator", "of_gap"), [("k1", lambda d: d), ("k2", lambda d: d * d / 2), ("k3", lambda d: math.exp(-d) - 1 + d)]
)
def test_the_kl_in_the_reward_is_taken_off_each_token(estimator: str, of_gap) -> None:
    """r_t = −β·kl_t, and the score at the last token: REINFORCE++ (arXiv 2501.03262), then whitened."""
    step = a_step(advantage_estimator="reinforce_pp", kl_coefficient=0.2, kl_placement="reward", kl_estimator=estimator)
    outcome = outcome_of(step)
    gaps = rows([old - reference for old, reference in zip(OLD.tolist(), REFERENCE.tolist(), strict=True)])
    returns = [
        [reward - 0.2 * sum(of_gap(gap) for gap in row[start:]) for start in range(len(row))]
        for reward, row in zip(REWARDS, gaps, strict=True)
    ]
    flat = [value for row in returns for value in row]
    mean, deviation = statistics.fmean(flat), statistics.stdev(flat)
    expected = [(value - mean) / deviation for value in flat]
    assert ESTIMATORS["reinforce_pp"](outcome).tolist() == pytest.approx(expected, abs=1e-5)


def test_a_token_likelier_than_under_the_reference_earns_less() -> None:
    """The sign: a policy that has drifted is paid less for going on."""
    outcome = outcome_of(a_step(kl_coefficient=0.2, kl_placement="reward", kl_estimator="k1"))
    assert outcome.token_rewards()[0] < 0 < outcome.token_rewards()[6]
    assert outcome_of(a_step(kl_coefficient=0.2)).kl_penalties is None


def test_with_a_critic_the_returns_are_not_whitened_and_the_advantages_are() -> None:
    """arXiv 1506.02438 with λ = 0.9, γ = 0.95, written out; TinyZero's and verl's PPO whitens after taking returns."""
    values = [0.1, 0.4, -0.2, 0.3, 0.5, 0.2, 0.0, 0.6]
    critic = SimpleNamespace(values=lambda samples: torch.tensor(values))
    step = a_step(critic, advantage_estimator="gae", gamma=0.95, gae_lambda=0.9)
    experience = outcome_of(step)
    step.add_advantages(experience)
    advantages = []
    for reward, row in zip(REWARDS, rows(values), strict=True):
        following = [*row[1:], 0.0]
        deltas = [0.95 * after - now for now, after in zip(row, following, strict=True)]
        deltas[-1] += reward
        advantages += [
            sum((0.95 * 0.9) ** k * delta for k, delta in enumerate(deltas[start:])) for start in range(len(row))
        ]
    returns = [advantage + value for advantage, value in zip(advantages, values, strict=True)]
    mean, deviation = statistics.fmean(advantages), statistics.stdev(advantages)
    assert experience.returns is not None
    assert experience.advantages is not None
    assert experience.returns.tolist() == pytest.approx(returns, abs=1e-6)
    whitened = [(advantage - mean) / deviation for advantage in advantages]
    assert experience.advantages.tolist() == pytest.approx(whitened, abs=1e-5)


def test_with_a_critic_a_masked_completion_shifts_no_advantage() -> None:
    """It is left out of the loss, so of the mean and the variance too."""
    critic = SimpleNamespace(values=lambda samples: torch.linspace(-1, 1, 8))
    step = a_step(critic, advantage_estimator="gae")
    masked = [replace(each, score=replace(each.score, masked=place == 2)) for place, each in enumerate(SAMPLES)]
    experience = outcome_of(step, masked)
    raw = ESTIMATORS["gae"](experience)
    step.add_advantages(experience)
    kept = [value for row in (0, 1, 3) for value in rows(raw.tolist())[row]]
    mean, deviation = statistics.fmean(kept), statistics.stdev(kept)
    assert experience.advantages is not None
    found = rows(experience.advantages.tolist())
    assert found[0] + found[1] + found[3] == pytest.approx([(value - mean) / deviation for value in kept], abs=1e-5)
    assert found[2] == [0.0] * 3


def test_the_coefficient_adapts_to_the_kl_that_was_measured() -> None:
    """In the loss to the update's own, in the reward to the penalty without its coefficient; e·n/horizon of n = 4."""
    settings = {"kl_coefficient": 0.2, "kl_target": 0.1, "kl_horizon": 40}
    step = a_step(**settings)
    assert step.adapt_kl(outcome_of(step), {"actor/kl_loss": 0.11}, NOW) == {"actor/kl_coef": 0.2}
    assert step.state.kl_coefficient == pytest.approx(0.2 * (1 + 0.1 * 4 / 40))
    assert step.settings_at(3).kl_coefficient == step.state.kl_coefficient

    step = a_step(**settings, kl_placement="reward", kl_estimator="k2")
    measured = statistics.fmean((a - b) ** 2 / 2 for a, b in zip(OLD.tolist(), REFERENCE.tolist(), strict=True))
    metrics = step.adapt_kl(outcome_of(step), {}, NOW)
    assert metrics == {"actor/kl_coef": 0.2, "actor/reward_kl_penalty": pytest.approx(measured)}
    assert step.state.kl_coefficient == pytest.approx(0.2 * (1 + 0.2 * 4 / 40))  # far off: a fifth at most

    step = a_step(kl_coefficient=0.2)
    step.adapt_kl(outcome_of(step), {"actor/kl_loss": 0.5}, NOW)
    assert step.state.kl_coefficient is None


def test_while_the_critic_warms_up_the_policy_rests() -> None:
    critic = SimpleNamespace(update=lambda batch: {"critic/updated": 1.0})
    step = a_step(critic, advantage_estimator="gae", warmup_steps=2)
    taken = [step.update(None, NOW, number) for number in (1, 2, 3)]  # type: ignore[arg-type]
    assert [sorted(metrics) for metrics in taken] == [["critic/updated"]] * 2 + [["actor/updated", "critic/updated"]]


def test_a_masked_completion_has_no_say_in_the_kl_that_the_coefficient_adapts_to() -> None:
    """As in the loss, where it is left out of the mean too."""
    step = a_step(kl_coefficient=0.2, kl_placement="reward", kl_estimator="k2")
    gaps = rows([(a - b) ** 2 / 2 for a, b in zip(OLD.tolist(), REFERENCE.tolist(), strict=True)])
    masked = [replace(each, score=replace(each.score, masked=place == 2)) for place, each in enumerate(SAMPLES)]
    metrics = step.adapt_kl(outcome_of(step, masked), {}, NOW)
    assert metrics["actor/reward_kl_penalty"] == pytest.approx(statistics.fmean(gaps[0] + gaps[1] + gaps[3]))
    none = [replace(each, score=replace(each.score, masked=True)) for each in SAMPLES]
    assert step.adapt_kl(outcome_of(step, none), {}, NOW) == {"actor/kl_coef": 0.2}


def test_remax_compares_with_the_likeliest_completion_at_full_length(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def generate(engine, prompts, samples, params, *, seed, on_progress, stop):
        asked.append((len(prompts), params.max_tokens, params.temperature, samples))
        return prompts

    monkeypatch.setattr(collecting, "training_stream", lambda config, tasks, progress: None)
    monkeypatch.setattr(collecting, "generate", generate)
    monkeypatch.setattr(collecting, "score", lambda *_, **kw: [sample(0.75, 1), sample(0.25, 1)])
    step = a_step(advantage_estimator="remax")
    model = SimpleNamespace(context=99, tokenizer=None)
    display = SimpleNamespace(advance=None)
    roles = SimpleNamespace(tasks={}, pools={}, language_model=model, engine=None, display=display)
    collector = collecting.RolloutCollector(step.config, roles, TrainerState(), StopFlag())  # type: ignore[arg-type]
    greedy_rewards = collector.greedy_rewards(SAMPLES, StopFlag())
    advantages = ESTIMATORS["remax"](TrainingBatch.of(SAMPLES, 2, greedy_rewards=torch.tensor(greedy_rewards)))
    assert asked == [(2, 64, 0.0, 1)]
    assert advantages.tolist() == [0.25, 0.25, -0.75, 0.0, 0.0, 0.0, 0.25, 0.25]
