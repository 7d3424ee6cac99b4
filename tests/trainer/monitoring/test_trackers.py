"""If a tracker fails or hangs, the run continues at the same speed, and one line says what happened."""

import json
import math
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.environments import run_script
from tinyzero_trainer.config import LogConfig, TrainConfig
from tinyzero_trainer.monitoring import trackers
from tinyzero_trainer.monitoring.trackers import Trackers

GOOD_WANDB = """
import json

class Settings:
    model_fields = {}
    def __init__(self, **settings): self.settings = settings

def setup(settings): pass
def teardown(): pass

class Run:
    url = None
    def __init__(self, options): self.rows, self.path = [], options["dir"] + "/logged.json"
    def log(self, metrics, step): self.rows.append([step, metrics])
    def finish(self):
        with open(self.path, "w") as file: json.dump(self.rows, file)

def init(**options): return Run(options)
"""

HANGS = {
    "import": "HANG()",
    "init": "def init(**options): HANG()",
    "log": "Run.log = lambda self, metrics, step: HANG()",
    "finish": "Run.finish = lambda self: HANG()",
}


@pytest.fixture
def fake_wandb(tmp_path, monkeypatch):
    """A fake wandb; hangs end with the test."""
    over = threading.Event()

    def install(source):
        (tmp_path / "wandb.py").write_text(f"{GOOD_WANDB}\nfrom hang import HANG\n{source}")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "wandb", raising=False)
        monkeypatch.setitem(sys.modules, "hang", SimpleNamespace(HANG=over.wait))

    yield install
    over.set()
    for thread in threading.enumerate():
        if thread.name == "wandb":
            thread.join(10)
    sys.modules.pop("wandb", None)


def run(directory, *names, steps=3):
    """Log a few steps and close; the messages."""
    messages = []
    with Trackers(TrainConfig(log=LogConfig(trackers=names)), directory, messages.append) as observers:
        for step in range(steps):
            observers.log(step, {"critic/score/mean": step / 4, "actor/entropy": math.nan})
    return messages


def test_wandb_gets_every_step_without_nan(tmp_path, fake_wandb):
    fake_wandb("")
    assert run(tmp_path, "wandb") == []
    logged = (tmp_path / "logged.json").read_text()
    assert json.loads(logged) == [[step, {"critic/score/mean": step / 4}] for step in range(3)]


def test_a_resumed_run_keeps_its_wandb_id(tmp_path):
    first = trackers._run_id(tmp_path)
    assert trackers._run_id(tmp_path) == first
    (tmp_path / "other").mkdir()
    assert trackers._run_id(tmp_path / "other") != first


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise RuntimeError('at import')", "RuntimeError: at import"),
        ("def log(self, metrics, step): raise ConnectionError('in log')\nRun.log = log", "ConnectionError: in log"),
        ("def finish(self): raise OSError('in finish')\nRun.finish = finish", "OSError: in finish"),
        ("def init(**options): raise SystemExit(7)", "SystemExit: 7"),
    ],
)
def test_an_error_is_reported_once_and_ends_the_tracker_alone(tmp_path, fake_wandb, fault, message):
    fake_wandb(fault)
    assert run(tmp_path, "wandb", steps=50) == [f"wandb: {message}; training continues without it"]


def test_without_a_server_wandb_is_tried_offline_once(tmp_path, fake_wandb):
    fake_wandb("def init(**options): raise ValueError('in init\\nsecond line')")
    messages = run(tmp_path, "wandb")
    assert messages == [
        f"wandb: recording offline (in init); upload with: wandb sync {tmp_path}/wandb/offline-run-*",
        "wandb: ValueError: in init; training continues without it",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("hang", HANGS)
def test_a_hang_never_blocks_a_step_and_is_abandoned_at_the_end(tmp_path, fake_wandb, monkeypatch, hang):
    monkeypatch.setattr(trackers, "CLOSE_SECONDS", 0.2)
    monkeypatch.setattr(trackers, "QUEUE_SIZE", 10)
    fake_wandb(HANGS[hang])
    messages = run(tmp_path, "wandb", steps=200)  # a call that blocked would block for ever
    assert "wandb: did not finish in time; metrics.jsonl has everything" in messages
    if hang != "finish":  # more than the queue holds
        assert "steps missing there" in messages[-1]


def test_a_library_that_is_not_installed_is_named(tmp_path, fake_wandb):
    fake_wandb("raise ModuleNotFoundError(\"No module named 'wandb'\")")
    (message,) = run(tmp_path, "wandb")
    assert message.startswith(
        "wandb: No module named 'wandb'; install it with: pip install 'tinyzero-trainer[trackers]'"
    )


def test_without_trackers_nothing_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(trackers, "Thread", None)
    assert run(tmp_path) == []


@pytest.mark.slow
def test_tensorboard_reads_what_was_written(tmp_path):
    pytest.importorskip("tensorboard")
    assert run(tmp_path, "tensorboard") == []
    assert scalars(tmp_path) == [(0, 0.0), (1, 0.25), (2, 0.5)]
    run(tmp_path, "tensorboard", steps=1)  # resumed from the start: what came after is hidden
    assert scalars(tmp_path) == [(0, 0.0)]


def scalars(directory):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars("critic/score/mean")]


@pytest.mark.slow
def test_the_real_trackio_continues_a_resumed_run_and_leaves_stdout_alone(tmp_path):
    found = run_script("trackio", Path(__file__).with_name("two_sessions_in_trackio.py"), cwd=tmp_path)
    assert found == {
        "runs": ["countdown"],
        "project": "tinyzero",
        "logged": [[step, step / 4] for step in range(5)],
        "stdout": "",
        "messages": [],
    }


NO_KEY = pytest.mark.nightly(reason="starts W&B a second time; with a key it is the same path")


@pytest.mark.slow
@pytest.mark.parametrize("key", [pytest.param(None, id="no key", marks=NO_KEY), pytest.param("a" * 40, id="no server")])
def test_the_real_wandb_records_offline_and_does_not_prompt_for_a_key(tmp_path, monkeypatch, key):
    pytest.importorskip("wandb")
    monkeypatch.setattr(trackers, "CLOSE_SECONDS", 120.0)  # on a busy machine, too
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", key) if key else monkeypatch.delenv("WANDB_API_KEY", raising=False)
    (message,) = run(tmp_path, "wandb")
    assert message.startswith("wandb: recording offline (")
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
