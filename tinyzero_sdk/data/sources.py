"""Rows by index, from wherever users keep them: a file, a folder, or the Hugging Face Hub.

No row is held as Python objects: Arrow and Parquet are memory-mapped as an unnamed temporary file, since a file of the
user that is truncated while it is mapped would end the process; of JSON Lines there is an index of the lines.
`files.py` reads whole files in order.
"""

import hashlib
import os
import shutil
import tempfile
import weakref
from array import array
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tinyzero_sdk.data.arrow import Row, fits_json, to_list
from tinyzero_sdk.data.files import check_ending, parse_line, read_blocks
from tinyzero_sdk.data.folders import split_files
from tinyzero_sdk.data.hub import hub_files, parse_name
from tinyzero_sdk.errors import DataError

_AT_ONCE = 1024


class Rows:
    """Rows of plain Python values, read when they are asked for."""

    def __init__(self, files: Sequence[Path]) -> None:
        """
        Raises:
            DataError: a file cannot be read; rows of JSON Lines are checked when they are read.
        """
        self.paths = tuple(files)
        self._files = [_JsonLines(path) if path.suffix == ".jsonl" else _Table(path) for path in files]
        self.starts = np.array([0, *accumulate(map(len, self._files))])
        """[files + 1] index of the first row of each file, and the number of rows."""

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, index: int) -> Row:
        return self.take([index])[0]

    def __iter__(self) -> Iterator[Row]:
        return self.read()

    def read(self, without: str | None = None) -> Iterator[Row]:
        """All rows in order; of tables without a column that is not needed, which is faster."""
        for start in range(0, len(self), _AT_ONCE):
            yield from self.take(range(start, min(start + _AT_ONCE, len(self))), without)

    def take(self, indices: Sequence[int] | np.ndarray, without: str | None = None) -> list[Row]:
        """The rows at these indices; faster than one by one. `without` is as for `read`.

        Raises:
            DataError: a row is not a JSON object; the message begins with its place.
        """
        rows = np.empty(len(indices), object)
        for file, start, where in _by_part(np.asarray(indices, np.int64), self.starts):
            rows[where] = self._files[file].take(np.asarray(indices)[where] - start, without)
        return rows.tolist()

    def sizes(self, column: str) -> np.ndarray:
        """[rows] bytes of text in a column of a table, or of the row in JSON Lines."""
        return np.concatenate([np.zeros(0, np.int64), *(file.sizes(column) for file in self._files)])

    def place(self, index: int) -> str:
        """Where a row is, for messages: `FILE:NUMBER`, the line of JSON Lines or the row of a table, from 1."""
        file = int(np.searchsorted(self.starts, index, side="right")) - 1
        return self._files[file].place(index - int(self.starts[file]))

    @cached_property
    def digest(self) -> str:
        """A hash of the files' bytes."""
        digest = hashlib.blake2b(digest_size=8)
        for path in self.paths:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "blake2b").digest())
        return digest.hexdigest()


def open_rows(source: str, splits: Sequence[str] = ("train",)) -> Rows:
    """The rows of the first of these splits that a source has, or all of a source that is not divided.

    Args:
        source: a `.parquet` or `.jsonl` file, a folder of them (with the names of splits, such as `train.parquet`), a
            folder of `save_to_disk`, or the name of a data set on the Hugging Face Hub, such as `openai/gsm8k/main`
            (the last part is the configuration; `hf://` before it is fine).
        splits: as the source may call it.

    Raises:
        DataError: there is no such source or split, or it cannot be read; one line that says what to do.
    """
    files = find_files(source)
    split = next((name for name in (*splits, "") if name in files), None)
    if split is None:
        raise DataError(f"{source} has no {splits[0]} split; it has {', '.join(files)}")
    return Rows(files[split])


def find_files(source: str) -> dict[str, list[Path]]:
    """The files of each split of a source, or all under "" if it is not divided; as `open_rows`."""
    path = Path(source).expanduser()
    if path.is_dir():
        return split_files(path)
    if path.exists():
        check_ending(path)
        return {"": [path]}
    if path.suffix not in (".parquet", ".jsonl") and (name := parse_name(source)):
        return hub_files(*name)
    raise DataError(
        f"{source} does not exist; expected a .parquet or .jsonl file, a folder of them, or a data set of the Hugging "
        "Face Hub, such as openai/gsm8k/main"
    )


def _by_part(indices: np.ndarray, starts: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    """The parts that indices fall into: number, start, and where in `indices` those of the part are."""
    parts = np.searchsorted(starts, indices, side="right") - 1
    for part in np.unique(parts):
        yield int(part), int(starts[part]), np.flatnonzero(parts == part)


class _Table:
    """A Parquet or Arrow file, as memory-mapped record batches."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            table = _map_copy(path)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"cannot read {path}: {' '.join(str(error).split())}") from error
        # Times, images and the like are no part of a problem.
        self._batches = table.select([field.name for field in table.schema if fits_json(field.type)]).to_batches()
        self._starts = np.array([0, *accumulate(map(len, self._batches))])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def place(self, index: int) -> str:
        return f"{self._path}:{index + 1}"

    def take(self, indices: np.ndarray, without: str | None) -> list[Row]:
        rows = np.empty(len(indices), object)
        for part, start, where in _by_part(indices, self._starts):
            names = [name for name in self._batches[part].schema.names if name != without]
            batch = self._batches[part].select(names).take(pa.array(indices[where] - start))
            cells = zip(*(to_list(column) for column in batch.columns), strict=True)
            rows[where] = [dict(zip(names, row, strict=True)) for row in cells] or {}
        return rows.tolist()

    def sizes(self, column: str) -> np.ndarray:
        if not self._batches or column not in self._batches[0].schema.names:
            return np.zeros(len(self), np.int64)
        return np.concatenate([_text_bytes(batch.column(column)) for batch in self._batches])


def _text_bytes(values: pa.Array) -> np.ndarray:
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        ends, offsets = np.cumsum([0, *_text_bytes(values.values)]), values.offsets.to_numpy()
        return ends[offsets[1:]] - ends[offsets[:-1]]
    fields = values.flatten() if pa.types.is_struct(kind) else []
    return sum(map(_text_bytes, fields), start=np.zeros(len(values), np.int64))


def _map_copy(path: Path) -> pa.Table:
    """The rows of a Parquet or Arrow file, in a file without a name, which is gone with the process."""
    with tempfile.NamedTemporaryFile(suffix=".arrow") as file:
        if path.suffix == ".arrow":
            shutil.copyfile(path, file.name)
        else:
            writer = None
            for block in read_blocks(path):
                if block.bad:
                    raise DataError(f"{path}:{block.bad[0].number}: {block.bad[0].problem}")
                writer = writer or pa.ipc.new_stream(file.name, block.data.schema)
                writer.write_table(block.data)
            if writer is None:
                return pa.table({})
            writer.close()
        return pa.ipc.open_stream(pa.memory_map(file.name)).read_all()


class _JsonLines:
    """A JSON Lines file, as the places of its lines; blank ones are left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        starts, lengths, numbers, end = array("q"), array("q"), array("q"), 0
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        starts.append(end)
                        lengths.append(len(line))
                        numbers.append(number)
                    end += len(line)
                self._fd = os.dup(file.fileno())
            weakref.finalize(self, os.close, self._fd)
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from error
        self._starts, self._lengths, self._numbers = starts, lengths, numbers

    def __len__(self) -> int:
        return len(self._starts)

    def place(self, index: int) -> str:
        return f"{self._path}:{self._numbers[index]}"

    def sizes(self, column: str) -> np.ndarray:
        return np.array(self._lengths)

    def take(self, indices: np.ndarray, without: str | None) -> list[Row]:
        rows = []
        for index in indices.tolist():
            start, length = self._starts[index], self._lengths[index]
            try:
                line = os.pread(self._fd, length, start)
                if len(line) < length:
                    raise DataError("the file is shorter than when it was opened; leave it as it is while it is in use")
                rows.append(parse_line(line.removeprefix(b"\xef\xbb\xbf") if start == 0 else line) or {})
            except (DataError, OSError) as error:
                raise DataError(f"{self.place(index)}: {error}") from None
        return rows
