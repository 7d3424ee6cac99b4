"""What vLLM's process must not leave behind, and its log. vLLM itself is a fake; calls to it: test_vllm_engine.py."""

import _thread
import multiprocessing
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import spawn
from pathlib import Path
from typing import Any

import pytest

from tinyzero_trainer.errors import EngineDiedError
from tinyzero_trainer.rollout.vllm import client, engine
from tinyzero_trainer.rollout.vllm.client import VllmClient
from tinyzero_trainer.rollout.vllm.engine import VllmEngine
from tinyzero_trainer.rollout.vllm.log import EngineLog


def sleeping_process() -> Any:
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,), daemon=True)
    process.start()
    return process


class Started:
    """In place of vLLM's engine: a real process, spawned as vLLM's is, and what its start does then."""

    def __init__(self, then: Callable[[Any], None]) -> None:
        self.then = then
        self.process: Any = None
        self.engine_core = self

    def __call__(self, arguments: Any, *, separate_process: bool) -> "Started":
        self.process = sleeping_process()
        self.then(self.process)
        return self

    def shutdown(self) -> None:
        self.process.kill()

    def exit_code(self) -> int | None:
        """Of the process, for which another thread may have waited too, and be about to set it."""
        until = time.monotonic() + 10
        while self.process.exitcode is None and time.monotonic() < until:
            time.sleep(0.01)
        return self.process.exitcode


def hang(process: Any) -> None:
    process.join()  # as vLLM waits for a message of its process
    raise RuntimeError("Engine core initialization failed")


def interrupt(process: Any) -> None:
    _thread.interrupt_main()
    hang(process)


@pytest.fixture
def make_client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., VllmClient]:
    def make(started: Started, *, separate_process: bool = True) -> VllmClient:
        monkeypatch.setattr(client, "start_engine", started)
        return VllmClient({}, {}, {1}, separate_process=separate_process, log=EngineLog(tmp_path / "vllm.log"))

    return make


@pytest.mark.slow
@pytest.mark.parametrize(
    ("then", "seconds", "error"), [(hang, 0.2, EngineDiedError), (interrupt, 60.0, KeyboardInterrupt)]
)
def test_the_process_of_an_engine_that_does_not_start_is_ended_and_no_other(
    then, seconds, error, monkeypatch, make_client
):
    started, bystander = Started(then), sleeping_process()
    monkeypatch.setattr(engine, "START_SECONDS", seconds)
    with pytest.raises(error):
        VllmEngine(make_client(started), lambda: iter(()), timeout=20.0)
    assert started.exit_code() == -signal.SIGKILL
    assert bystander.is_alive(), "it is not vLLM's"
    bystander.kill()
    bystander.join()
    assert spawn.get_executable() == sys.executable.encode()  # what the start changes is undone


# ---- its log ---------------------------------------------------------------------------------------------------------


def test_the_output_of_its_process_goes_to_a_file_in_which_the_reason_is_found(tmp_path: Path) -> None:
    def executable() -> str:
        return str(spawn.get_executable().decode())

    log = EngineLog(tmp_path / "it's here" / "vllm.log")
    assert log.reason() is None
    code = "import sys; print('ValueError: an old one'); print(sys.argv[1])"
    for text in (
        "(EngineCore pid=1) ERROR 11-21 [core.py:9] ValueError: Free memory is less than desired",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ):
        with log.captured():
            python = executable()
            assert python != sys.executable
            subprocess.run([python, "-c", code, text], check=True)
    assert log.reason() == "ValueError: an old one"  # which says more than that there was one
    with log.captured(), log.captured():  # a start that was abandoned, and the next
        assert sys.executable in Path(executable()).read_text()
    assert log.reason() is None  # those of the engine before do not count
    assert not list(log.path.parent.glob("*.sh"))
    assert executable() == sys.executable
