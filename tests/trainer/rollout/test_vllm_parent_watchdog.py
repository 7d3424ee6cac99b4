"""vLLM's processes end with the trainer's."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tinyzero_trainer.rollout.vllm import parent_watchdog

ENGINE = """
import runpy, sys, time
runpy.run_path(sys.argv[1])["exit_with_trainer"]()
print("ready", flush=True)
time.sleep(60)
"""
TRAINER = """
import os, subprocess, sys, time
engine = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], env={**os.environ, "%s": str(os.getpid())})
print(engine.pid, flush=True)
time.sleep(60)
"""


def test_an_engine_ends_when_the_trainer_is_killed() -> None:
    command = [sys.executable, "-c", TRAINER % parent_watchdog.TRAINER, ENGINE, parent_watchdog.__file__]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
        engine = int(trainer.stdout.readline())
        assert trainer.stdout.readline() == "ready\n"
        assert is_running(engine)
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
        until = time.monotonic() + 10
        while is_running(engine):
            assert time.monotonic() < until
            time.sleep(0.01)


def test_an_engine_ends_at_once_if_the_trainer_has_ended() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    environment = {**os.environ, parent_watchdog.TRAINER: str(gone.pid)}
    command = [sys.executable, "-c", ENGINE, parent_watchdog.__file__]
    engine = subprocess.run(command, env=environment, timeout=30, check=False)
    assert engine.returncode == 1


def test_the_trainers_own_process_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(parent_watchdog.TRAINER, str(os.getpid()))
    monkeypatch.setattr(parent_watchdog.threading, "Thread", None)
    parent_watchdog.exit_with_trainer()
    monkeypatch.delenv(parent_watchdog.TRAINER)
    parent_watchdog.exit_with_trainer()


def is_running(pid: int) -> bool:
    """Not as a zombie: it cannot be reaped here."""
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return stream.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
