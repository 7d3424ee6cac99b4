"""Scorers that are coroutines: they overlap, are limited and repeated, and what they return is asked for once."""

import json
import os
import stat
import sys
from collections import Counter
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from tinyzero_sdk import Completion, ScorerLimits, TinyZeroError, load_task
from tinyzero_sdk.disk_cache import DiskCache
from tinyzero_sdk.records import Score
from tinyzero_sdk.scoring.pool import ScoringPool
from tinyzero_sdk.scoring.rescore import rescore_file
from tinyzero_sdk.scoring.score_file import score_file
from tinyzero_sdk.scoring.scored_table import read_scored_blocks
from tinyzero_sdk.tasks import async_scorer
from tinyzero_sdk.tasks.async_scorer import _pause

SCORE = """
import asyncio, json, pathlib, time
import numpy as np
BUSY = 0

@hookimpl
async def score(answer, ground_truth):
    global BUSY
    BUSY += 1
    with open(pathlib.Path(__file__).with_name("calls.jsonl"), "a") as file:
        file.write(json.dumps([answer, BUSY, time.monotonic()]) + "\\n")
    await asyncio.sleep(0.01)
    if answer == "blocks":
        time.sleep(100)
    BUSY -= 1
    if answer == "raises":
        raise RuntimeError("no answer")
    if answer == "refused":
        raise TinyZeroError("no money left")
    if answer == "late":
        await asyncio.sleep(100)
    if answer == "cancelled":
        raise asyncio.CancelledError
    if answer in ("nan", "inf", "99"):
        return float(answer)
    if answer in ("float32", "int64"):
        return getattr(np, answer)(1)
    if answer == "part":
        return Score(1.0, True, parts={"length": np.float32(0.5)})
    return Score(float(answer == str(ground_truth)), answer == str(ground_truth), parts={"length": float(len(answer))})
"""


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch, tmp_path):
    monkeypatch.setattr(async_scorer, "_pause", lambda state: 0.001)
    monkeypatch.setenv("TINYZERO_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def load(write_task):
    def load(**limits):
        return load_task(
            write_task(score=f"from tinyzero_sdk import TinyZeroError\n{SCORE}"), options={"limits": limits}
        )

    return load


@pytest.fixture
def calls(tmp_path):
    def calls():
        path = tmp_path / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    return calls


def texts(*answers):
    return [f"<answer>{answer}</answer>" for answer in answers]


def test_a_batch_overlaps_within_its_limit_and_equal_answers_are_asked_once(load, calls):
    task = load(concurrency=3)
    assert task.is_async
    assert task.info.limits == ScorerLimits(concurrency=3)
    given = [*texts(*range(8), 0, 0), "no answer"]
    task.prefetch(given, [0] * len(given))
    assert max(busy for _, busy, _ in calls()) == 3
    scores = [task.score_completion(text, 0) for text in given]
    assert [score.correct for score in scores] == [True, *[False] * 7, True, True, False]
    assert scores[0] == Score(1.0, correct=True, answer="0", parts={"length": 1.0})
    assert len(calls()) == 8


def test_another_process_asks_nothing_twice_and_another_task_does(load, calls, write_task):
    [text] = texts(3)
    assert load().score_completion(text, 3) == load(retries=7).score_completion(text, 3)
    assert len(calls()) == 1
    assert not load().score_completion(text, 4).correct
    changed = load_task(write_task(score=f"{SCORE}# changed"))
    assert changed.score_completion(text, 3).correct
    assert len(calls()) == 3


@pytest.mark.slow
def test_what_fails_is_an_error_of_the_task_and_is_asked_again(load, calls):
    task = load(retries=2, deadline=0.2)
    for answer, tries, message in (("raises", 3, "no answer"), ("refused", 1, "no money"), ("late", 1, "deadline=0.2")):
        before = len(calls())
        score = task.score_completion(texts(answer)[0], 0)
        assert (score.value, score.correct, score.reason) == (0.0, False, "error")
        assert len(calls()) - before == tries
        with pytest.raises((RuntimeError, TinyZeroError), match=message):
            task.score(answer, 0)
    assert task.first_error.splitlines()[-1].startswith("RuntimeError: no answer (")
    assert "say.py" in task.first_error.splitlines()[-1]
    assert "tenacity" not in task.first_error


def test_a_call_that_is_cancelled_from_within_costs_no_other(load, calls):
    task = load()
    given = texts("cancelled", 1, 2)
    task.prefetch(given, [1] * 3)
    scores = [task.score_completion(text, 1) for text in given]
    assert [score.reason for score in scores] == ["error", "ok", "wrong"]
    assert len(calls()) == 3
    assert task.first_error.splitlines()[-1].startswith("CancelledError")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [*dict.fromkeys(("float32", "int64", "part"), "ok").items(), *dict.fromkeys(("nan", "inf", "99"), "error").items()],
)
def test_valid_scores_of_any_number_type_are_kept_and_others_asked_again(load, calls, answer, reason):
    for _ in range(2):
        assert load().score_completion(texts(answer)[0], 1).reason == reason
    assert len(calls()) == (1 if reason == "ok" else 2)


def test_ground_truths_of_numpy_are_told_apart(load, calls):
    long = np.arange(2000)
    other = long.copy()
    other[1000] = 7
    for truth in (long, other, np.array([0.123456789]), np.array([0.1234567888]), {"0", "1"}, "{'0', '1'}"):
        load().score_completion(texts(3)[0], {"numbers": truth})
    assert len(calls()) == 6
    load().score_completion(texts(3)[0], {"numbers": long.tolist()})  # as read from JSON Lines
    assert len(calls()) == 6


def test_a_pause_is_not_shorter_than_a_server_asks_for():
    def pause(**headers):
        error = SimpleNamespace(response=SimpleNamespace(headers=headers))
        return _pause(Mock(outcome=Mock(exception=lambda: error), attempt_number=1))

    assert pause(**{"retry-after": "7"}) == 7.0
    assert 0.0 <= pause(**{"retry-after": "soon"}) <= 1.0
    assert 0.0 <= pause() <= 1.0


@pytest.mark.slow
def test_the_rate_is_kept(load, calls):
    task = load(requests_per_minute=60 * 50, concurrency=100)
    task.prefetch(texts(*range(70)), [0] * 70)
    begun = sorted(when for _, _, when in calls())
    assert begun[-1] - begun[0] >= 19 / 50  # a burst of one second's calls, then the rate


@pytest.mark.slow
def test_in_a_pool_what_blocks_the_others_is_the_only_one_that_fails(load, calls):
    answers = [*range(20), "raises", "blocks", *range(20, 40)]
    with ScoringPool(load(retries=0), workers=3, timeout=1.0) as pool:
        scores = pool.score([Completion(text) for text in texts(*answers)], answers)
    assert {answer: score.reason for answer, score in zip(answers, scores, strict=True) if not score.correct} == {
        "raises": "error",
        "blocks": "timeout",
    }
    assert pool.counts == {"error": 1, "timeout": 1}
    assert sum(answer in range(40) for answer in (int(a) for a, _, _ in calls() if a.isdigit())) < 120


def test_limits_and_hooks_that_cannot_be(load, write_task, monkeypatch):
    with pytest.raises(TinyZeroError, match=r"task\.limits\.concurrency: got 0"):
        load(concurrency=0)
    with pytest.raises(TinyZeroError, match=r"'task\.limits\.concurency'; did you mean"):
        load(concurency=1)
    with pytest.raises(TinyZeroError, match="difficulty is async; only score may be"):
        load_task(write_task(difficulty="@hookimpl\nasync def difficulty(item): return 0"))
    monkeypatch.setitem(sys.modules, "tenacity", None)
    monkeypatch.delitem(sys.modules, "tinyzero_sdk.tasks.async_scorer")
    with pytest.raises(TinyZeroError, match=r"needs tenacity: pip install 'tinyzero-sdk\[judge\]'"):
        load()


def test_a_cache_that_cannot_be_written_is_named(load, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TINYZERO_CACHE_DIR", str(tmp_path / "file"))
    task = load()
    assert task.score_completion(texts(1)[0], 1).reason == "error"
    assert "name a folder that can be written in TINYZERO_CACHE_DIR" in task.first_error


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_a_cache_is_its_users_alone(umask, tmp_path, monkeypatch):
    """Whatever the umask, and SQLite's own files too."""
    monkeypatch.setenv("TINYZERO_CACHE_DIR", str(tmp_path / "cache"))
    before = os.umask(umask)
    try:
        cache = DiskCache("judge")
        cache.put("key", 1.0)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "cache").iterdir()}
    assert modes == dict.fromkeys(("judge.sqlite", "judge.sqlite-wal", "judge.sqlite-shm"), 0o600)


@pytest.mark.slow
def test_a_row_whose_scorer_failed_has_no_score_and_is_in_no_number(load, tmp_path):
    rows = [{"completion": text, "ground_truth": 1} for text in texts(1, 1, 2, "raises")]
    source, output = tmp_path / "rows.jsonl", tmp_path / "scored.parquet"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = load(retries=0)
    report = score_file(task, source, output)
    assert (report.rows, report.unknown, report.accuracy, report.accuracy_of_all) == (4, 1, 2 / 3, 1 / 2)
    assert (report.summary.rows, report.summary.accuracy, report.is_clean) == (3, 2 / 3, False)
    assert report.summary.parts == {"length": 1.0}
    ignored = Counter()
    blocks = list(read_scored_blocks(output, ignored=ignored))
    assert ([len(block.numbers) for block in blocks], ignored) == ([3], {"without a score": 1})
    assert rescore_file(task, output).compared == 3
