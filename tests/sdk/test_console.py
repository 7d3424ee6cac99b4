"""What is written beside the results costs no work."""

import os

import pytest

from tests.faults import Faults
from tinyzero_sdk import console
from tinyzero_sdk.console import LogStream


@pytest.mark.fault(
    "terminal",
    "The terminal is paused (Ctrl-S), or what reads the log in a pipe hangs",
    made="the log is written into a pipe that nobody reads, until it is full, and on",
    seen="(output is missing here, since it was not read) and on",
    kept="everything but lines of the log; a signal still ends a run",
)
def test_a_log_that_nobody_reads_costs_lines_and_no_work(monkeypatch: pytest.MonkeyPatch, fault_row: Faults) -> None:
    monkeypatch.setattr(console, "STUCK_SECONDS", 0.01)
    reader, writer = os.pipe()
    with open(reader, encoding="utf-8") as read, open(writer, "w", encoding="utf-8", buffering=1) as written:
        log = LogStream(written)
        for number in range(10):
            assert log.write(f"{str(number) * 9_999}\n") == 10_000
        os.set_blocking(reader, False)
        kept = read.read()
        log.write("and on\n")
        fault_row.check(read.read())
        log.write("as before\n")
        assert read.read() == "as before\n"
    assert "".join(f"{str(number) * 9_999}\n" for number in range(10)).startswith(kept)
    assert 4_096 <= len(kept) < 100_000
