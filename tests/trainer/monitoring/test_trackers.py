"""If a tracker fails, hangs or is killed, the run continues at the same speed, and one line says what happened."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest

from tests.environments import run_script
from tinyzero_sdk.cli import main
from tinyzero_trainer.config import LogConfig
from tinyzero_trainer.monitoring import trackers
from tinyzero_trainer.monitoring.trackers import Trackers

GOOD_WANDB = """
import json, os, time

class Settings:
    model_fields = {}
    base_url = "SERVER"
    def __init__(self, **settings): self.settings = self

def HANG(): time.sleep(1000)
def setup(settings): return settings
def teardown(): pass

class Run:
    url = None
    def __init__(self, options): self.rows, self.path = [], options["dir"] + "/logged.json"
    def log(self, metrics, step): self.rows.append([step, metrics])
    def finish(self):
        with open(self.path, "w") as file: json.dump(self.rows, file)

def init(**options): return Run(options)
"""


class Server(BaseHTTPRequestHandler):
    """Answers, but does not know the page."""

    def do_GET(self):
        self.send_error(404)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def server():
    running = HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    running.server_close()


@pytest.fixture
def fake_wandb(tmp_path, monkeypatch, server):
    """A fake wandb."""

    def install(source="", server=server):
        (tmp_path / "wandb.py").write_text(f"{GOOD_WANDB.replace('SERVER', server)}\n{source}")
        monkeypatch.syspath_prepend(tmp_path)

    return install


def run(directory, *names, steps=3, then=lambda trackers: None, **options):
    """Log a few steps and close; the messages."""
    messages = []
    with Trackers(LogConfig(trackers=names), {}, directory, messages.append, **options) as observers:
        for step in range(steps):
            observers.log(step, {"critic/score/mean": step / 4, "actor/entropy": math.nan})
        then(observers)
    return messages


def logged(directory):
    return json.loads((directory / "logged.json").read_text())


def until_first_step(observers):
    while not observers._trackers[0]._recorded:
        time.sleep(0.01)


def ended(directory, reason):
    send = f"tinyzero runs --send {directory}"
    return f"wandb: {reason}; metrics.jsonl has everything, to record it there later: {send}"


@pytest.mark.slow
def test_wandb_gets_every_step_without_nan(tmp_path, fake_wandb):
    fake_wandb()
    assert run(tmp_path, "wandb") == []
    assert logged(tmp_path) == [[step, {"critic/score/mean": step / 4}] for step in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raise RuntimeError('at import')", "RuntimeError: at import"),
        (
            "def log(self, metrics, step): raise ConnectionError('in log\\nmore')\nRun.log = log",
            "ConnectionError: in log",
        ),
        ("def finish(self): raise OSError('in finish')\nRun.finish = finish", "OSError: in finish"),
        (
            "raise ModuleNotFoundError(\"No module named 'wandb'\")",
            "No module named 'wandb'; install it with: pip install 'tinyzero-trainer[trackers]'",
        ),
        ("def init(**options): os._exit(9)", "its process ended with code 9"),
        ("def log(self, metrics, step): os.kill(0, 9)\nRun.log = log", "its process was ended by signal 9"),
        ("print('x' * 10**7); os.write(2, b'x' * 10**7); raise ValueError", "ValueError: no reason given"),
    ],
)
@pytest.mark.fault(
    "F10",
    "A tracker raises or ends its process",
    made="at import, at its start, with a step, at its end, with 10 MB of output",
    seen="wandb: …; metrics.jsonl has everything, to record it there later: tinyzero runs --send …",
    kept="the run, and what it prints",
)
def test_an_error_is_reported_once_and_ends_the_tracker_alone(fault_row, tmp_path, fake_wandb, capfd, fault, reason):
    fake_wandb(fault)
    messages = run(tmp_path, "wandb", steps=50)
    assert messages == [ended(tmp_path, reason)]
    fault_row.check(messages[0])
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "hang",
    [
        "HANG()",
        "def init(**options): HANG()",
        "Run.log = lambda self, metrics, step: time.sleep(0.9)",
        "Run.finish = lambda self: HANG()",
        "import subprocess\nsubprocess.Popen(['sleep', '1000'])\nRun.finish = lambda self: HANG()",
    ],
)
@pytest.mark.fault(
    "F10",
    "A tracker hangs",
    made="at import, at its start, with a step, at its end, or with children",
    seen=(
        "wandb: it did not finish in time; metrics.jsonl has everything, to record it there later: tinyzero runs "
        "--send …"
    ),
    kept="the run, whose end waits 15 s at most; no process is left",
)
def test_a_hang_never_blocks_a_step_and_is_ended_with_its_processes(fault_row, tmp_path, fake_wandb, monkeypatch, hang):
    monkeypatch.setattr(trackers, "PATIENCE", 0.2)
    monkeypatch.setattr(trackers, "MOST_WAITING", 10)
    fake_wandb(hang)
    groups = list[int]()
    messages = run(  # a call that blocked would block for ever
        tmp_path, "wandb", steps=200, then=lambda observers: groups.append(observers._trackers[0]._worker.process.pid)
    )
    assert messages == [ended(tmp_path, "it did not finish in time")]
    fault_row.check(messages[0])
    left = [one for one in psutil.process_iter() if os.getpgid(one.pid) == groups[0]]
    assert [one for one in left if one.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.slow
@pytest.mark.fault(
    "F10",
    "A run with a tracker is killed",
    made="SIGKILL to the run after the tracker's first step",
    seen="",
    kept="the tracker's process records every step that it was given, and ends",
    code=137,
)
def test_of_a_run_that_is_killed_a_tracker_keeps_every_step(fault_row, tmp_path, fake_wandb):
    fake_wandb()
    code = f"""
import os, signal, sys, time
sys.path.insert(0, {str(tmp_path)!r})
from pathlib import Path
from tests.trainer.monitoring.test_trackers import run, until_first_step
run(Path({str(tmp_path)!r}), "wandb", then=lambda it: (until_first_step(it), os.kill(os.getpid(), signal.SIGKILL)))
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while not (tmp_path / "logged.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.1)
    assert len(logged(tmp_path)) == 3
    fault_row.check("", 128 - done.returncode)


@pytest.mark.slow
@pytest.mark.fault(
    "F10",
    "W&B's server goes away during the run",
    made="it is shut down after the first step, and the end of the recording hangs",
    seen="wandb: …cannot be reached: [Errno 111]…",
    kept="the run, which does not wait for it",
)
def test_a_server_that_is_gone_at_the_end_is_not_waited_for(fault_row, tmp_path, fake_wandb, monkeypatch):
    monkeypatch.setattr(trackers, "PATIENCE", 30.0)  # a busy machine takes longer to find out
    gone = HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=gone.serve_forever, daemon=True).start()
    fake_wandb("Run.finish = lambda self: HANG()", f"http://127.0.0.1:{gone.server_port}")

    def stop(observers):
        until_first_step(observers)
        gone.shutdown()
        gone.server_close()

    (message,) = run(tmp_path, "wandb", then=stop)
    fault_row.check(message)


def test_without_trackers_nothing_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(trackers, "_Tracker", None)
    assert run(tmp_path) == []


@pytest.mark.slow
def test_a_run_is_sent_once_more_whole(tmp_path, fake_wandb, monkeypatch, capsys):
    monkeypatch.setattr(trackers, "MOST_WAITING", 5)
    fake_wandb()
    directory = tmp_path / "run"
    (directory / "checkpoints").mkdir(parents=True)
    (directory / "config.toml").write_text('[log]\ntrackers = ["wandb"]\nproject = "p"\n')
    rows = [{"step": step, "loss": step / 2, "nothing": None, "text": "x"} for step in range(40)]
    rows[-1]["huge"] = 10**400
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (directory / ".wandb-id").write_text("before")
    with pytest.raises(SystemExit, match="0"):
        main(["runs", "--send", str(directory)])
    *first, (last, numbers) = logged(directory)
    assert first == [[step, {"loss": step / 2}] for step in range(39)]
    assert (last, numbers) == (39, {"loss": 19.5, "huge": 10**400})
    assert (directory / ".wandb-id").read_text() != "before"
    fake_wandb("def init(**options): raise SystemExit(7)")
    with pytest.raises(SystemExit, match="1"):
        main(["runs", "--send", str(directory)])
    captured = capsys.readouterr()
    assert "40 steps recorded in wandb" in captured.out
    assert "SystemExit: 7; metrics.jsonl has everything" in captured.err
    (directory / "config.toml").write_text("")
    with pytest.raises(SystemExit, match="2"):
        main(["runs", "--send", str(directory)])
    assert "has no trackers" in capsys.readouterr().err


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
        "messages": ["trackio: view: trackio show --project tinyzero"],
    }


@pytest.mark.slow
@pytest.mark.fault(
    "F10",
    "W&B has no key and no server",
    made="the real library; its server is a closed port",
    seen="wandb: recording offline (…); upload with: wandb sync …/wandb/offline-run-*",
    kept="the run, which does not ask for a key, and every point on the disk",
)
def test_the_real_wandb_records_offline_and_does_not_prompt_for_a_key(fault_row, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setattr(trackers, "PATIENCE", 120.0)  # on a busy machine, too
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    (message,) = run(tmp_path, "wandb")
    fault_row.check(message)
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
