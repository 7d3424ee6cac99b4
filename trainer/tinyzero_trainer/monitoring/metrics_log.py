"""`metrics.jsonl`: one JSON object per step, the record of a run from which everything else is drawn.

Step 0 is the evaluation before training. Trackers, progress and plot only observe. Lines that cannot be written wait in
memory; a checkpoint needs all those before it.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tinyzero_sdk.errors import DataError, TinyZeroError
from tinyzero_sdk.workers.process import ClosesOnExit

# The names that progress and plot read; verl's where it has one, so that dashboards port.
REWARD = "critic/score/mean"
ACCURACY = "completion/acc_mean"
LENGTH = "response_length/mean"
LOSS = "train/loss"
HELD_OUT_LOSS = "val/loss"
THROUGHPUT = "perf/throughput"
NO_ANSWER = "reward/no_answer_frac"
TRUNCATED = "completion/truncated_frac"
ZERO_STD = "group/zero_std_frac"
FALSE_POSITIVES = "audit/false_positive_rate"


def held_out_key(task: str, samples: int = 1) -> str:
    """Accuracy on held-out problems, the mean over all completions: `samples` of each problem."""
    return f"val-core/{task}/acc/mean@{samples}"


def held_out_accuracies(row: Mapping[str, Any]) -> dict[str, float]:
    """That metric by task, in a line of the file; a resumed run may have another number of samples from there on."""
    matches = ((_HELD_OUT.fullmatch(name), value) for name, value in row.items() if name.startswith("val-core/"))
    return {match[1]: value for match, value in matches if match and isinstance(value, float)}


_HELD_OUT = re.compile(r"val-core/(.+)/acc/mean@\d+")


def greedy_key(task: str) -> str:
    """Accuracy on held-out problems, greedily."""
    return f"val-aux/{task}/acc_greedy/mean@1"


def pass_at_key(task: str, k: int, samples: int) -> str:
    """pass@k; of the largest k, which is the number of samples, verl counts it among the core metrics."""
    return f"val-{'core' if k == samples else 'aux'}/{task}/acc/best@{k}/mean"


def size_key(task: str) -> str:
    """Number of held-out problems in that evaluation."""
    return f"val-aux/{task}/size"


def task_key(task: str, what: str) -> str:
    """A metric of one task in a training step, where there are several tasks; `acc` is what `ACCURACY` is of all."""
    return f"task/{task}/{what}"


def false_positive_rates(row: Mapping[str, Any]) -> dict[str, float]:
    """Fraction of the rewarded completions that the oracle calls wrong, by task; a run's only task has the name ""."""
    matches = ((_FALSE_POSITIVES.fullmatch(name), value) for name, value in row.items() if name.startswith("audit/"))
    return {match[1] or "": value for match, value in matches if match and isinstance(value, float)}


def audit_alarms(row: Mapping[str, Any]) -> int:
    """Alarms of the audit so far, of all tasks."""
    return int(sum(row[name] for name in row if name.startswith("audit/") and name.endswith("/alarms")))


_FALSE_POSITIVES = re.compile(r"audit/(?:(.+)/)?false_positive_rate")


WAITING_BYTES = 2**26
"""The most that waits in memory: tens of thousands of lines."""


class MetricsError(TinyZeroError):
    """The metrics of a run cannot be written."""


class MetricsLog(ClosesOnExit):
    """Appends lines to `metrics.jsonl`; the operating system has each before `append` returns, unless it refuses it.

    Such lines are written with the next, and `warn` is told of the first. Methods other than `append` raise a
    `MetricsError` if the file cannot be written.
    """

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self.path, self._warn, self._waiting = path, warn, b""
        self._open()

    def append(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write one line: `step`, then the metrics by name. NaN and infinities, which JSON lacks, become null.

        The metrics are int, float, NumPy's numbers, or tensors of one element. Raises a MetricsError if too much waits.
        """
        row = {"step": step} | {name: plain_number(metrics[name]) for name in sorted(metrics)}
        is_first = not self._waiting
        self._waiting += json.dumps(row).encode() + b"\n"
        try:
            self.flush()
        except MetricsError as error:
            if len(self._waiting) > WAITING_BYTES:
                raise
            if is_first:
                self._warn(f"{error}; the run goes on, and its metrics wait in memory until they can be written")

    def flush(self) -> None:
        """Write the lines that wait."""
        try:
            while self._waiting:  # a disk may have room for a part of a line
                self._waiting = self._waiting[self._file.write(self._waiting) :]
        except OSError as error:
            raise MetricsError(f"cannot write {self.path}: {error.strerror}") from error

    def cut_after(self, step: int) -> None:
        """Drop the lines past `step`, from whose checkpoint the run is resumed, and a torn one."""
        lines = self.path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if (row := _parse(line)) is not None and row["step"] <= step]
        if len(kept) < len(lines):
            from tinyzero_sdk.data.files import replacing  # imports pyarrow, which no command needs at its start

            with replacing(self.path) as temporary:
                temporary.write_bytes(b"".join(kept))
            self._file.close()
            self._open()

    def close(self) -> None:
        """Close the file; nothing can be appended afterwards."""
        with suppress(MetricsError):  # a checkpoint that needs the lines was refused
            self.flush()
        self._file.close()

    def _open(self) -> None:
        try:
            self._file = open(self.path, "ab", 0)  # noqa: SIM115
        except OSError as error:
            raise MetricsError(f"cannot write {self.path}: {error.strerror}") from error


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`, in order; a last line without its newline is still being written and left out.

    Raises:
        DataError: the file is missing, or a line is not a JSON object with a `step`; the message names the line.
    """
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        row = _parse(line)
        if row is not None:
            rows.append(row)
        elif number < len(lines) or line.endswith(b"\n"):
            raise DataError(f"{path}, line {number}: expected a JSON object with a step")
    return rows


def plain_number(value: Any) -> int | float | None:
    """A number of any library as JSON can hold it; None for NaN and infinities."""
    number = value if isinstance(value, int) else float(value)
    return number if -math.inf < number < math.inf else None  # also for an integer that no float holds


def _parse(line: bytes) -> dict[str, Any] | None:
    """The line's object; None if the line is torn or has no step."""
    if not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None
