"""A signal raises the flag, a second one leaves, and the former handlers come back."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from tinyzero_trainer.utils import signals as interrupts
from tinyzero_trainer.utils.signals import StopFlag, catch_signals


@pytest.mark.parametrize("number", interrupts.SIGNALS)
def test_a_signal_raises_the_flag_and_nothing_else(number):
    with catch_signals() as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert stop.requested
        assert stop.signal is number


def test_former_handlers_come_back_even_after_an_error():
    former = [signal.getsignal(number) for number in interrupts.SIGNALS]

    def run():
        with catch_signals():
            assert [signal.getsignal(number) for number in interrupts.SIGNALS] != former
            raise RuntimeError("training failed")

    with pytest.raises(RuntimeError, match="training failed"):
        run()
    assert [signal.getsignal(number) for number in interrupts.SIGNALS] == former


@pytest.mark.parametrize(("number", "leaves"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_second_signal_of_the_same_kind_leaves_at_once(monkeypatch, number, leaves):
    clock = iter([10.0, 10.0 + interrupts._ECHO_SECONDS])
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: next(clock))
    stop = StopFlag()
    stop.handle(number)
    with pytest.raises(leaves) as left:
        stop.handle(number)
    assert number is signal.SIGINT or left.value.code == 143


def test_an_echo_and_a_signal_of_the_other_kind_do_not_leave(monkeypatch):
    clock = iter([10.0, 10.1, 20.0, 20.1])
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: next(clock))
    stop = StopFlag()
    stop.handle(signal.SIGTERM)
    stop.handle(signal.SIGTERM)  # `timeout` signals the process, then its group
    stop.handle(signal.SIGINT)
    stop.handle(signal.SIGINT)
    assert stop.signal is signal.SIGTERM


def test_outside_the_main_thread_the_flag_stays_down():
    former, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with catch_signals() as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, former)]


def test_a_real_process_finishes_its_step_and_exits_with_143():
    program = """
import sys, time
from tinyzero_trainer.utils.signals import Interrupted, catch_signals
with catch_signals() as stop:
    print("ready", flush=True)
    while not stop.requested:
        time.sleep(0.01)
    sys.exit(Interrupted(stop.signal, 1, "run").exit_code)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 143
