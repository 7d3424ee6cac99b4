"""Splits and the builder of datasets: the same problems for any block size and number of workers."""

from dataclasses import dataclass
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sdk.conftest import options_source
from tinyzero_sdk import Item, load_task
from tinyzero_sdk.data.build import write_dataset
from tinyzero_sdk.data.files import read_rows
from tinyzero_sdk.data.rows import row_to_item
from tinyzero_sdk.errors import DataError, ExhaustedError, SettingsError, TinyZeroError
from tinyzero_sdk.seeds import split_of_key
from tinyzero_sdk.tasks import splits
from tinyzero_sdk.tasks.splits import SplitFilter, iterate_split

OPTIONS = options_source("keys: int = 10**9", 'shape: str = "same"', 'fault: str = ""')
PROBLEMS = """
import os

@hookimpl
def generate_dataset(start, size, options):
    for number in range(start, start + size):
        if options.fault and number == 700:
            if options.fault == "exit":
                os._exit(1)
            raise RuntimeError("no more ideas")
        number = number * 7919 % options.keys
        truth = {"n": number} if options.shape == "same" or number % 2 else {"m": number}
        yield Item(truth, {"number": number / 2})
"""
PROMPT = """
@hookimpl
def make_prompt(item, template):
    text = f"{template}: how much is {item.data['number']} + {item.data['number']}?"
    return [{"role": "system", "content": "Add."}, {"role": "user", "content": text}] if template == "chat" else text
"""


@pytest.fixture
def task_file(write_task):
    return write_task("halves", options=OPTIONS, generate_dataset=PROBLEMS, make_prompt=PROMPT)


TRAIN = 1500  # rows of a training file here: several blocks for each worker


@dataclass
class Numbers:
    """Stands in for a Task whose keys are given numbers."""

    keys: list[int]
    endless: bool = False
    name: str = "numbers"
    has_own_splits: bool = False

    def generate(self, split, size, *, seed, start):
        if self.endless:
            return [Item(self.keys[place % len(self.keys)]) for place in range(start, start + size)]
        return [Item(key) for key in self.keys[start : start + size]]

    def item_key(self, item):
        return str(item.ground_truth)


def problems(task, split, **arguments):
    """All problems of a split, and the error that ends them."""
    found = []
    try:
        for item in iterate_split(task, split, **arguments):
            found.append(item.ground_truth)
    except DataError as error:
        return found, str(error)
    return found, ""


@given(
    keys=st.lists(st.integers(0, 40), max_size=200),
    fraction=st.sampled_from([1 / 16, 0.5]),
    block=st.integers(1, 300),
    split=st.sampled_from(["train", "test"]),
)
def test_split_is_the_candidates_in_order_without_repeats_whatever_the_block(keys, fraction, block, split):
    expected = [key for key in dict.fromkeys(keys) if split_of_key(str(key), fraction) == split]
    assert problems(Numbers(keys), split, test_fraction=fraction, block=block) == (expected, "")
    found, error = problems(Numbers(keys), split, size=len(expected) + 1, test_fraction=fraction, block=block)
    assert found == expected
    assert f"only {len(expected)} different" in error


def test_exhausted_task_says_how_many_problems_it_has_and_what_to_type():
    task = Numbers(list(range(100)), endless=True)
    there = len(problems(task, "train")[0])
    with pytest.raises(DataError, match=rf"numbers has only {there} different train problems, 1,000 were requested"):
        list(iterate_split(task, "train", size=1000))
    assert len(list(iterate_split(task, "train", size=there))) == there
    with pytest.raises(ExhaustedError, match=r"--size 100, or --size all\).*change the test fraction"):
        list(iterate_split(Numbers(list(range(107)), endless=True), "train", size=1000))
    with pytest.raises(ExhaustedError, match=r"100 different test .*--test-size 100, or --test-size all\)$"):
        list(iterate_split(Numbers(list(range(100)), has_own_splits=True), "test", size=1000))


def test_patience_ends_with_so_many_repeats_after_the_last_new_problem():
    patient = SplitFilter(Numbers([], has_own_splits=True), "train", size=None, test_fraction=1 / 16)
    assert list(patient.admit(["a"], [0], 1024, False)) == [0]
    with pytest.raises(ExhaustedError, match="the last 1,024 candidates were all repeats"):
        list(patient.admit([], [], 1025, False))


def test_a_split_of_next_to_nothing_is_not_searched_for_without_end(monkeypatch):
    monkeypatch.setattr(splits, "_LEAST_FRACTION", 0.5)  # to search for a moment
    task = Numbers(list(range(100)), endless=True)
    with pytest.raises(ExhaustedError, match=r"0 different test .*all repeats or of the other split\); request fewer"):
        list(iterate_split(task, "test", size=5, test_fraction=1e-9))


@pytest.mark.parametrize("fraction", [0, 1, -0.1, float("nan")])
def test_test_fraction_that_leaves_a_split_empty_is_refused(fraction):
    with pytest.raises(SettingsError, match="between 0 and 1"):
        iterate_split(Numbers([1]), "train", test_fraction=fraction)


def build(task, output, workers=1, **arguments):
    sizes = {"train": TRAIN, "test": 100}
    reports = write_dataset(task, output, sizes=sizes, workers=workers, **arguments)
    assert {split: report.rows for split, report in reports.items()} == sizes
    return {path.name: path.read_bytes() for path in output.iterdir()}


@pytest.mark.slow
def test_files_are_the_same_bytes_for_any_number_of_workers(task_file, tmp_path):
    task = load_task(task_file, options={"keys": 2000})
    one, three = (build(task, tmp_path / str(workers), workers) for workers in (1, 3))
    assert one == three
    assert set(one) == {"train.parquet", "test.parquet"}


@pytest.mark.slow
def test_files_hold_what_iterate_gives_and_share_no_problem(task_file, tmp_path):
    task = load_task(task_file, options={"keys": 4000})
    build(task, tmp_path, seed=5)
    train, test = (list(read_rows(tmp_path / f"{split}.parquet")) for split in ("train", "test"))
    assert [row_to_item(row) for row in train] == list(islice(iterate_split(task, "train", seed=5), TRAIN))
    assert not {row["extra_info"]["key"] for row in train} & {row["extra_info"]["key"] for row in test}
    assert [row["extra_info"]["index"] for row in test] == list(range(100))


@pytest.mark.parametrize("template", [pytest.param("base", marks=pytest.mark.slow), "chat"])
def test_json_lines_and_parquet_hold_the_same_rows(task_file, tmp_path, template):
    task = load_task(task_file)
    build(task, tmp_path, template=template)
    build(task, tmp_path, template=template, format="jsonl")
    for split in ("train", "test"):
        assert list(read_rows(tmp_path / f"{split}.jsonl")) == list(read_rows(tmp_path / f"{split}.parquet"))


@pytest.mark.slow
def test_ground_truths_of_several_shapes_need_json_lines(task_file, tmp_path):
    task = load_task(task_file, options={"shape": "mixed"})
    with pytest.raises(DataError, match="--format jsonl"):
        build(task, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["halves.py"]
    build(task, tmp_path, format="jsonl")
    truths = [row["reward_model"]["ground_truth"] for row in read_rows(tmp_path / "train.jsonl")]
    assert {tuple(truth) for truth in truths} == {("n",), ("m",)}


RAISED = r"generate_dataset raised RuntimeError: no more ideas \(.*halves\.py:\d+\)"


@pytest.mark.parametrize(
    ("options", "workers", "message"),
    [
        ({"fault": "raise"}, 1, RAISED),
        pytest.param({"fault": "raise"}, 2, RAISED, marks=pytest.mark.slow),
        pytest.param({"fault": "exit"}, 2, "died while task 'halves'", marks=pytest.mark.slow),
        ({"keys": 1000}, 1, "different train problems, 1,500 were requested"),
    ],
)
def test_task_that_fails_or_is_too_small_leaves_no_file(task_file, tmp_path, options, workers, message):
    with pytest.raises(TinyZeroError, match=message):
        build(load_task(task_file, options=options), tmp_path, workers)
    assert [path.name for path in tmp_path.iterdir()] == ["halves.py"]
