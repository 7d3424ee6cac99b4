"""Rows by index, from wherever users keep them: a file, a folder, or the Hugging Face Hub.

No row is held as Python objects: the rows are memory-mapped from an unnamed temporary file, since a file of the user
that is truncated while it is mapped would end the process. `files.py` reads whole files in order.
"""

import hashlib
import json
import tempfile
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa

from tinyzero_sdk.data.arrow import Row, fitting, to_list
from tinyzero_sdk.data.files import as_json, check_ending, read_blocks
from tinyzero_sdk.data.folders import split_files
from tinyzero_sdk.data.hub import hub_files, parse_name
from tinyzero_sdk.data.rows import ROW_COLUMNS, check_columns, renamed
from tinyzero_sdk.errors import DataError

_AT_ONCE = 1024
_ENDINGS = (".parquet", ".jsonl", ".json")
_READ = (*ROW_COLUMNS, "ground_truth", "messages", "completion")  # what is left out of other columns is not missed


class Rows:
    """Rows of plain Python values, read when they are asked for."""

    def __init__(self, files: Sequence[Path], columns: Mapping[str, str] | None = None) -> None:
        """`columns` are further names of their columns or fields (`NAME.FIELD`): theirs by ours.

        Raises:
            DataError: a file or one of its rows cannot be read, or it has no such column.
        """
        self.paths, self._columns = tuple(files), columns or {}
        self._files = [_File(path) for path in files]
        for path, file in zip(files, self._files, strict=True):
            if len(file):
                check_columns(self._columns, file.take(np.zeros(1, np.int64))[0], path)
        self.starts = np.array([0, *accumulate(map(len, self._files))])
        """[files + 1] index of the first row of each file, and the number of rows."""

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, index: int) -> Row:
        return self.take([index])[0]

    def __iter__(self) -> Iterator[Row]:
        for start in range(0, len(self), _AT_ONCE):
            yield from self.take(range(start, min(start + _AT_ONCE, len(self))))

    def take(self, indices: Sequence[int] | np.ndarray) -> list[Row]:
        """The rows at these indices; faster than one by one."""
        rows = np.empty(len(indices), object)
        for file, start, where in _by_part(np.asarray(indices, np.int64), self.starts):
            rows[where] = self._files[file].take(np.asarray(indices)[where] - start)
        return [renamed(row, self._columns) for row in rows] if self._columns else rows.tolist()

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


def open_rows(source: str, splits: Sequence[str] = ("train",), columns: Mapping[str, str] | None = None) -> Rows:
    """The rows of the first of these splits that a source has, or all of a source that is not divided.

    Args:
        source: a `.parquet`, `.jsonl` or `.json` file, a folder of the first two (with the names of splits, such as
            `train.parquet`), a folder of `save_to_disk`, or the name of a data set on the Hugging Face Hub, such as
            `openai/gsm8k/main` (the last part is the configuration; `hf://` before it is fine).
        splits: as the source may call it.
        columns: as of `Rows`.

    Raises:
        DataError: there is no such source or split, or it cannot be read; one line that says what to do.
    """
    files = find_files(source)
    split = next((name for name in (*splits, "") if name in files), None)
    if split is None:
        raise DataError(f"{source} has no {splits[0]} split; it has {', '.join(files)}")
    return Rows(files[split], columns)


def find_files(source: str) -> dict[str, list[Path]]:
    """The files of each split of a source, or all under "" if it is not divided; as `open_rows`."""
    path = Path(source).expanduser()
    if path.is_dir():
        return split_files(path)
    if path.exists():
        check_ending(path, _ENDINGS)
        return {"": [path]}
    if path.suffix not in _ENDINGS and (name := parse_name(source)):
        return hub_files(*name)
    raise DataError(
        f"{source} does not exist; expected a file ({', '.join(_ENDINGS)}), a folder of them, or a data set of the "
        "Hugging Face Hub, such as openai/gsm8k/main"
    )


def _by_part(indices: np.ndarray, starts: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    """The parts that indices fall into: number, start, and where in `indices` those of the part are."""
    parts = np.searchsorted(starts, indices, side="right") - 1
    for part in np.unique(parts):
        yield int(part), int(starts[part]), np.flatnonzero(parts == part)


class _File:
    """The rows of a file as memory-mapped record batches; those of JSON Lines as one column of JSON."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._lines, table = _map_copy(path)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"cannot read {path}: {' '.join(str(error).split())}") from error
        for field in table.schema:
            if field.name in _READ and fitting(pa.array([], field.type)) is None:
                raise DataError(
                    f"column {field.name!r} of {path} is {field.type}; expected text, numbers, lists, objects"
                )
        self._batches = table.to_batches()
        self._starts = np.array([0, *accumulate(map(len, self._batches))])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def place(self, index: int) -> str:
        return f"{self._path}:{self._lines[index] if self._lines else index + 1}"

    def take(self, indices: np.ndarray) -> list[Row]:
        rows = np.empty(len(indices), object)
        for part, start, where in _by_part(indices, self._starts):
            batch = self._batches[part].take(pa.array(indices[where] - start))
            if self._lines:
                rows[where] = [json.loads(text) for text in batch["row"].to_pylist()]
            else:
                # Times, images and the like are no part of a problem.
                columns = {
                    name: fitting(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)
                }
                kept = {name: to_list(column) for name, column in columns.items() if column is not None}
                rows[where] = [dict(zip(kept, row, strict=True)) for row in zip(*kept.values(), strict=True)] or {}
        return rows.tolist()


def _map_copy(path: Path) -> "tuple[array[int], pa.Table]":
    """The rows of a file, copied to one without a name, which is gone with the process; of JSON Lines their lines."""
    lines = array("q")
    with tempfile.NamedTemporaryFile(suffix=".arrow") as file:
        writer = None
        for block in read_blocks(path):
            if block.bad:
                raise DataError(f"{path}:{block.bad[0].number}: {block.bad[0].error}")
            table = block.data
            if not isinstance(table, pa.Table):
                lines.extend(block.numbers)
                table = pa.table({"row": pa.array(map(as_json, table), pa.large_string())})
            writer = writer or pa.ipc.new_stream(file.name, table.schema)
            writer.write_table(table)
        if writer is None:
            return lines, pa.table({})
        writer.close()
        return lines, pa.ipc.open_stream(pa.memory_map(file.name)).read_all()
