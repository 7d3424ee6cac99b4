"""What a batch samples and keeps: dynamic sampling, masked completions, ReMax's greedy completions."""

import pytest

from tests.trainer.controller.fakes import fake_workers
from tinyzero_sdk import Item, Score
from tinyzero_trainer.config import DataConfig, RolloutConfig, TrainConfig
from tinyzero_trainer.controller import collector as collecting
from tinyzero_trainer.controller.collector import RolloutCollector
from tinyzero_trainer.controller.state import TrainerState
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.types import Generation, Prompt, Rollout
from tinyzero_trainer.utils.signals import StopFlag

PARAMS = SamplingParams(8, 1.0)
LOGGED: list[str] = []
"""What the last `collect` logged."""


def collect(monkeypatch: pytest.MonkeyPatch, groups: list[list[float | Score]], *, prompts: int, rounds: int):
    """A step's sampling, where the n-th problem drawn gets the n-th group of rewards, or of whole scores."""
    stream = iter([Prompt(Item(index), str(index), [1]) for index in range(len(groups))])
    LOGGED.clear()
    monkeypatch.setattr(collecting, "training_stream", lambda config, tasks, progress: stream)
    seeds = []

    def generate(model, engine, batch, samples, params, *, seed, on_progress, stop):
        seeds.append(seed)
        return [(prompt, Generation([2], [-1.0], True)) for prompt in batch for _ in range(samples)]

    def score(rollouts, tokenizer, pools, *, group_size, max_failure_rate, on_failure):
        values = [value for prompt in rollouts[:: len(groups[0])] for value in groups[prompt[0].item.ground_truth]]
        return [
            Rollout(prompt, rollout, "", value if isinstance(value, Score) else Score(value, value == 1.0))
            for (prompt, rollout), value in zip(rollouts, values, strict=True)
        ]

    monkeypatch.setattr(collecting, "generate", generate)
    monkeypatch.setattr(collecting, "score", score)
    config = TrainConfig(
        data=DataConfig(prompts_per_step=prompts, max_refill_rounds=rounds),
        rollout=RolloutConfig(group_size=len(groups[0])),
    )
    collector = RolloutCollector(config, fake_workers(log=LOGGED.append), TrainerState(), StopFlag())
    samples, kept = collector.sample(PARAMS, 1, StopFlag())
    drawn = len(groups) - len(list(stream))
    assert len(set(seeds)) == len(seeds)
    return [[sample.prompt.item.ground_truth for sample in part[:: len(groups[0])]] for part in (samples, kept)], drawn


MIXED, EQUAL = [1.0, 0.0], [0.0, 0.0]


def shaped(value: float, unshaped: float, *, masked: bool = False) -> Score:
    return Score(value, unshaped == 1.0, parts={"task": unshaped, "overlong": value - unshaped}, masked=masked)


# DAPO filters by correctness: lengths, which the shaped reward tells apart, are no reason to keep a group.
SAME_CORRECTNESS, MIXED_CORRECTNESS = [shaped(1.0, 1.0), shaped(0.4, 1.0)], [shaped(0.5, 1.0), shaped(0.5, 0.0)]
# What is masked does not count in the loss.
MASKED = shaped(0.0, 0.0, masked=True)
ONE_UNMASKED, TWO_UNMASKED = [shaped(1.0, 1.0), MASKED, MASKED], [shaped(1.0, 1.0), shaped(0.0, 0.0), MASKED]
ALL_MASKED = [shaped(1.0, 1.0, masked=True), MASKED, MASKED]


@pytest.mark.parametrize(
    ("groups", "prompts", "rounds", "drawn", "kept"),
    [
        ([MIXED, EQUAL, MIXED], 2, 0, 2, [0, 1]),  # without dynamic sampling every group is trained on
        ([EQUAL, MIXED, [1.0, 1.0], MIXED, EQUAL, MIXED, MIXED], 3, 5, 6, [1, 3, 5]),
        ([SAME_CORRECTNESS, MIXED_CORRECTNESS, MIXED_CORRECTNESS], 2, 2, 3, [1, 2]),
        ([ONE_UNMASKED, TWO_UNMASKED, ALL_MASKED, TWO_UNMASKED], 2, 1, 3, [1]),
        ([EQUAL, MIXED, EQUAL, EQUAL, MIXED], 2, 1, 3, [1]),  # the rounds have a limit
        ([EQUAL, MIXED, EQUAL, EQUAL, MIXED], 2, 2, 4, [1]),
        ([EQUAL, MIXED, EQUAL, EQUAL, MIXED], 2, 3, 5, [1, 4]),
    ],
)
def test_groups_of_equally_right_answers_are_replaced(groups, prompts, rounds, drawn, kept, monkeypatch) -> None:
    assert collect(monkeypatch, groups, prompts=prompts, rounds=rounds) == ([list(range(drawn)), kept], drawn)


@pytest.mark.fault(
    "F20",
    "All rewards of all groups are equal",
    made="each group's completions are equally wrong, in every round of dynamic sampling",
    seen="step 1: the answers within each of 6 groups are equally right",
    kept="the run goes on with advantages of 0; nothing is divided by 0",
)
def test_without_any_group_to_learn_from_the_step_still_has_a_batch(fault_row, monkeypatch) -> None:
    assert collect(monkeypatch, [EQUAL] * 6, prompts=2, rounds=2) == ([[0, 1, 2, 3, 4, 5], [0, 1]], 6)
    fault_row.check(LOGGED[0])
