"""Whole searches, on small tasks with one fault each: what is found, what survives, and how a search ends."""

import os
import signal
import threading
import time
from unittest.mock import Mock

import pytest

from tinyzero_sdk import load_task
from tinyzero_sdk.errors import SettingsError, TinyZeroError
from tinyzero_sdk.fuzz import fuzz
from tinyzero_sdk.fuzz.differential import DifferentialOracle
from tinyzero_sdk.fuzz.findings import MOST_GROUPS
from tinyzero_sdk.fuzz.presentations import Attempt
from tinyzero_sdk.testing.cases import Case
from tinyzero_sdk.workers import supervisor

SOLVE = """
@hookimpl
def solve(item):
    return f"So it is\\n<answer>{item.ground_truth}</answer>"
"""
ORACLE = """
@hookimpl
def oracle(answer, ground_truth):
    return answer.strip() == str(ground_truth)
"""


@pytest.fixture
def make(write_task):
    def make(name="say", **changes):
        return load_task(write_task(name, **{"solve": SOLVE, "oracle": ORACLE, **changes}))

    return make


def scorer(condition):
    return f"import os, signal, time\n\n@hookimpl\ndef score(answer, ground_truth):\n    return float({condition})\n"


def until(is_enough):
    """For `on_progress`: ends a search as Ctrl-C does, once it has done enough, however fast the machine is."""

    def stop(report):
        if is_enough(report):
            raise KeyboardInterrupt

    return stop


def only(report):
    (found,) = report.findings
    return found


@pytest.mark.slow
def test_a_corpus_is_tried_first_and_mutated(make):
    """A hole that no search finds by itself, such as one that a model found in training."""
    condition = "answer == str(ground_truth) or answer.startswith('I am quite sure it is right')"
    valid = "@hookimpl\ndef is_valid(ground_truth):\n    return True\n"
    task = make(score=scorer(condition) + valid)
    truth = next(task.dataset("train")).ground_truth
    case = Case("<answer>I am quite sure it is right, as always</answer>", truth, correct=False)
    report = fuzz(task, seconds=60, corpus=[case], on_progress=until(lambda report: report.findings))
    assert len(only(report).completion) < len(case.completion)
    assert "I am quite sure" in only(report).completion


@pytest.mark.slow
def test_the_same_seed_finds_the_same(make):
    task = make(score=scorer("answer == str(ground_truth) or '_' in answer"))
    first, again = (fuzz(task, seconds=20, seed=7, stop_after=1).findings for _ in range(2))
    assert first == again
    assert "_" in first[0].completion


CAREFUL = "(answer == str(ground_truth))"
BAD_ORACLE = ORACLE.replace("return", "if '%' in answer:\n        {}\n    return")


FAULTS = [
    ("score", scorer(f"1 / ('*' not in answer) and {CAREFUL}"), "error", "ZeroDivisionError at say.py:", "*"),
    ("score", scorer(f"os._exit(3) if '%' in answer else {CAREFUL}"), "died", "", "%"),
    ("score", scorer(f"len(b'x' * (10**12 * ('%' in answer))) or {CAREFUL}"), "error", "MemoryError at say.py:", "%"),
    ("oracle", BAD_ORACLE.format("raise ValueError(answer)"), "oracle_error", "", "%"),
    ("oracle", BAD_ORACLE.format("while True: pass"), "timeout", "in the oracle", "%"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("hook", "code", "kind", "note", "sign"), FAULTS)
def test_a_fault_is_found_shrunk_and_named(make, hook, code, kind, note, sign):
    timeout = 0.3 if kind == "timeout" else 2.0  # a busy machine must not end what ends by itself
    found = only(fuzz(make(**{hook: code}), seconds=20, timeout=timeout, stop_after=1))
    assert (found.kind, found.note[: len(note)]) == (kind, note)
    assert sign in found.completion
    assert kind != "error" or (found.answer is None and len(found.completion) <= len("<answer>*</answer>"))


@pytest.mark.slow
def test_a_task_without_gold_is_searched_for_crashes(make):
    task = make(solve=None, oracle=None, score=scorer("1 / ('*' not in answer)"))
    assert only(fuzz(task, seconds=20, stop_after=1)).kind == "error"


@pytest.mark.parametrize(
    ("answer", "changes", "right"),
    [
        ("7", {}, True),
        ("8", {}, False),
        ("7", {"oracle": None}, None),
        ("7", {"extract_answer": "@hookimpl\ndef extract_answer(completion): raise ValueError(1)"}, None),
    ],
)
def test_where_the_scorer_raised_the_oracle_says_whether_it_was_right(make, answer, changes, right):
    differential = DifferentialOracle(make(score=scorer("1 / 0"), **changes), Mock())
    _, fault = differential.compare(Attempt(f"<answer>{answer}</answer>"), 7)
    assert (fault.kind, fault.right) == ("error", right)


@pytest.mark.parametrize(
    "bad",
    [
        *({name: value} for name in ("seconds", "timeout", "memory_limit_gb") for value in (0, float("nan"), 1e999)),
        {"workers": 0},
        {"seed": -1},
        {"stop_after": 0},
    ],
    ids=str,
)
def test_numbers_that_make_no_search_are_refused(make, bad):
    with pytest.raises(SettingsError, match=f"{next(iter(bad))}={next(iter(bad.values()))}"):
        fuzz(make(), **{"seconds": 1, **bad})


SLOW_ONCE = """
import os, time

def first(path):
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True

@hookimpl
def score(answer, ground_truth):
    if "%" in answer and first({path!r}):
        {what}
    return float(answer == str(ground_truth))
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["time.sleep(60)", "os._exit(3)"])
def test_only_what_fails_again_is_a_finding(make, tmp_path, what):
    mark = tmp_path / "was here"
    task = make(score=SLOW_ONCE.format(path=str(mark), what=what))
    report = fuzz(
        task, seconds=40, timeout=0.3, on_progress=until(lambda report: mark.exists() and report.tried > 9000)
    )
    assert (report.findings, mark.exists()) == ([], True)


@pytest.mark.slow
def test_a_scorer_that_hangs_costs_its_timeout_and_the_search_continues(make):
    task = make(
        score=scorer("(time.sleep(60) if '**' in answer else 0) or answer == str(ground_truth) or '_' in answer")
    )
    wanted = {"timeout", "wrong_rewarded"}
    enough = until(lambda report: {found.kind for found in report.findings} >= wanted)
    report = fuzz(task, seconds=30, timeout=0.3, on_progress=enough)
    assert {found.kind for found in report.findings} == wanted
    assert all("**" in found.completion for found in report.findings if found.kind == "timeout")


@pytest.mark.slow
def test_a_reward_that_is_rewarded_at_all_gives_few_findings(make):
    enough = until(lambda report: report.findings and report.tried > 5000)
    report = fuzz(make(score=scorer("True")), seconds=30, on_progress=enough)
    assert 0 < len(report.findings) <= MOST_GROUPS


@pytest.mark.slow
def test_without_an_oracle_presentations_and_crashes_are_searched(make):
    last_line = "@hookimpl\ndef extract_answer(completion):\n    return last_tagged(completion.split('\\n')[-1])\n"
    report = fuzz(make(oracle=None, extract_answer=last_line), seconds=20, stop_after=1)
    assert only(report).kind == "right_unrewarded"
    assert "a line break after it" in only(report).traits
    report = fuzz(make("fine", oracle=None), seconds=30, on_progress=until(lambda report: report.tried > 5000))
    assert (report.findings, report.tried > 5000) == ([], True)


@pytest.mark.slow
def test_lines_reached_lead_deeper(make):
    code = """
@hookimpl
def score(answer, ground_truth):
    if answer.count("+") >= 1:
        if answer.count("%") >= 1:
            if answer.count("~") >= 1:
                if answer.count("^") >= 1:
                    return 1.0
    return float(answer.strip() == str(ground_truth))
"""
    task = make(score=code)
    found = only(fuzz(task, seconds=60, seed=1, stop_after=1))
    assert {"+", "%", "~", "^"} <= set(found.completion)


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_found(make):
    task = make(score=scorer("True"))
    pressed = threading.Event()

    def press(report):
        if report.findings and not pressed.is_set():
            pressed.set()
            os.kill(os.getpid(), signal.SIGINT)

    started = time.monotonic()
    report = fuzz(task, seconds=60, on_progress=press)
    assert report.interrupted
    assert report.findings
    assert time.monotonic() - started < 30


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "message"),
    [("return []", r"no items|0 different train"), ("os._exit(1)", "before they try anything")],
)
def test_a_task_that_makes_no_problem_is_an_error(make, statement, message):
    code = f"import os\n\n@hookimpl\ndef generate_dataset(size):\n    {statement}\n"
    with pytest.raises(TinyZeroError, match=message):
        fuzz(make(generate_dataset=code), seconds=30)


def test_no_process_outlives_a_search(make, monkeypatch):
    processes = []
    start = supervisor.WorkerProcess
    monkeypatch.setattr(supervisor, "WorkerProcess", lambda *args: processes.append(start(*args)) or processes[-1])
    fuzz(make(), seconds=0.2, workers=2)
    assert len(processes) == 2
    assert all(process._process.returncode is not None for process in processes)
