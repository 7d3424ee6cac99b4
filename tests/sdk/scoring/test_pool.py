"""The scoring pool: whatever one answer does to its worker, all others get their score."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from math import inf, nan
from pathlib import Path

import pytest

from tinyzero_sdk import Completion, load_task
from tinyzero_sdk.errors import BrokenTaskError, SettingsError, VersionMismatchError
from tinyzero_sdk.scoring.pool import CompletionBatch, ScoringPool

HOSTILE_SCORE = """
import ctypes, os, re, signal, subprocess, sys, time

hoard = []

def loop(path):
    if path:
        open(f"{path}.{os.getpid()}", "w").close()
    9**9**9

def never_end():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass

def leave_child(path):
    child = subprocess.Popen(["sleep", "60"])
    open(path, "w").write(str(child.pid))
    time.sleep(60)

def log(path):
    print("scored", file=open(path, "a"), flush=True)
    time.sleep(0.1)

ACTIONS = {
    "sleep": lambda _: time.sleep(60),
    "loop": loop,
    "backtracking": lambda _: re.match("(a|a)*b", "a" * 60),
    "immortal": lambda _: never_end(),
    "os._exit": lambda _: os._exit(0),
    "sys.exit": lambda _: sys.exit(),
    "segfault": lambda _: os.kill(os.getpid(), signal.SIGSEGV),
    "huge": lambda _: bytearray(10**11),
    "hoard": lambda _: hoard.append(b"x" * (32 << 20)),
    "print": lambda _: (print("noise", flush=True), os.write(1, b"noise")),
    "child": leave_child,
    "log": log,
    "nap": lambda _: time.sleep(0.1),
    "fork": lambda _: os.fork(),
    "close": lambda _: os.closerange(3, 256),
}

@hookimpl
def score(answer, ground_truth):
    if answer == "change":
        ground_truth.clear()
    for action in answer.split(" and "):
        name, _, path = action.partition(" ")
        ACTIONS.get(name, lambda _: None)(path)
    return float(answer == str(ground_truth))
"""
REASONS = {
    **dict.fromkeys(("sleep", "loop", "backtracking", "immortal"), "timeout"),
    **dict.fromkeys(("os._exit", "sys.exit", "segfault", "huge"), "error"),
    **dict.fromkeys(("print", "change"), "wrong"),
}


@pytest.fixture
def hostile(write_task):
    return load_task(write_task("hostile", score=HOSTILE_SCORE))


@pytest.fixture
def mild(write_task):
    return load_task(write_task("mild"))


def tagged(answer):
    return Completion(f"<answer>{answer}</answer>")


def mixed_with_right(answers, count):
    """`count` right answers with the given ones among them, and the ground truths."""
    every = count // len(answers)
    given = [answers[n // every % len(answers)] if n % every == every // 2 else n for n in range(count)]
    return list(map(tagged, given)), [{"n": n} if answer == "change" else n for n, answer in enumerate(given)]


def reasons_of(completions, scores):
    """The reasons of the answers that are not right."""
    answers = [completion.text.removeprefix("<answer>").removesuffix("</answer>") for completion in completions]
    return {answer: score.reason for answer, score in zip(answers, scores, strict=True) if score.reason != "ok"}


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(condition):
    end = time.monotonic() + 60  # a bound for machines that are busy
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


@pytest.mark.slow
@pytest.mark.fault(
    "F15",
    (
        "A scorer ends its process, takes 100 GB, prints, changes the ground truth; or loops in Python, C or a "
        "regex, deaf to signals"
    ),
    made="ten such answers among 190 right ones",
    seen="timeout, timeout, timeout, timeout, error, error, error, error, wrong, wrong",
    kept=(
        "each costs itself alone: killed at its deadline, its worker replaced, all others scored; stdout has none of it"
    ),
)
def test_hostile_answers_cost_themselves_only(fault_row, hostile, capfd):
    completions, truths = mixed_with_right(list(REASONS), 200)
    with ScoringPool(hostile, workers=2, timeout=0.5) as pool:
        scores = pool.score(completions, truths)
    assert reasons_of(completions, scores) == REASONS
    fault_row.check(", ".join(REASONS.values()))
    assert sum(score.correct for score in scores) == 200 - len(REASONS)
    assert all(score.value == 0.0 for score in scores if not score.correct)
    assert pool.counts == {"timeout": 4, "error": 4}
    assert pool.first_error is not None
    assert "SystemExit" in pool.first_error or "MemoryError" in pool.first_error
    assert truths[-1] == 199
    assert capfd.readouterr().out == ""


def test_wrappers_see_length_and_truncation_and_their_parts_come_back(write_task):
    code = """
@hookimpl(wrapper=True)
def score_completion(completion):
    yield
    return Score(0.5, False, "wrong", "a", {"length": float(completion.token_count)}, not completion.finished)
"""
    task = load_task(write_task("whole", whole=code))
    with ScoringPool(task) as pool:
        (score,) = pool.score([Completion("", 12, False)], [0])
    assert score == task.score_completion(Completion("", 12, False), 0)
    assert (score.parts, score.masked) == ({"length": 12.0}, True)


@pytest.mark.slow
def test_timeout_is_per_answer_not_per_batch(hostile):
    with ScoringPool(hostile, timeout=0.4) as pool:
        scores = pool.score([tagged("nap")] * 5, [0] * 5)
    assert [score.reason for score in scores] == ["wrong"] * 5


@pytest.mark.slow
@pytest.mark.fault(
    "F13",
    "A scorer hangs and has started a child",
    made="it sleeps for a minute, beside a `sleep` of its own",
    seen="timeout",
    kept="what was scored before it is not scored again; its child is killed with it",
)
def test_answers_done_before_a_kill_are_not_done_again(fault_row, hostile, tmp_path):
    log, child = tmp_path / "log", tmp_path / "child"
    answers = [f"log {log}", f"log {log}", f"child {child}", *range(3, 16)]
    with ScoringPool(hostile, timeout=0.5) as pool:  # one worker takes 16 answers in jobs of four
        scores = pool.score([tagged(answer) for answer in answers], list(range(16)))
    assert [score.reason for score in scores] == ["wrong", "wrong", "timeout"] + ["ok"] * 13
    assert log.read_text() == "scored\n" * 2
    assert eventually(lambda: not is_alive(int(child.read_text())))
    fault_row.check(scores[2].reason)


@pytest.mark.slow
def test_answers_that_fork_or_close_the_socket_cost_themselves_only(hostile):
    completions, truths = mixed_with_right(["fork", "close", "fork and close"], 60)
    completions[-1] = tagged("close")
    with ScoringPool(hostile, workers=2) as pool:
        for _ in range(2):
            scores = pool.score(completions, truths)
            assert reasons_of(completions, scores) == {"fork": "wrong", "close": "error", "fork and close": "error"}
            assert sum(score.correct for score in scores) == 56


@pytest.mark.slow
def test_calls_from_many_threads_take_turns(mild):
    def call(number):
        scores = pool.score([tagged(n) for n in range(50)], [n + number % 2 for n in range(50)])
        return [score.correct for score in scores] == [number % 2 == 0] * 50

    with ScoringPool(mild, workers=2) as pool, ThreadPoolExecutor(6) as threads:
        assert all(threads.map(call, range(6)))
        assert pool.score([], []) == []


@pytest.mark.slow
def test_leaking_scorer_gets_fresh_workers_before_it_fails(hostile):
    with ScoringPool(hostile, memory_limit_gb=0.5) as pool:
        scores = pool.score([tagged("hoard")] * 20, [0] * 20)
    assert [score.reason for score in scores] == ["wrong"] * 20


@pytest.mark.slow
def test_interrupted_call_does_not_confuse_the_next(hostile):
    with ScoringPool(hostile, workers=2) as pool:
        pool.score([tagged(0)], [0])
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            pool.score([tagged("sleep")] * 4, [0] * 4)
        assert [score.correct for score in pool.score([tagged(n) for n in range(9)], list(range(9)))] == [True] * 9


@pytest.fixture
def parent(hostile, tmp_path):
    """A script without a main guard that hangs in a pool; it writes its workers' numbers to the file `pids`."""
    script = tmp_path / "script.py"
    script.write_text(
        f"""
from pathlib import Path
from tinyzero_sdk import Completion, load_task
from tinyzero_sdk.scoring.pool import ScoringPool
pool = ScoringPool(load_task({hostile.source!r}), workers=2, timeout=60)
pool.score([Completion("<answer>1</answer>")] * 8, [1] * 8)
pids = Path({str(tmp_path)!r}) / "pids"
pids.with_suffix(".tmp").write_text(" ".join(str(worker.process.process.pid) for worker in pool._workers))
pids.with_suffix(".tmp").rename(pids)
pool.score([Completion("<answer>loop {tmp_path}/mark</answer>")] * 8, [1] * 8)
"""
    )
    process = subprocess.Popen([sys.executable, str(script)])
    yield process
    process.kill()
    process.wait()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a worker in a C call ends with that call")
def test_workers_die_with_their_parent_even_in_a_c_call(parent, tmp_path):
    assert eventually((tmp_path / "pids").exists)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert eventually(lambda: all((tmp_path / f"mark.{pid}").exists() for pid in pids))
    assert all(is_alive(pid) for pid in pids)
    parent.kill()
    assert eventually(lambda: not any(is_alive(pid) for pid in pids))


def test_worker_refuses_another_version_of_the_task(write_task):
    task = load_task(write_task("say"))
    write_task("say", solve="@hookimpl\ndef solve(item):\n    return None\n")
    with ScoringPool(task) as pool, pytest.raises(VersionMismatchError, match="'say': this process has version"):
        pool.score([tagged(1)], [1])


@pytest.mark.slow
def test_task_that_kills_its_process_on_import_is_reported(write_task, tmp_path):
    code = f"import os, pathlib\nif pathlib.Path({str(tmp_path / 'armed')!r}).exists():\n    os._exit(1)\n"
    task = load_task(write_task("bomb", top=code))
    (tmp_path / "armed").touch()
    with ScoringPool(task) as pool, pytest.raises(BrokenTaskError, match="while it loaded task 'bomb'"):
        pool.score([tagged(1)], [1])


@pytest.mark.slow
@pytest.mark.fault(
    "F13",
    "A scoring worker is killed while it starts",
    made="SIGKILL to the first while it imports the task",
    seen="ok",
    kept="everything: another is started in its place, up to four times in a row",
)
def test_a_worker_that_is_killed_while_it_starts_is_replaced(write_task, tmp_path, fault_row):
    armed = tmp_path / "armed"
    die = f"    os.unlink({str(armed)!r})\n    os.kill(os.getpid(), 9)\n"
    code = f"import os\nif os.path.exists({str(armed)!r}):\n{die}"
    task = load_task(write_task("killed", top=code))
    armed.touch()
    with ScoringPool(task) as pool:
        fault_row.check(*[score.reason for score in pool.score([tagged(1)], [1])])
    assert not armed.exists()


def test_memory_limit_below_what_the_task_needs_is_reported(mild):
    with ScoringPool(mild, memory_limit_gb=0.01) as pool, pytest.raises(BrokenTaskError, match="raise memory_limit_gb"):
        pool.score([tagged(1)], [1])


@pytest.mark.parametrize(
    ("name", "value"),
    [("workers", 0), ("timeout", 0), ("timeout", inf), ("memory_limit_gb", -1), ("memory_limit_gb", nan)],
)
def test_impossible_settings_are_refused(mild, name, value):
    with pytest.raises(SettingsError, match="above 0"):
        ScoringPool(mild, **{name: value})


@pytest.mark.slow
def test_stream_passes_batches_on_in_order_while_one_hangs(hostile):
    taken: list[int] = []

    def batches():
        for number in range(12):
            taken.append(number)
            texts = [tagged("sleep" if number == 1 and n == 3 else n) for n in range(50)] if number != 5 else []
            yield CompletionBatch(texts, list(range(len(texts))))

    with ScoringPool(hostile, workers=2, timeout=0.4) as pool:
        first, _ = next(stream := pool.stream(batches()))
        assert len(first) == 50
        assert len(taken) < 12  # lazily
        sizes = [(len(batch), scores.reasons.count("timeout")) for batch, scores in stream]
    assert sizes == [(50, 1), (50, 0), (50, 0), (50, 0), (0, 0), *[(50, 0)] * 6]


@pytest.mark.slow
def test_broken_source_leaves_a_pool_that_works(hostile):
    def batches():
        yield CompletionBatch([tagged("nap")] * 20, [0] * 20)
        raise OSError("gone")

    with ScoringPool(hostile, workers=2) as pool:
        with pytest.raises(OSError, match="gone"):
            list(pool.stream(batches()))
        assert pool.score([tagged(1)], [1])[0].correct
        stream = pool.stream([CompletionBatch([tagged(n)] * 9, [n] * 9) for n in range(50)])
        next(stream)
        stream.close()
        assert pool.score([tagged(1)], [1])[0].correct
