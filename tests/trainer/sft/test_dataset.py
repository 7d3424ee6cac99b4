"""Demonstrations as packed batches: nothing is lost or mixed, in any number of processes."""

import multiprocessing
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.trainer import preloaded
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.settings import build
from tinyzero_trainer.config.sft import SftConfig
from tinyzero_trainer.config.tasks import load_tasks
from tinyzero_trainer.sft import dataset as demonstrations
from tinyzero_trainer.sft.dataset import BatchSource, Example, batch_stream, pack

LENGTH, PAD = 16, 999
TOKENS = st.lists(st.integers(0, 99), min_size=1, max_size=LENGTH // 2)


def source(tasks: dict, **training: object) -> BatchSource:
    values = {"tasks": tasks, "training": {"batch_size": 4, "template": "base", "max_tokens": 8} | training}
    config = build(SftConfig, values)
    return BatchSource(config, tuple(load_tasks(config.task_specs).values()))


@given(st.lists(st.builds(Example, TOKENS, TOKENS), max_size=20), st.integers(1, 5))
def test_every_example_is_in_some_row_whole_and_once(examples: list[Example], multiple: int) -> None:
    batch = pack(examples, length=LENGTH, pad_id=PAD, multiple=multiple)
    assert len(batch.tokens) % multiple == 0
    found = []
    for row, owners, positions in zip(batch.tokens, batch.owners, batch.positions, strict=True):
        for owner in range(1, owners.max() + 1):
            here = owners == owner
            assert positions[here].tolist() == list(range(here.sum()))
            found.append(row[here].tolist())
        assert (row[owners == 0] == PAD).all()
    assert sorted(found) == sorted(example.prompt + example.demonstration for example in examples)
    targets = batch.tokens.ravel()[batch.predicts + 1]
    assert sorted(targets.tolist()) == sorted(token for example in examples for token in example.demonstration)
    assert (batch.owners.ravel()[batch.predicts] == batch.owners.ravel()[batch.predicts + 1]).all()


def test_rows_are_filled_before_new_ones_begin() -> None:
    examples = [Example([1] * size, [2] * size) for size in (3, 5, 4, 4, 1, 7)]
    assert pack(examples, length=LENGTH, pad_id=PAD).tokens.shape == (3, LENGTH)


@pytest.mark.slow
def test_a_batch_has_the_tasks_in_their_shares(toy_task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = source({"one": {"task": toy_task, "weight": 2}, "two": {"task": toy_task, "options": {"limit": 9}}})
    seen: list[int] = []
    for place, task in enumerate(made.tasks):
        demonstrate = task.demonstrate
        task.demonstrate = lambda item, seed, place=place, make=demonstrate: (seen.append(place), make(item, seed))[1]
    batches = made.batches()
    assert [int(next(batches).owners.max(axis=1).sum()) for _ in range(3)] == [4, 4, 4]
    assert (seen.count(0), seen.count(1)) == (8, 4)


def test_demonstrations_that_are_all_too_long_are_refused(toy_task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demonstrations, "MOST_PROBLEMS", 50)
    for size, tried in [(4, 64), (100, 100)]:
        made = source({"one": {"task": toy_task}}, max_tokens=2, batch_size=size)
        message = rf"all of {tried} demonstrations .* longer than training\.max_tokens=2 tokens"
        with pytest.raises(TinyZeroError, match=message):
            next(made.batches())


def test_a_task_whose_only_demonstration_is_too_long_has_another_in_its_place(toy_task, monkeypatch):
    monkeypatch.setattr(demonstrations, "MOST_PROBLEMS", 50)

    def made() -> BatchSource:
        shares = {"one": {"task": toy_task, "weight": 3}, "rare": {"task": toy_task}}
        found = source(shares, max_tokens=12)
        demonstrate = found.tasks[1].demonstrate
        found.tasks[1].demonstrate = lambda item, seed: demonstrate(item, seed) + "9" * (30 if seed % 4 else 0)
        return found

    here = made().batches()
    batches = [next(here) for _ in range(12)]
    assert {int(batch.owners.max(axis=1).sum()) for batch in batches} == {4}
    places = [made().batches(place, 3) for place in range(3)]  # by any worker
    for number, batch in enumerate(batches):
        assert np.array_equal(next(places[number % 3]).tokens, batch.tokens)


@pytest.fixture
def preloaded_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes in which what takes long is imported already, once for all tests."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preloaded.__name__])

    def load(made: BatchSource, num_workers: int, **options: Any) -> DataLoader:
        options |= {"multiprocessing_context": context} if num_workers else {}
        return DataLoader(made, num_workers=num_workers, **options)

    monkeypatch.setattr(demonstrations, "DataLoader", load)


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded_workers")
def test_any_number_of_workers_makes_the_same_batches(toy_task: str) -> None:
    made = source({"one": {"task": toy_task, "weight": 2}, "two": {"task": toy_task, "options": {"limit": 9}}})
    streams = []
    for workers in (0, 2):
        with closing(batch_stream(made, workers)) as batches:
            streams.append([next(batches) for _ in range(5)])
    for batch, of_workers in zip(*streams, strict=True):
        for name in ("tokens", "owners", "positions", "predicts"):
            assert np.array_equal(getattr(batch, name), getattr(of_workers, name))


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded_workers")
def test_the_error_that_stops_a_worker_is_raised(mute_task: str) -> None:
    with (
        closing(batch_stream(source({"one": {"task": mute_task}}), 1)) as batches,
        pytest.raises(TinyZeroError, match="gives no demonstrations"),
    ):
        next(batches)
