"""The file that an evaluation's completions are appended to, so that a killed one goes on where it was.

JSON Lines, one completion a line, each with the settings it was sampled under; rows that `tinyzero score` reads. What
samples and what scores them is in `evaluate.py`.
"""

import fcntl
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from tinyzero_sdk.data.files import parse_line
from tinyzero_sdk.errors import DataError, SettingsError
from tinyzero_sdk.records import Json

_SYNC_SECONDS = 2.0  # at most so much work is lost if the machine fails; if only the process does, none

Place = tuple[int, int]
"""Number of the problem and of its completion, both from 0."""


class SampleFile:
    """Completions of one evaluation, in the order in which they came."""

    def __init__(self, path: Path, settings: Mapping[str, Json]) -> None:
        """Open a new file, or one to go on with; a torn last line is cut off.

        Args:
            path: ends in `.jsonl`.
            settings: what the completions depend on, as plain JSON; kept in every row as `sampling`.

        Raises:
            SettingsError: the file is of an evaluation with other settings, or another one is writing to it.
            DataError: it cannot be read or written, or is no evaluation's.
        """
        self.path = path
        self._settings = dict(settings)
        self._lines: dict[Place, tuple[int, int]] = {}  # where each line begins, and its length
        try:
            path.touch()
            self._file: BinaryIO = path.open("r+b")
        except OSError as error:
            raise DataError(f"cannot write {path}: {error.strerror}") from error
        try:
            self._lock()
            self._end = self._read()
            self._file.truncate(self._end)
            self._file.seek(self._end)
        except BaseException:
            self._file.close()
            raise
        self._synced = time.monotonic()
        self._is_synced = True

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it goes with the process
        except OSError as error:
            raise SettingsError(
                f"another evaluation is writing to {self.path}; wait, or give another --output"
            ) from error

    def _read(self) -> int:
        """Note the lines there are, and return where the last whole one ends."""
        end = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):  # the process was killed while it wrote this
                break
            try:
                row = parse_line(line)
            except DataError as error:
                raise DataError(
                    f"{self.path}:{number}: {error}; move the file away, or give another --output"
                ) from error
            if row is not None:
                self._lines[self._place(row, number)] = (end, len(line))
            end += len(line)
        return end

    def _place(self, row: Mapping[str, Json], number: int) -> Place:
        info, settings, sample = row.get("extra_info"), row.get("sampling"), row.get("sample")
        index = info.get("index") if isinstance(info, dict) else None
        if not isinstance(settings, dict) or type(index) is not int or type(sample) is not int:
            raise DataError(f"{self.path}:{number} is no row of an evaluation; give another --output")
        for name in [*self._settings, *settings]:
            old, new = settings.get(name), self._settings.get(name)
            if old != new:
                raise SettingsError(
                    f"{self.path} holds an evaluation with {name}={_show(old)}, and this one has {name}={_show(new)}; "
                    "give another --output, or move the file away"
                )
        return index, sample

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, place: Place) -> bool:
        return place in self._lines

    def append(self, place: Place, row: Mapping[str, Json]) -> bool:
        """Add a completion, unless it is there; whether it was added."""
        if place in self._lines:
            return False
        index, sample = place
        assert row["extra_info"]["index"] == index
        line = json.dumps({**row, "sample": sample, "sampling": self._settings}).encode() + b"\n"
        self._is_synced = False
        try:
            self._file.write(line)
            self._file.flush()
            if time.monotonic() - self._synced > _SYNC_SECONDS:
                self._sync()
        except OSError as error:
            raise DataError(f"cannot write {self.path}: {error.strerror}; {len(self)} completions are kept") from error
        self._lines[place] = (self._end, len(line))
        self._end += len(line)
        return True

    def write_sorted(self, path: Path) -> None:
        """Write all rows to another file, by problem and completion, so that it does not show how they came about."""
        with path.open("wb") as target:
            for place in sorted(self._lines):
                start, length = self._lines[place]
                target.write(os.pread(self._file.fileno(), length, start))

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._synced, self._is_synced = time.monotonic(), True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._is_synced:
                self._sync()
            if not os.fstat(self._file.fileno()).st_size:  # not `_end`: a signal may have come before that was set
                self.path.unlink()  # nothing came of it
        finally:
            self._file.close()


def missing(file: SampleFile, index: int, samples: int) -> tuple[int, ...]:
    """The completions of a problem that the file lacks."""
    return tuple(sample for sample in range(samples) if (index, sample) not in file)


def _show(value: Json) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)
