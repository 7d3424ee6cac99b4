"""A signal raises the flag, a second one leaves, and the former handlers come back."""

import os
import signal
import threading

import pytest

from tinyzero_trainer.utils import signals
from tinyzero_trainer.utils.signals import StopFlag, catch_signals


@pytest.mark.parametrize("number", signals.SIGNALS)
def test_a_signal_raises_the_flag_and_is_told_once(number):
    told = []
    with catch_signals(told.append) as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert stop.requested
        assert stop.signal is number
        for each in signals.SIGNALS:
            os.kill(os.getpid(), each)
    assert told == [f"{number.name}: stopping once all is saved; another one stops at once"]


def test_former_handlers_come_back_even_after_an_error():
    former = [signal.getsignal(number) for number in signals.SIGNALS]

    def run():
        with catch_signals():
            assert [signal.getsignal(number) for number in signals.SIGNALS] != former
            raise RuntimeError("training failed")

    with pytest.raises(RuntimeError, match="training failed"):
        run()
    assert [signal.getsignal(number) for number in signals.SIGNALS] == former


@pytest.mark.parametrize(
    ("number", "leaves"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit), (signal.SIGHUP, SystemExit)],
)
def test_a_second_signal_of_the_same_kind_leaves_at_once(monkeypatch, number, leaves):
    clock = iter([10.0, 10.0 + signals._ECHO_SECONDS])
    monkeypatch.setattr(signals.time, "monotonic", lambda: next(clock))
    stop = StopFlag()
    stop.handle(number)
    with pytest.raises(leaves) as left:
        stop.handle(number)
    assert number is signal.SIGINT or left.value.code == 128 + number


def test_an_echo_and_a_signal_of_the_other_kind_do_not_leave(monkeypatch):
    clock = iter([10.0, 10.1, 20.0, 20.1])
    monkeypatch.setattr(signals.time, "monotonic", lambda: next(clock))
    stop = StopFlag()
    stop.handle(signal.SIGUSR1)
    stop.handle(signal.SIGUSR1)  # `timeout` signals the process, then its group
    stop.handle(signal.SIGTERM)
    stop.handle(signal.SIGTERM)
    assert stop.signal is signal.SIGUSR1


def test_a_limit_of_cpu_time_may_warn_each_second(monkeypatch):
    clock = iter([10.0, 11.0, 12.0])
    monkeypatch.setattr(signals.time, "monotonic", lambda: next(clock))
    stop = StopFlag()
    for _ in range(3):
        stop.handle(signal.SIGXCPU)
    assert stop.signal is signal.SIGXCPU


def test_ctrl_c_after_another_signal_leaves(monkeypatch):
    clock = iter([10.0, 20.0])
    monkeypatch.setattr(signals.time, "monotonic", lambda: next(clock))
    stop = StopFlag()
    stop.handle(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        stop.handle(signal.SIGINT)


def test_a_run_under_nohup_outlives_its_terminal():
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with catch_signals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.requested
    finally:
        signal.signal(signal.SIGHUP, former)


def test_outside_the_main_thread_the_flag_stays_down():
    former, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with catch_signals() as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, former)]
