"""`tinyzero data` and `tinyzero sample`, as they are typed."""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.sdk.conftest import options_source

MULTIPLES = """
@hookimpl
def generate_dataset(start, size, options):
    return (Item(number * options.step, {"number": number * options.step}) for number in range(start, start + size))

@hookimpl
def solve(item):
    return f"[bold]so[/] <answer>{item.ground_truth}</answer>"
"""

OWN_SPLITS = """
@hookimpl
def has_own_splits():
    return True

@hookimpl
def generate_dataset(start, size, split):
    numbers = range(30) if split == "train" else range(100, 107)
    return (Item(number, {"number": number}) for number in numbers[start : start + size])
"""


@pytest.fixture
def task(write_task):
    return write_task(extra=options_source("step: int = 1"), generate_dataset=MULTIPLES)


def test_data_writes_both_splits_and_keeps_what_is_there(run, task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output = Path("new/data")  # short, so that the table need not break it
    code, out, err = run("data", "--task", task, "--size", 50, "--test-size", 5, "--output", output, "task.step=7")
    assert (code, err) == (0, "")
    assert "new/data/train.parquet" in out
    assert " 50 " in out
    assert sorted(path.name for path in output.iterdir()) == ["test.parquet", "train.parquet"]
    assert pq.read_table(output / "test.parquet")["number"].to_pylist()[0] % 7 == 0
    words = ["data", "--task", task, "--size", 5, "--test-size", 5, "--output", output]
    assert "train.parquet already exists" in run(*words)[2].replace("\n", " ")
    assert run(*words, "--overwrite")[0] == 0


def test_data_takes_every_option(run, task, tmp_path):
    words = ["data", "-t", task, "-o", tmp_path / "out", "--size", 20, "--test-size", 0, "--seed", 3, "--workers", 2]
    code, *_ = run(*words, "--test-fraction", 0.5, "--template", "compact", "--format", "jsonl")
    assert code == 0
    (path,) = (tmp_path / "out").iterdir()
    row = json.loads(path.read_text().splitlines()[-1])
    assert row["prompt"] == [{"role": "user", "content": f"compact: say {row['number']}"}]
    assert row["number"] > 30  # every second problem is held out


def test_data_writes_all_there_is(run, write_task, tmp_path):
    task = write_task(generate_dataset=OWN_SPLITS)
    words = ["data", "-t", task, "-o", tmp_path / "out", "--workers", 1]
    code, _, err = run(*words)
    assert code == 2
    assert "--size 30, or --size all" in " ".join(err.split())
    code, _, err = run(*words, "--size", "all", "--test-size", "all", "--test-fraction", 0.5)
    assert code == 2
    assert "has no effect" in err
    assert run(*words, "--size", "all", "--test-size", "all")[0] == 0
    assert [pq.read_metadata(tmp_path / "out" / f"{split}.parquet").num_rows for split in ("train", "test")] == [30, 7]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--size", "many"], "--size: got 'many', expected a number of problems, or all"),
        (["--test-size", "-1"], "--test-size: got '-1', expected a number of problems, or all"),
        (["--size", "0", "--test-size", "0"], "at least one problem"),
        (["--test-fraction", "1"], "between 0 and 1"),
        (["step=3"], "unknown key 'step'"),
        (["task.stop=3"], "did you mean 'task.step'"),
        (["task.step=0"], "only 1 different train problems"),
    ],
)
def test_wrong_use_is_one_line_on_stderr(run, task, tmp_path, words, problem):
    code, out, err = run("data", "-t", task, "-o", tmp_path / "out", *words)
    assert (code, out) == (2, "")
    assert problem in err
    assert len(err.splitlines()) == 1


def test_sample_shows_prompt_truth_and_gold_completion(run, task, write_task):
    code, out, err = run("sample", "--task", task, "-n", 2, "--template", "chat")
    assert (code, err) == (0, "")
    assert out.count("prompt (user)\n  chat: say ") == 2
    assert "gold completion, scores 1 (ok)\n  [bold]so[/] <answer>0</answer>" in out
    assert max(map(len, out.splitlines())) <= 80
    code, out, _ = run("sample", "--task", write_task("no_solutions"), "-n", 1)
    assert (code, "gold completion" in out) == (0, False)


def test_sample_shows_why_the_scorer_fails_on_a_gold_completion(run, write_task):
    solve = "@hookimpl\ndef solve(item):\n    return '<answer>1</answer>'"
    path = write_task(score="@hookimpl\ndef score(answer, ground_truth):\n    return int('x')", solve=solve)
    code, out, _ = run("sample", "--task", path, "-n", 1)
    assert code == 1
    assert "the scorer failed on it: ValueError: invalid literal" in out
    code, out, _ = run("sample", "--task", path, "-n", 1, "--json")
    assert code == 1
    assert re.search(r"say\.py:\d+\)$", json.loads(out)[0]["error"])


def test_sample_shows_demonstrations_and_how_many_are_right(run, write_task):
    demonstrate = (
        "@hookimpl\ndef demonstrate(item, seed):\n    return f'<answer>{item.ground_truth + seed % 2}</answer>'"
    )
    path = write_task(extra=demonstrate)
    code, out, _ = run("sample", "--task", path, "-n", 4)
    assert code == 0
    assert (out.count("demonstration, scores 1 (ok)"), out.count("demonstration, scores 0 (wrong)")) == (2, 2)
    assert out.splitlines()[-1] == "2 of 4 demonstrations right"
    first = json.loads(run("sample", "--task", path, "-n", 1, "--json")[1])[0]["demonstration"]
    assert (first["score"], first["reason"]) == (1.0, "ok")


def test_sample_prints_json(run, task):
    code, out, _ = run("sample", "--task", task, "-n", 3, "--split", "test", "--json", "task.step=5")
    problems = json.loads(out)
    assert code == 0
    assert len(problems) == 3
    first = problems[0]
    assert first["ground_truth"] % 5 == 0
    assert first["prompt"] == f"base: say {first['ground_truth']}"
    assert (first["score"], first["reason"]) == (1.0, "ok")


@pytest.mark.slow
@pytest.mark.parametrize("command", [("sample", "-n", "1"), ("check", "--only", "prompts-complete", "--examples", "1")])
def test_a_task_is_named_by_a_word_or_by_a_flag(run, write_task, tmp_path, command):
    path = write_task("say")
    by_word, by_flag = run(*command, path), run(*command, "--task", path)
    assert by_word[0] == by_flag[0] == 0
    assert by_word[1].split()[0] == by_flag[1].split()[0] == "say"
    assert "error: no task is named; give its name or the path of its file" in run(*command)[2]
    assert f"got the tasks {path} and countdown; give one" in run(*command, "countdown", "--task", path)[2]
