"""Unsafe scorers: where they run, where they do not, and the messages."""

import json
import pickle

import pytest

from tinyzero_sdk import load_task
from tinyzero_sdk.errors import UnsafeScorerError

EVALUATES = """
@hookimpl
def info():
    return TaskInfo("Say a number.", unsafe_scorer="it evaluates it")

@hookimpl
def score(answer, ground_truth):
    return float(eval(answer) == ground_truth)

@hookimpl
def solve(item):
    return f"<answer>{item.ground_truth}</answer>"
"""
WHERE = "<answer>'tinyzero_sdk.workers.process' in __import__('sys').orig_argv</answer>"


@pytest.fixture
def unsafe(write_task):
    return write_task(score=EVALUATES)


def attack(mark):
    return f"<answer>open({str(mark)!r}, 'w').close()</answer>"


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("wrappers", [[], ["trace"]])
def test_it_never_runs_in_this_process(unsafe, allowed, wrappers, tmp_path):
    task = pickle.loads(pickle.dumps(load_task(unsafe, allow_unsafe_scorers=allowed, wrappers=wrappers)))
    assert task.allow_unsafe_scorers is allowed
    [item] = task.generate("train", 1)
    assert task.solve(item) == "<answer>0</answer>"
    mark = tmp_path / "ran"
    message = "does not run in this process; score in a ScoringPool" if allowed else "give --allow-unsafe-scorers"
    with pytest.raises(UnsafeScorerError, match=message):
        task.score_completion(attack(mark), 1)
    with pytest.raises(UnsafeScorerError, match=message):
        task.score(f"open({str(mark)!r}, 'w')", 1)
    assert not mark.exists()


@pytest.mark.slow
def test_score_refuses_it_in_one_line_unless_allowed(run, unsafe, tmp_path):
    outputs = tmp_path / "outputs.jsonl"
    outputs.write_text(json.dumps({"completion": WHERE, "ground_truth": True}))
    command = ("score", str(outputs), "--task", unsafe, "--output", str(tmp_path / "scored.jsonl"), "--workers", "1")
    code, _, err = run(*command)
    assert code == 2
    assert len(err.splitlines()) == 1
    assert "--allow-unsafe-scorers" in err
    assert not (tmp_path / "scored.jsonl").exists()
    assert run(*command, "--allow-unsafe-scorers")[0] == 0
    assert json.loads((tmp_path / "scored.jsonl").read_text())["correct"] is True


def test_data_sample_and_tasks_need_no_permission(run, unsafe, tmp_path):
    shown = "unsafe scorer: it evaluates it; it scores only with --allow-unsafe-scorers"
    assert shown in run("tasks", unsafe)[1]
    assert json.loads(run("tasks", unsafe, "--json")[1])["unsafe_scorer"] == "it evaluates it"
    assert run("data", "--task", unsafe, "--output", str(tmp_path), "--size", "2", "--test-size", "0")[0] == 0
    assert "gold completion, not scored: its scorer is unsafe" in run("sample", "--task", unsafe, "-n", "1")[1]
