"""The file that an evaluation appends its completions to, so that it can resume after a kill.

JSON Lines, one completion per line, each with its sampling settings; `tinyzero score` reads them too.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Self

from tinyzero_sdk.data.files import parse_line
from tinyzero_sdk.errors import DataError, SettingsError
from tinyzero_sdk.records import Json

SampleId = tuple[int, int]  # index of the problem and of its completion, both from 0


class SampleFile:
    """The completions of one evaluation, in order of arrival."""

    def __init__(self, path: Path, settings: Mapping[str, Json]) -> None:
        """Open a new file, or one to resume; an incomplete last line is cut off.

        Every row has the settings, all that the completions depend on, as `sampling`. A file with other settings, or to
        which another evaluation writes, is a SettingsError; one of something else, or that cannot be read, a DataError.
        """
        self.path = path
        self._settings = dict(settings)
        self._lines: dict[SampleId, bytes] = {}
        with ExitStack() as on_failure:
            try:
                path.touch()
                self._file: BinaryIO = on_failure.enter_context(path.open("r+b"))
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released when the process ends
            except OSError as error:
                if isinstance(error, BlockingIOError):
                    text = f"another evaluation is writing to {path}; wait, or give another --output"
                    raise SettingsError(text) from error
                raise DataError(f"cannot write {path}: {error.strerror}") from error
            end = self._read()
            self._file.truncate(end)
            self._file.seek(end)
            on_failure.pop_all()

    def _read(self) -> int:
        """Index the existing lines, and return where the last complete one ends."""
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
                self._lines[self._sample_id(row, number)] = line
            end += len(line)
        return end

    def _sample_id(self, row: Mapping[str, Json], number: int) -> SampleId:
        info, settings, sample = row.get("extra_info"), row.get("sampling"), row.get("sample")
        index = info.get("index") if isinstance(info, dict) else None
        if not isinstance(settings, dict) or type(index) is not int or type(sample) is not int:
            raise DataError(f"{self.path}:{number} is not a row of an evaluation; give another --output")
        for name in [*self._settings, *settings]:
            old, new = settings.get(name), self._settings.get(name)
            if old != new:
                raise SettingsError(
                    f"{self.path} is from an evaluation with {name}={_format(old)}, not {name}={_format(new)}; "
                    "give another --output, or move the file away"
                )
        return index, sample

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, sample_id: SampleId) -> bool:
        return sample_id in self._lines

    def append(self, sample_id: SampleId, row: Mapping[str, Json]) -> bool:
        """Add a completion unless it is already there; return whether it was added."""
        if sample_id in self._lines:
            return False
        line = json.dumps({**row, "sample": sample_id[1], "sampling": self._settings}).encode() + b"\n"
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            raise DataError(
                f"cannot write {self.path}: {error.strerror}; {len(self)} completions are stored"
            ) from error
        self._lines[sample_id] = line
        return True

    def write_sorted(self, path: Path) -> None:
        """Write all rows to another file, sorted by problem and completion."""
        path.write_bytes(b"".join(self._lines[sample_id] for sample_id in sorted(self._lines)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if not os.fstat(self._file.fileno()).st_size:
                self.path.unlink()  # nothing was sampled
        finally:
            self._file.close()


def _format(value: Json) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)
