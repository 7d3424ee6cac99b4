"""Groups in flight: which make a batch, how many there are, how old they become, what a checkpoint holds of them."""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.controller.fakes import FakeStream
from tinyzero_sdk import Item
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.checkpoint.store import DamagedCheckpointError
from tinyzero_trainer.controller.in_flight import (
    Admitted,
    GroupsInFlight,
    InFlight,
    choose,
    load_in_flight,
    save_in_flight,
)
from tinyzero_trainer.controller.length_control import LengthControlState
from tinyzero_trainer.data.prompts import StreamState
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.engine import EMPTY, Group, OnProgress
from tinyzero_trainer.types import Generation, Prompt

PARAMS = SamplingParams(9, logprobs=True)
DICE = st.builds(Random, st.integers(0, 2**32))


class FakeEngine:
    """Completes what was submitted in any order; a completion has one token, of the weights when it was begun."""

    def __init__(self, dice: Random, *, concurrent: bool = False) -> None:
        self.dice, self.concurrent, self.version = dice, concurrent, 0
        self.begun: dict[int, Group] = {}

    def load_weights(self, version: int) -> None:
        self.version = version

    def submit(self, groups: Sequence[Group]) -> None:
        self.begun |= {group.number: self.sampled(group) for group in groups}

    def sampled(self, group: Group) -> Group:
        token = Generation([group.number], [-1.0], False, ((self.version, 1),))
        return replace(group, completions=tuple(each if each.token_ids else token for each in group.completions))

    def advance(self, params: SamplingParams, on_progress: OnProgress) -> list[Group]:
        on_progress(0)
        numbers = self.dice.sample(sorted(self.begun), self.dice.randint(0, min(2, len(self.begun))))
        complete = [self.begun.pop(number) for number in numbers]
        return [
            replace(group, completions=tuple(replace(each, finished=True) for each in group.completions))
            for group in complete
        ]

    def unfinished(self) -> list[Group]:
        return [self.begun[number] for number in sorted(self.begun)]


def groups_of(
    engine: FakeEngine, level: int, size: int, steps: int, version: int = 0, saved: InFlight | None = None
) -> GroupsInFlight:
    config: Any = SimpleNamespace(
        data=SimpleNamespace(prompts_per_step=size),
        rollout=SimpleNamespace(max_async_level=level, group_size=2),
        run=SimpleNamespace(steps=steps, seed=0),
    )
    workers: Any = SimpleNamespace(engine=engine, language_model=SimpleNamespace(context=999, name="toy"))
    problems: Any = FakeStream({} if saved is None else saved.progress)
    return GroupsInFlight(config, workers, problems, version, saved)


def take(groups: GroupsInFlight, size: int, step: int, on_progress: OnProgress = lambda _: None) -> list[Generation]:
    """The batch of a step: one completion of each group."""
    with groups.collecting():
        taken = groups.take(size, step, PARAMS, on_progress)
    assert [prompt.item.ground_truth for prompt, _ in taken] == [each.token_ids[0] for _, each in taken]
    return [generation for _, generation in taken[::2]]


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 8), st.booleans(), DICE)
def test_no_token_is_too_old_and_every_problem_is_trained_once(
    level: int, size: int, steps: int, concurrent: bool, dice: Random
) -> None:
    """With a concurrent engine, a batch may be taken before the update of the one before, or after it."""
    engine = FakeEngine(dice, concurrent=concurrent)
    groups, trained = groups_of(engine, level, size, steps), list[int]()
    batch, taken_for = take(groups, size, 1), 1
    for step in range(1, steps + 1):
        trained += [each.token_ids[0] for each in batch]
        ages = [step - 1 - version for each in batch for version, _ in each.versions]
        assert len(batch) == size
        assert max(ages) <= level
        if concurrent and step < steps and dice.random() < 0.5:
            batch, taken_for = take(groups, size, step + 1), step + 1
        engine_had = len(engine.begun)
        groups.load_weights(step)
        assert len(groups) + size * (taken_for - step) <= (1 + level) * size
        assert engine_had <= (1 + level) * size
        if step < steps and taken_for == step:
            batch, taken_for = take(groups, size, step + 1), step + 1
    assert sorted(trained) == list(range(steps * size)), "in the order of problems, each once, none dropped"
    assert not len(groups)


@given(st.integers(1, 3), st.integers(1, 4), DICE)
def test_a_batch_waits_only_for_groups_that_would_be_too_old_for_the_next(level: int, size: int, dice: Random) -> None:
    def admitted(number: int, version: int) -> Admitted:
        group = Group(number, [1], (EMPTY,), 9, 0, 0)
        return Admitted(Prompt(Item(number), "", [1], "toy"), version, group)

    step = level + 2
    versions = sorted(dice.choices(range(step - level - 1, step), k=(1 + level) * size))
    every = [admitted(number, version) for number, version in enumerate(versions)]
    complete = dice.sample(every, dice.randint(0, len(every)))
    others = [each for each in every if each not in complete]
    chosen = choose(complete, others, step=step, count=size, prompts_per_step=size, level=level)

    def fits(left: Sequence[Admitted]) -> bool:
        """All that is left can still be trained in time."""
        return all(
            sum(each.version + 1 + level <= last for each in left) <= (last - step) * size
            for last in range(step, step + level + 2)
        )

    if chosen is not None:
        assert len(chosen) == size
        assert fits([each for each in every if each not in chosen])
        numbers = [each.group.number for each in chosen]
        assert numbers == sorted(numbers)
    elif len(complete) >= size:
        oldest = sorted(complete, key=lambda each: each.version)[:size]
        assert not fits([each for each in every if each not in oldest]), "any other choice leaves older ones"


def test_a_group_has_the_random_numbers_of_its_place_in_a_run_without() -> None:
    engine = FakeEngine(Random(0))
    take(groups_of(engine, 2, 3, steps=9), 3, 1)
    seeds = {group.number: (group.seed, group.prompt_index) for group in engine.begun.values()}
    assert len({seed for seed, _ in seeds.values()}) in (2, 3)
    assert all(index == number % 3 for number, (_, index) in seeds.items())


@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 9), DICE)
def test_what_interrupts_a_batch_leaves_all_groups_in_flight(level: int, size: int, calls: int, dice: Random) -> None:
    """Of an engine that samples only when asked to, as they were before; of another, as they are."""
    for concurrent in (False, True):
        engine = FakeEngine(dice, concurrent=concurrent)
        groups, left = groups_of(engine, level, size, steps=9), calls

        def on_progress(_: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise TinyZeroError("stopped")

        try:
            with groups.collecting():
                groups.take(size, 1, PARAMS, on_progress)
                raise TinyZeroError("the scorer failed")
        except TinyZeroError:
            pass
        saved = groups.snapshot(LengthControlState())
        numbers = [each.group.number for each in saved.groups]
        assert numbers == (list(range((1 + level) * size)) if concurrent else [])
        assert saved.progress["toy"].taken == len(numbers)
        resumed, trained = groups_of(FakeEngine(dice), level, size, steps=2, saved=saved), list[int]()
        for step in (1, 2):
            trained += [each.token_ids[0] for each in take(resumed, size, step)]
            resumed.load_weights(step)
        assert set(trained) <= set(range(max(2, 1 + level) * size))
        assert len(set(trained)) == 2 * size


def test_a_checkpoint_has_them_to_the_last_bit(tmp_path: Any) -> None:
    prompt = Prompt(Item(7, {"text": "\ud800"}), "\ud800", [1, 2], "toy", 3)
    completions = (Generation([4, 5], [-0.1, float("nan")], False, ((3, 1), (4, 1))), EMPTY)
    group = Group(11, [1, 2], completions, 64, 2**63 + 5, 2)
    control = LengthControlState(max_tokens=40, success_rate=0.1 + 0.2)
    before = InFlight([Admitted(prompt, 3, group)], {"toy": StreamState(taken=12)}, control)
    save_in_flight(before, tmp_path)
    after = load_in_flight(tmp_path / "in_flight.json")
    assert repr(after) == repr(before)  # NaN is not equal to itself
    # As they come from another process.
    arrays = replace(completions[0], token_ids=array("i", [4, 5]), logprobs=array("d", [-0.1, float("nan")]))
    received = replace(group, completions=(arrays, EMPTY))
    save_in_flight(InFlight([Admitted(prompt, 3, received)], before.progress, control), tmp_path)
    assert repr(load_in_flight(tmp_path / "in_flight.json")) == repr(before)
    assert load_in_flight(tmp_path / "other.json") is None
    (tmp_path / "in_flight.json").write_text('{"groups": 3}')
    with pytest.raises(DamagedCheckpointError, match=r"in_flight\.json"):
        load_in_flight(tmp_path / "in_flight.json")
