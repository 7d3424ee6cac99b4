"""Where problems come from: folders of every form, single files, and those that cannot be read."""

import datasets
import pytest

from tests.plugins.gsm8k.rows import SHARED, TEST, TRAIN, as_dataset, write_jsonl, write_repository
from tinyzero_gsm8k.sources import collect
from tinyzero_sdk import Item, load_task
from tinyzero_sdk.errors import DataError, SettingsError
from tinyzero_sdk.tasks.splits import iterate_split


def open_path(path):
    return load_task("gsm8k", options={"path": str(path)})


def questions(task, split):
    return {item.data["question"] for item in task.generate(split, 1000)}


def saved_splits(folder):
    datasets.DatasetDict(train=as_dataset(TRAIN), test=as_dataset(TEST)).save_to_disk(folder)
    return folder


def split_files(folder):
    write_jsonl(folder / "train.jsonl", TRAIN)
    return write_jsonl(folder / "test.jsonl", TEST).parent


def configuration(folder):
    return write_repository(folder) / "main"


FOLDERS = [write_repository, configuration, saved_splits, split_files]


@pytest.mark.parametrize("make", FOLDERS, ids=lambda make: make.__name__)
def test_a_folder_keeps_its_division(make, tmp_path):
    task = open_path(make(tmp_path / "data"))
    assert task.has_own_splits
    assert questions(task, "train") == {row["question"] for row in TRAIN}
    assert questions(task, "test") == {row["question"] for row in TEST}
    assert len(list(task.dataset("train", len(TRAIN)))) == len(TRAIN)
    item = next(item for item in task.dataset("train", 60) if item.ground_truth == "1007")
    assert (item.data["source"], task.difficulty(item)) == ("gsm8k", 1.0)
    assert task.solve(item) == "<think>It is 7 + 1000 = 1007.</think>\n<answer>1007</answer>"
    assert task.score_completion(item.data["answer"], item.ground_truth).correct


def test_a_question_of_both_splits_leaves_train(tmp_path):
    task = open_path(write_repository(tmp_path, train=[*TRAIN, SHARED]))
    assert questions(task, "train") == {row["question"] for row in TRAIN}
    assert len(questions(task, "test")) == len(TEST)
    assert collect({"train": [*TRAIN, SHARED, SHARED], "test": TEST}, "here").shared == 2
    keys = {split: {task.item_key(item) for item in task.generate(split, 99)} for split in ("train", "test")}
    assert not keys["train"] & keys["test"]


def test_data_without_splits_is_one_pool_that_is_divided(tmp_path):
    task = open_path(write_jsonl(tmp_path / "data.jsonl", TRAIN))
    assert not task.has_own_splits
    assert questions(task, "train") == questions(task, "test") == {row["question"] for row in TRAIN}
    parts = {"train": [], "test": []}
    for split, part in parts.items():
        part.extend(item.data["question"] for item in iterate_split(task, split, test_fraction=0.25))
    assert sorted(parts["train"] + parts["test"]) == sorted(row["question"] for row in TRAIN)


def test_the_seed_decides_the_order_and_blocks_change_nothing(tmp_path):
    task = open_path(split_files(tmp_path))
    items = list(task.generate("train", 100, seed=1))
    assert items != list(task.generate("train", 100, seed=2))
    assert items[10:20] == list(task.generate("train", 10, seed=1, start=10))
    assert list(task.generate("train", 10, start=60)) == []


def test_a_changed_file_is_read_again(tmp_path):
    path = write_jsonl(tmp_path / "data.jsonl", TRAIN)
    task = open_path(path)
    assert len(questions(task, "train")) == len(TRAIN)
    write_jsonl(path, TRAIN[:7])
    assert len(questions(task, "train")) == 7


def test_reading_a_folder_leaves_no_copy_and_asks_no_network(tmp_path, monkeypatch):
    import socket

    def refuse(*arguments):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    assert questions(open_path(write_repository(tmp_path / "data")), "test")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"question": "q"}', "problem 1: expected text in the columns question and answer"),
        ('{"question": "q", "answer": null}', "problem 1: expected text in the columns question and answer"),
        ('{"question": "q", "answer": "1"}', "problem 1: expected the answer to end in"),
        ('{"question": "q", "answer": "#### one"}', "problem 1: expected the answer to end in"),
    ],
)
def test_bad_rows_are_named(content, message, tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        open_path(path).generate("train", 1)


def test_a_folder_without_a_test_split_says_what_to_do(tmp_path):
    write_jsonl(tmp_path / "data" / "train.jsonl", TRAIN)
    task = open_path(tmp_path / "data")
    assert len(questions(task, "train")) == len(TRAIN)
    path = write_repository(tmp_path / "bad", test=[TEST[0], {"question": "q", "answer": "none"}])
    with pytest.raises(DataError, match="split test, problem 2: expected the answer to end in"):
        open_path(path).generate("train", 1)
    with pytest.raises(DataError, match=r"has no test problems, its splits are train; name its files train and test"):
        task.generate("test", 1)


def test_a_path_for_synthetic_problems_is_refused():
    with pytest.raises(SettingsError, match="no effect"):
        load_task("gsm8k", options={"source": "synthetic", "path": "x.jsonl"})


def test_reworded_spacing_is_the_same_problem():
    task = load_task("gsm8k")
    first, second = (
        Item("1", {"question": text, "answer": "#### 1"}) for text in ("How  many\nare IT?", "how many are it?")
    )
    assert task.item_key(first) == task.item_key(second)
