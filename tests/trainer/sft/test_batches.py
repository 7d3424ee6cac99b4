"""Batches of examples: tasks in their shares, none too long, the same from any number of processes and any step."""

import multiprocessing
import os
import signal
from contextlib import closing
from typing import Any

import pytest
from torch.utils.data import DataLoader

from tests.faults import Faults
from tests.trainer import preloaded
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.config.sft import compose_sft
from tinyzero_trainer.config.tasks import load_tasks
from tinyzero_trainer.models.new_model import build_tokenizer
from tinyzero_trainer.sft import batches as batching
from tinyzero_trainer.sft import examples as of_tasks
from tinyzero_trainer.sft.batches import Batches, batch_stream
from tinyzero_trainer.sft.examples import Encoder

TOKENIZER = build_tokenizer()


def batches_of(tasks: dict, first: int = 0, **data: object) -> Batches:
    values = {"tasks": tasks, "data": {"batch_size": 4, "prompt_template": "base"} | data}
    config = compose_sft(values)
    encoder = Encoder(TOKENIZER, {TOKENIZER.eos_token_id})
    return Batches(config, load_tasks(config.task_specs), encoder, first=first)


@pytest.fixture
def two(toy_task: str) -> dict:
    return {"one": {"task": toy_task, "weight": 2}, "two": {"task": toy_task, "options": {"limit": 9}}}


def test_a_batch_has_the_tasks_in_their_shares(two: dict) -> None:
    made = batches_of(two).batches()
    names = [[example.prompt.task for example in next(made)] for _ in range(3)]
    assert [len(batch) for batch in names] == [4, 4, 4]
    assert [name for batch in names for name in batch].count("one") == 8


def test_a_resumed_run_and_each_worker_has_the_batches_of_a_whole_one(two: dict) -> None:
    made = batches_of(two).batches()
    whole = [next(made) for _ in range(7)]
    assert len({tuple(example.text for example in batch) for batch in whole}) == 7
    resumed = batches_of(two, first=4).batches()
    assert [next(resumed) for _ in range(3)] == whole[4:]
    workers = [batches_of(two, first=1).batches(worker, 3) for worker in range(3)]
    assert [next(workers[number % 3]) for number in range(6)] == whole[1:]


def test_examples_that_are_all_too_long_are_refused(toy_task: str) -> None:
    with pytest.raises(TinyZeroError, match=r"all of 68 examples of task 'one' .* 7 tokens; raise data\.max"):
        next(batches_of({"one": {"task": toy_task}}, max_length=7).batches())


@pytest.mark.slow
def test_a_task_whose_only_example_is_too_long_has_another_in_its_place(
    toy_task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_tasks, "MOST_PROBLEMS", 50)

    def made(first: int = 0) -> Batches:
        found = batches_of({"one": {"task": toy_task, "weight": 3}, "rare": {"task": toy_task}}, first, max_length=30)
        demonstrate = found.tasks["rare"].demonstrate
        found.tasks["rare"].demonstrate = lambda item, seed: demonstrate(item, seed) + "9" * (60 if seed % 4 else 0)
        return found

    here = made().batches()
    whole = [next(here) for _ in range(12)]
    assert {len(batch) for batch in whole} == {4}
    assert [next(made(first).batches()) for first in range(12)] == whole


def test_the_hook_decides_what_is_learned(toy_task: str, mute_task: str) -> None:
    with pytest.raises(TinyZeroError, match="task 'mute' makes no examples to learn from; add a hook `demonstrate` or"):
        next(batches_of({"mute": {"task": mute_task}}).batches())
    with pytest.raises(TinyZeroError, match="add a hook `solve`, or give a file of examples"):
        next(batches_of({"toy": {"task": toy_task}}, hook="solve").batches())
    solved = next(batches_of({"countdown": {"task": "countdown"}}, hook="solve", prompt_template="base").batches())
    assert all(example.text.endswith("</answer>") for example in solved)


@pytest.fixture
def preloaded_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes in which what takes long is imported already, once for all tests."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preloaded.__name__])

    def load(made: Batches, num_workers: int, **options: Any) -> DataLoader:
        options |= {"multiprocessing_context": context} if num_workers else {}
        return DataLoader(made, num_workers=num_workers, **options)

    monkeypatch.setattr(batching, "DataLoader", load)


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded_workers")
def test_any_number_of_processes_makes_the_same_batches(two: dict) -> None:
    streams = []
    for workers in (0, 2):
        with closing(batch_stream(batches_of(two), workers)) as batches:
            streams.append([next(batches) for _ in range(5)])
    assert streams[0] == streams[1]


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded_workers")
def test_the_error_that_stops_a_process_is_raised(mute_task: str) -> None:
    with (
        closing(batch_stream(batches_of({"one": {"task": mute_task}}), 1)) as batches,
        pytest.raises(TinyZeroError, match="makes no examples"),
    ):
        next(batches)


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded_workers")
@pytest.mark.fault(
    "sft",
    "A process that makes examples dies",
    made="SIGKILL to it",
    seen="a process that makes examples has died; messages above may say why",
    kept="every whole step",
    code=2,
)
def test_a_process_that_dies_ends_the_stream(two: dict, fault_row: Faults) -> None:
    def strike(number: int) -> None:
        for child in multiprocessing.active_children():
            os.kill(child.pid or 0, number)

    with closing(batch_stream(batches_of(two), 1)) as batches:
        next(batches)
        strike(signal.SIGSTOP)  # a generator that is closed waits for none
    for child in multiprocessing.active_children():
        child.join(30)
    assert not multiprocessing.active_children()
    with closing(batch_stream(batches_of(two), 1)) as batches:
        next(batches)
        strike(signal.SIGKILL)
        with pytest.raises(TinyZeroError) as error:
            list(batches)
    fault_row.check(error.value)
