"""Tasks with the problems of files: which rows are problems, in which order, and what is refused in one line."""

import math
import pickle

import pytest

from tests.sdk.rows import write_rows
from tinyzero_sdk import load_task
from tinyzero_sdk.data.build import write_dataset
from tinyzero_sdk.data.file_task import load_file_tasks
from tinyzero_sdk.errors import DataError, SettingsError
from tinyzero_sdk.seeds import split_of_key


def tinyzero_row(index, split, numbers=None, **changed):
    """A row as TinyZero's and verl's preprocessing of countdown writes it."""
    numbers = numbers or [index + 1, 2, 3]
    return {
        "target": sum(numbers),
        "nums": numbers,
        "data_source": "countdown",
        "prompt": [{"role": "user", "content": f"User: Using the numbers {numbers}, make {sum(numbers)}."}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": {"target": sum(numbers), "numbers": numbers}},
        "extra_info": {"split": split, "index": index},
        **changed,
    }


def write(path, rows):
    return str(write_rows(path, rows))


def load(*paths, name="countdown", **arguments):
    return load_file_tasks({name: load_task(name)}, *paths, **arguments)[name]


def targets(problems):
    return [item.ground_truth["target"] for item in problems]


TRAIN, TEST = [tinyzero_row(n, "train") for n in range(150)], [tinyzero_row(n, "test") for n in range(150, 170)]


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_rows_of_tinyzero_are_problems_with_their_own_prompts(tmp_path, ending):
    paths = write(tmp_path / f"train.{ending}", TRAIN), write(tmp_path / f"test.{ending}", TEST)
    task = load(*paths)
    assert sorted(targets(task.dataset("train"))) == sorted(row["target"] for row in TRAIN)
    item = next(task.dataset("test"))
    assert task.make_prompt(item, "compact") == TEST[item.data["nums"][0] - 151]["prompt"]
    assert task.item_key(item) == load_task("countdown").item_key(item)
    assert task.difficulty(item) == load_task("countdown").difficulty(item)
    assert task.score_completion(f"<answer>{'+'.join(map(str, item.data['nums']))}</answer>", item.ground_truth).correct
    assert targets(load(str(tmp_path)).dataset("test", 5)) == targets(task.dataset("test", 5))  # the folder
    assert type(pickle.loads(pickle.dumps(task))) is type(load_task("countdown"))


def test_the_task_makes_what_rows_as_published_lack(tmp_path):
    [item] = load(None, write(tmp_path / "test.parquet", [{"target": 19, "nums": [6, 13]}])).dataset("test")
    assert item.ground_truth == {"target": 19, "numbers": [6, 13]}
    task = load(write(tmp_path / "rows.jsonl", [tinyzero_row(3, "train", prompt=None), *TEST]))
    [item] = task.dataset("train")
    assert task.make_prompt(item, "chat") == load_task("countdown").make_prompt(item, "chat")
    assert math.isfinite(task.difficulty(item))


@pytest.mark.slow
def test_what_tinyzero_data_writes_gives_the_tasks_own_problems(tmp_path):
    own = load_task("countdown")
    write_dataset(own, tmp_path, sizes={"train": 60, "test": 20}, template="base")
    task = load(str(tmp_path))
    for split, size in (("train", 60), ("test", 20)):
        expected = {own.item_key(item): item for item in own.dataset(split, size)}
        found = {task.item_key(item): item for item in task.dataset(split)}
        assert {key: (item.ground_truth, item.data) for key, item in found.items()} == {
            key: (item.ground_truth, item.data) for key, item in expected.items()
        }
        for key, item in found.items():
            assert task.make_prompt(item) == [{"role": "user", "content": own.make_prompt(expected[key], "base")}]


def test_the_order_depends_on_the_seed_alone_and_any_position_can_be_resumed(tmp_path):
    task = load(write(tmp_path / "rows.jsonl", [*TRAIN, *TEST]))
    order = targets(task.dataset("train", seed=1))
    assert order == targets(task.dataset("train", seed=1))
    assert order != targets(task.dataset("train", seed=2))
    assert order[90:] == targets(task.dataset("train", seed=1, start=90))
    assert order[90:97] == targets(task.dataset("train", 7, seed=1, start=90))


def test_without_a_test_split_the_hash_of_the_key_decides_as_for_a_task(tmp_path):
    rows = [{key: value for key, value in row.items() if key != "extra_info"} for row in [*TRAIN, *TRAIN[:9]]]
    task = load(write(tmp_path / "rows.jsonl", rows), test_fraction=0.2)
    split = {part: list(task.dataset(part, test_fraction=0.2)) for part in ("train", "test")}
    assert len(split["train"]) + len(split["test"]) == len(TRAIN)  # the repeated rows come once
    for part, items in split.items():
        assert {split_of_key(task.item_key(item), 0.2) for item in items} == {part}
    divided = load(write(tmp_path / "divided.jsonl", [*TRAIN, *TEST]))
    with pytest.raises(SettingsError, match="already divided into train and test"):
        divided.dataset("test", test_fraction=0.2)


def test_a_task_whose_key_needs_what_rows_lack_goes_by_prompt_and_ground_truth(write_task, tmp_path):
    rows = [{"prompt": f"Say {n % 3}, {n}.", "ground_truth": n % 3} for n in range(30)]
    test = [{"prompt": "Say 1, 1.", "ground_truth": 2}]
    task = load(write(tmp_path / "a.jsonl", rows), write(tmp_path / "b.jsonl", test), name=write_task())
    assert len(list(task.dataset("train"))) == 30  # equal answers make no equal problems
    with pytest.raises(
        DataError, match=r"1 problem for training and held out as well.*a.jsonl:2 and .*b.jsonl:1; remove"
    ):
        load(str(tmp_path / "a.jsonl"), write(tmp_path / "b.jsonl", [rows[1]]), name=write_task())


def test_rows_go_to_the_task_that_they_name(tmp_path):
    others = [{**row, "data_source": "someone/other", "extra_info": {"split": "train"}} for row in TEST]
    rows = [*TRAIN, *others, tinyzero_row(0, "test", [90, 1]), tinyzero_row(0, "test", [91, 1], data_source="other")]
    path = write(tmp_path / "rows.jsonl", rows)
    tasks = {name: load_task("countdown") for name in ("countdown", "other")}
    for name, task in load_file_tasks(tasks, path).items():
        expected = TRAIN if name == "countdown" else others
        assert sorted(targets(task.dataset("train"))) == [row["target"] for row in expected]
    assert len(list(load(path).dataset("train"))) == len(TRAIN)  # the only task leaves out rows that name another
    with pytest.raises(DataError, match=r"data_source 'else' is none of the tasks countdown, other \(1 such rows\)"):
        load_file_tasks(tasks, write(tmp_path / "more.jsonl", [*rows, {**TRAIN[0], "data_source": "else"}]))


def test_a_scorer_that_cannot_use_the_ground_truth_is_found_without_the_hook_is_valid(write_task, tmp_path):
    code = "@hookimpl\ndef score(answer, ground_truth):\n    return float(answer == ground_truth['a'])\n"
    rows = [{"prompt": f"Say {n}.", "ground_truth": {"a": str(n)} if n else "0"} for n in range(3)]
    with pytest.raises(DataError, match=r"rows.jsonl:1: task 'say' has no such ground truth: 0 .*TypeError"):
        load(write(tmp_path / "rows.jsonl", rows), name=write_task(score=code))


def test_files_that_leave_a_split_empty_are_refused(tmp_path):
    train, test = write(tmp_path / "train.parquet", TRAIN), write(tmp_path / "test.parquet", TEST)
    with pytest.raises(DataError, match=r"test.parquet: none of 20 rows .* for training; .* data.path"):
        load(test)
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match=r"empty.jsonl: none of 150 rows .* for evaluation; .* data.test_path"):
        load(train, str(tmp_path / "empty.jsonl"))
    assert len(list(load(None, test).dataset("test"))) == len(TEST)


def test_a_difficulty_that_neither_row_nor_task_knows_is_unknown(write_task, tmp_path):
    code = "@hookimpl\ndef difficulty(item):\n    return item.data['steps']\n"
    rows = [{"prompt": f"{n}", "ground_truth": n, "extra_info": {"difficulty": 5} if n else {}} for n in range(40)]
    task = load(write(tmp_path / "rows.jsonl", rows), name=write_task(difficulty=code))
    found = {item.ground_truth: task.difficulty(item) for split in ("train", "test") for item in task.dataset(split)}
    assert (math.isnan(found.pop(0)), set(found.values())) == (True, {5})
