"""Whatever a tracker does, the run goes on at its own pace and is told in one line."""

import json
import math
import sys
import time

import pytest

from tinyzero_trainer.monitoring import trackers
from tinyzero_trainer.monitoring.trackers import Trackers

GOOD_WANDB = """
import json, os

class Settings:
    def __init__(self, **settings): self.settings = settings

def setup(settings): pass
def teardown(): pass

class Run:
    url = None
    def __init__(self, options): self.rows, self.path = [], options["dir"] + "/logged.json"
    def log(self, metrics, step): self.rows.append([step, metrics])
    def finish(self): open(self.path, "w").write(json.dumps(self.rows))

def init(**options): return Run(options)
"""

FAULTS = {
    "import": "raise RuntimeError('at import')",
    "init": "def init(**options): raise ValueError('in init\\nsecond line')",
    "log": "def log(self, metrics, step): raise ConnectionError('in log')\nRun.log = log",
    "finish": "def finish(self): raise OSError('in finish')\nRun.finish = finish",
    "exit": "def init(**options): os._exit(7)",
}

HANGS = {
    "init": "import time\ndef init(**options): time.sleep(60)",
    "log": "import time\nRun.log = lambda self, metrics, step: time.sleep(60)",
    "finish": "import time\nRun.finish = lambda self: time.sleep(60)",
    "exit": "import atexit, time\natexit.register(time.sleep, 60)",
    "stubborn": "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: pass",
}


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """A stand-in for wandb, seen by the tracker's process only."""

    def install(source):
        (tmp_path / "stubs").mkdir()
        (tmp_path / "stubs" / "wandb.py").write_text(GOOD_WANDB + source)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "stubs"))

    return install


def run(directory, *names, steps=3, notes=None):
    """Log a few steps and close; the notes, and the longest time any call of `log` took."""
    notes, slowest = [] if notes is None else notes, 0.0
    with Trackers(
        names, directory=directory, project="p", name="n", config={"run": {}}, note=notes.append
    ) as observers:
        for step in range(steps):
            started = time.perf_counter()
            observers.log(step, {"critic/score/mean": step / 4, "actor/entropy": math.nan})
            slowest = max(slowest, time.perf_counter() - started)
    return notes, slowest


def test_wandb_is_given_every_step_without_what_is_not_a_number(tmp_path, stub):
    stub("")
    assert run(tmp_path, "wandb")[0] == []
    logged = (tmp_path / "logged.json").read_text()
    assert json.loads(logged) == [[step, {"critic/score/mean": step / 4}] for step in range(3)]


def test_a_resumed_run_keeps_its_wandb_id(tmp_path):
    first = trackers._run_id(tmp_path)
    assert trackers._run_id(tmp_path) == first
    (tmp_path / "other").mkdir()
    assert trackers._run_id(tmp_path / "other") != first


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("import", ["wandb: RuntimeError: at import; training goes on without it"]),
        ("log", ["wandb: ConnectionError: in log; training goes on without it"]),
        ("finish", ["wandb: OSError: in finish; training goes on without it"]),
        ("exit", ["wandb: its process ended with code 7; training goes on without it"]),
    ],
)
def test_an_error_is_told_once_and_ends_the_tracker_alone(tmp_path, stub, fault, said):
    stub(FAULTS[fault])
    notes, _ = run(tmp_path, "wandb", steps=50)
    assert notes == said


def test_without_a_server_wandb_is_tried_offline_once(tmp_path, stub):
    stub(FAULTS["init"])
    notes, _ = run(tmp_path, "wandb")
    assert notes == [
        f"wandb: recording offline (in init); upload with: wandb sync {tmp_path}/wandb/offline-run-*",
        "wandb: ValueError: in init; training goes on without it",
    ]


@pytest.mark.parametrize(
    "hang", [pytest.param(hang, marks=[] if hang in ("log", "finish") else [pytest.mark.slow]) for hang in HANGS]
)
def test_a_hang_never_blocks_a_step_and_is_ended_at_the_close(tmp_path, stub, monkeypatch, hang):
    monkeypatch.setattr(trackers, "CLOSE_SECONDS", 0.4)
    monkeypatch.setattr(trackers, "QUEUE_SIZE", 10)
    stub(HANGS[hang])
    started = time.perf_counter()
    notes, slowest = run(tmp_path, "wandb", steps=2000)
    assert slowest < 30  # of the 60 that the tracker hangs
    assert time.perf_counter() - started < 45
    assert "wandb: did not finish in time and was stopped; metrics.jsonl has everything" in notes
    if hang in ("init", "log"):  # more than the pipe and the queue hold
        assert "steps are missing there" in notes[-1]


def test_what_a_library_prints_does_not_reach_the_run(tmp_path, stub, capfd):
    stub("print('hello')\nos.write(1, b'hello')\nos.write(2, b'hello')")
    assert run(tmp_path, "wandb")[0] == []
    assert capfd.readouterr() == ("", "")


def test_a_library_that_is_not_installed_is_named(tmp_path, stub):
    stub("raise ModuleNotFoundError(\"No module named 'wandb'\")")
    (said,) = run(tmp_path, "wandb")[0]
    assert said.startswith("wandb: No module named 'wandb'; install it with: pip install 'tinyzero-trainer[trackers]'")


def test_a_process_that_cannot_be_started_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    assert run(tmp_path, "wandb")[0] == [
        "wandb: cannot be started (No such file or directory); training goes on without it"
    ]


def test_without_trackers_nothing_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(trackers.subprocess, "Popen", None)
    assert run(tmp_path)[0] == []


@pytest.mark.slow
def test_tensorboard_reads_what_was_written(tmp_path):
    pytest.importorskip("tensorboard")
    assert run(tmp_path, "tensorboard")[0] == []
    assert scalars(tmp_path) == [(0, 0.0), (1, 0.25), (2, 0.5)]
    run(tmp_path, "tensorboard", steps=1)  # resumed from the start: what came after is hidden
    assert scalars(tmp_path) == [(0, 0.0)]


def scalars(directory):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars("critic/score/mean")]


@pytest.mark.slow
def test_the_real_wandb_with_an_unreachable_server_records_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    notes, slowest = run(tmp_path, "wandb")
    assert slowest < 30
    assert len(notes) == 1
    assert notes[0].startswith("wandb: recording offline (")
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.slow
def test_the_real_wandb_asks_nobody_for_a_key(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    notes, _ = run(tmp_path, "wandb")
    assert notes[0].startswith("wandb: recording offline (")
