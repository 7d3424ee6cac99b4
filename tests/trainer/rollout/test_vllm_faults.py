"""What vLLM must not leave behind when it fails: memory, processes, changed settings. vLLM itself is a fake."""

import gc
import multiprocessing
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import spawn
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.rollout.vllm_setup import PROMPTS, Setup, expected
from tests.trainer.rollout.vllm_setup import _quick as _quick
from tinyzero_trainer.errors import EngineDiedError
from tinyzero_trainer.executors.restart import RestartingEngine
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.vllm import client as connection
from tinyzero_trainer.rollout.vllm import engine
from tinyzero_trainer.rollout.vllm.call_timeout import CallThread
from tinyzero_trainer.rollout.vllm.client import VllmClient
from tinyzero_trainer.rollout.vllm.engine import VllmEngine
from tinyzero_trainer.rollout.vllm.log import EngineLog

# ---- memory ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize("separate_process", [True, False])
def test_a_failed_call_keeps_nothing_that_it_was_given(separate_process: bool, no_collection: None) -> None:
    fake = Setup(("send", 2, "raises"))
    sent: list[weakref.ref[Tensor]] = []

    def weights() -> Iterator[tuple[str, Tensor]]:
        tensor = torch.zeros(9)
        sent.append(weakref.ref(tensor))
        yield "head", tensor

    left = []

    def build() -> VllmEngine:
        left.append([ref for ref in sent if ref() is not None])
        return VllmEngine(fake.client(), weights, eos_ids={1}, timeout=20.0 if separate_process else None)

    RestartingEngine(build, 2, fake.notes.append).load_weights()
    assert left == [[], []]  # when another engine allocates memory
    assert not [ref for ref in sent if ref() is not None]


def test_an_error_that_has_been_handled_is_gone(no_collection: None) -> None:
    class Fault(Exception):
        pass

    def fail() -> None:
        raise Fault

    thread, raised = CallThread(lambda: True), []
    try:
        thread.call(fail, timeout=9.0)
    except Fault as error:
        raised.append(weakref.ref(error))
    thread.call(lambda: None, timeout=9.0)  # which has released it as well
    thread.end()
    assert raised[0]() is None


# ---- a start that hangs, or is interrupted ---------------------------------------------------------------------------


def test_an_engine_whose_start_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "START_SECONDS", 0.1)
    fake = Setup(("start", 1, "hangs"))
    with pytest.raises(EngineDiedError, match=r"did not start: it did not answer within 0\.1 s"):
        fake.engine()
    assert fake.log == ["start", "kill"]


def test_an_engine_that_hangs_at_its_restart_is_ended_before_another_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = Setup(("step", 1, "dies"), ("start", 1, "hangs"))
    made = fake.restarting()
    monkeypatch.setattr(engine, "START_SECONDS", 0.1)
    assert made.generate(PROMPTS, 2, SamplingParams(3), seed=5) == expected(2, SamplingParams(3), seed=5)
    assert [entry for entry in fake.log if entry in ("start", "kill")] == ["start", "kill", "start", "kill", "start"]


@pytest.mark.parametrize("separate_process", [True, False])
def test_an_interrupted_start_leaves_no_engine(separate_process: bool) -> None:
    fake = Setup()
    client = fake.client()

    class Interrupted(BaseException):
        pass

    def interrupt() -> None:
        raise Interrupted

    client.start = interrupt  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        VllmEngine(client, lambda: iter(()), eos_ids={1}, timeout=20.0 if separate_process else None)
    assert fake.log == ["start", "kill"]


class Started:
    """In place of vLLM's engine: a real process, spawned as vLLM's is, and what its start then does."""

    def __init__(self, then: Callable[[Any], None]) -> None:
        self.then, self.closed = then, False
        self.process: Any = None
        self.engine_core = self
        self.model_config = type("Model", (), {"dtype": torch.float32})

    def __call__(self, arguments: Any, *, separate_process: bool) -> "Started":
        self.process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,), daemon=True)
        self.process.start()
        self.then(self.process)
        return self

    def shutdown(self) -> None:
        self.closed = True
        self.process.kill()


def connected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, started: Started) -> VllmClient:
    monkeypatch.setattr(connection, "start_engine", started)
    return VllmClient({}, {}, separate_process=True, log=EngineLog(tmp_path / "vllm.log"))


def end_of(process: Any) -> int | None:
    """Its exit code, for which another thread may have waited too, and be about to tell it."""
    for _ in range(100):
        if process.exitcode is not None:
            break
        time.sleep(0.01)
    exitcode: int | None = process.exitcode
    return exitcode


def hang(process: Any) -> None:
    process.join()  # as vLLM waits for a word of its process
    raise RuntimeError("Engine core initialization failed")


@pytest.fixture
def bystander() -> Iterator[Any]:
    """A process of the trainer's that is none of vLLM's."""
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,), daemon=True)
    process.start()
    yield process
    process.kill()
    process.join()


def test_the_process_of_an_engine_that_still_starts_is_ended_and_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bystander: Any
) -> None:
    started = Started(hang)
    monkeypatch.setattr(engine, "START_SECONDS", 0.2)
    with pytest.raises(EngineDiedError, match="did not start"):
        VllmEngine(connected(monkeypatch, tmp_path, started), lambda: iter(()), eos_ids={1}, timeout=20.0)
    assert end_of(started.process) == -signal.SIGKILL, "it lived until then"
    assert bystander.is_alive()


def test_the_process_of_an_interrupted_start_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(process: Any) -> None:
        import _thread

        _thread.interrupt_main()
        hang(process)

    started = Started(interrupt)
    with pytest.raises(KeyboardInterrupt):
        VllmEngine(connected(monkeypatch, tmp_path, started), lambda: iter(()), eos_ids={1}, timeout=20.0)
    assert end_of(started.process) == -signal.SIGKILL, "it lived until then"
    assert spawn.get_executable() == sys.executable.encode()  # the start is over, and what it had changed is back


def test_an_engine_ended_before_its_start_does_not_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = Started(hang)
    made = connected(monkeypatch, tmp_path, started)
    made.kill()
    with pytest.raises(RuntimeError, match="ended while it started"):
        made.start()
    assert started.process is None


def test_an_engine_that_has_started_after_its_end_is_shut_down(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(connection, "END_SECONDS", 0.3)
    go_on = threading.Event()
    started = Started(lambda process: (process.join(), go_on.wait())[0])
    made = connected(monkeypatch, tmp_path, started)
    caught: list[BaseException] = []

    def start() -> None:
        try:
            made.start()
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    while started.process is None or not started.process.is_alive():
        time.sleep(0.01)
    made.kill()
    assert not started.closed
    go_on.set()
    thread.join(9)
    assert end_of(started.process) == -signal.SIGKILL
    assert started.closed
    assert caught


def test_an_engine_in_this_process_ends_none_of_its_children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = Started(lambda process: None)
    monkeypatch.setattr(connection, "start_engine", started)
    made = VllmClient({}, {}, separate_process=False, log=EngineLog(tmp_path / "vllm.log"))
    made.start()
    made.kill()
    assert started.process.is_alive()
    started.shutdown()


def test_output_of_a_start_within_another_goes_to_the_file_too(tmp_path: Path) -> None:
    log = EngineLog(tmp_path / "vllm.log")
    with log.captured(), log.captured():  # a start that was left behind, and the next
        wrapper = spawn.get_executable()
        assert sys.executable in Path(wrapper.decode()).read_text()
    assert spawn.get_executable() == sys.executable.encode()


# ---- the cache of prompts --------------------------------------------------------------------------------------------


def test_a_cache_still_in_use_is_asked_for_again_but_not_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Setup()
    made = fake.engine()
    asked: list[float] = []

    def refuse() -> None:
        asked.append(time.monotonic())
        if len(asked) < 4:
            raise RuntimeError("vLLM did not drop its prefix cache, which requests still use")

    monkeypatch.setattr(fake.engines[0], "reset_prefix_cache", refuse)
    made.load_weights()
    assert len(asked) == 4
    assert asked[-1] - asked[0] >= 3 * engine.CACHE_PAUSE
    assert fake.log.count("start") == 1
