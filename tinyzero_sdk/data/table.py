"""A block of a file's rows as columns by name, whether the file has typed columns or a JSON object on each line.

`files.py` and the readers of `scoring/` make blocks; what scores, compares and shows rows reads their columns here.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tinyzero_sdk.data.arrow import Row, is_text, to_array, to_floats, to_list, to_rows, to_typed
from tinyzero_sdk.data.rows import check_columns, read_object, renamed
from tinyzero_sdk.records import Json

ALIASES: Mapping[str, tuple[str, ...]] = {
    "problem": ("extra_info.key", "problem", "prompt", "extra_info.index"),
    "task": ("task", "data_source"),
    "difficulty": ("extra_info.difficulty", "difficulty"),
    "num_tokens": ("token_count", "tokens", "num_tokens"),
    "ground_truth": ("ground_truth", "reward_model.ground_truth"),
}
"""Where files keep what we call by these names: the first column (`name`) or field of one (`name.field`) with a value.

Rows with one value of `problem` are completions of one problem. A list of tokens stands for its length.
"""

UNKNOWN_FLAG = 2  # in place of a flag that is 0 or 1


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be used."""

    number: int
    """Line of a text file or row of a Parquet file, from 1."""

    error: str


@dataclass(slots=True)
class Block:
    """The next n rows of a file."""

    numbers: list[int]
    """[n] line or row numbers, from 1."""

    data: Any
    """[n] rows: a list of JSON objects, whose columns need not be of one type, or a `pa.Table`."""

    bad: list[BadRow]
    progress: float
    """Fraction of the file read so far, 0 to 1."""

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def names(self) -> Collection[str]:
        """The columns that a row may have."""
        rows = self.data
        return rows.column_names if isinstance(rows, pa.Table) else dict.fromkeys(name for row in rows for name in row)

    def column(self, path: str) -> pa.Array:
        """[n] a column or a field of one, null where a row lacks it: JSON where an object's cells are of several types.

        Example:
            >>> Block([1, 2], [{"a": {"b": 1}}, {"a": {"b": "x"}}], [], 1.0).column("a.b").to_pylist()
            ['1', '"x"']
        """
        if not isinstance(self.data, pa.Table):
            return to_array(self.cells(path))
        name, _, inner = path.partition(".")
        if name not in self.data.column_names:
            return pa.nulls(len(self))
        values = self.data[name].combine_chunks()
        if inner and (isinstance(values.type, pa.JsonType) or is_text(values.type)):
            return to_array(_fields(to_list(values), inner))
        if inner and (not pa.types.is_struct(values.type) or values.type.get_field_index(inner) < 0):
            return pa.nulls(len(self))
        values = pc.struct_field(values, inner) if inner else values
        return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values

    def cells(self, path: str) -> list[Json]:
        """[n] a column or a field of one as plain JSON, None where a row lacks it."""
        if isinstance(self.data, pa.Table):
            return to_list(self.column(path))
        name, _, inner = path.partition(".")
        cells = [row.get(name) for row in self.data]
        return _fields(cells, inner) if inner else cells

    def first(self, name: str) -> pa.Array:
        """[n] a row's first value in a name's `ALIASES`."""
        columns = [values for path in _paths(name) if (values := self.column(path)).null_count < len(self)]
        if len(columns) == 1 or (columns and not columns[0].null_count):
            return columns[0]
        return to_array(self.first_cells(name)) if columns else pa.nulls(len(self))

    def first_cells(self, name: str) -> list[Json]:
        """[n] a row's first value in a name's `ALIASES`, as plain JSON."""
        cells: list[Json] = [None] * len(self)
        for path in _paths(name):
            if None in cells:
                cells = [
                    cell if cell is not None else other for cell, other in zip(cells, self.cells(path), strict=True)
                ]
        return cells

    def floats(self, name: str) -> np.ndarray:
        """[n] a row's first number in a name's `ALIASES`, or the length of a list; NaN where it has none."""
        values = np.full(len(self), np.nan)
        for path in _paths(name):
            if (unknown := np.isnan(values)).any():
                values = np.where(unknown, to_floats(self.column(path)), values)
        return values

    def flags(self, path: str) -> np.ndarray:
        """[n] uint8: 0, 1 or `UNKNOWN_FLAG`."""
        values = self.column(path)
        if not pa.types.is_boolean(values.type):
            values = pa.array([cell if isinstance(cell, bool) else None for cell in to_list(values)], pa.bool_())
        return values.cast(pa.uint8()).fill_null(UNKNOWN_FLAG).to_numpy(zero_copy_only=False)

    def rows(self) -> list[Row]:
        """[n] the rows as JSON objects."""
        return to_rows(self.data) if isinstance(self.data, pa.Table) else self.data

    def drop(self, errors: Mapping[int, str]) -> None:
        """Move the rows with an error, by index, to the bad ones."""
        if not errors:
            return
        bad = [BadRow(self.numbers[row], error) for row, error in errors.items()]
        kept = self.take([row for row in range(len(self)) if row not in errors])
        self.numbers, self.data, self.bad = kept.numbers, kept.data, sorted(self.bad + bad, key=lambda row: row.number)

    def take(self, indices: Sequence[int]) -> "Block":
        """The rows at these indices."""
        rows = self.data
        data = rows.take(pa.array(indices, pa.int64())) if isinstance(rows, pa.Table) else [rows[i] for i in indices]
        return Block([self.numbers[i] for i in indices], data, [], self.progress)

    def split(self, index: int) -> "tuple[Block, Block]":
        """The rows before an index, with the bad ones, and the others."""
        return (
            Block(self.numbers[:index], self.data[:index], self.bad, self.progress),
            Block(self.numbers[index:], self.data[index:], [], self.progress),
        )

    def joined(self, other: "Block") -> "Block":
        """The rows of both, which are of one file."""
        data = (
            pa.concat_tables([self.data, other.data], promote_options="default")
            if isinstance(self.data, pa.Table)
            else self.data + other.data
        )
        return Block(self.numbers + other.numbers, data, self.bad + other.bad, other.progress)

    def without(self, name: str) -> "Block":
        """The rows without a column."""
        if isinstance(self.data, pa.Table):
            data = self.data.drop_columns([name]) if name in self.data.column_names else self.data
        else:
            data = [{key: row[key] for key in row if key != name} if name in row else row for row in self.data]
        return Block(self.numbers, data, self.bad, self.progress)

    def mapped(self, columns: Mapping[str, str], path: Path) -> "Block":
        """The rows of a file with further names of its columns or their fields: theirs by ours; not missing ones."""
        if len(self):
            check_columns(columns, self.names, path)
        if isinstance(self.data, pa.Table):
            data = self.data.select([name for name in self.data.column_names if name not in columns])
            for ours, theirs in columns.items():
                data = data.append_column(ours, self.column(theirs))
        else:
            data = [renamed(row, columns) for row in self.data]
        return Block(self.numbers, data, self.bad, self.progress)

    def with_columns(self, columns: Mapping[str, tuple[Sequence[Json] | str, pa.DataType]]) -> "Block":
        """The rows with these columns, a list or one text for all rows, in place of those of their names."""
        data = self.data
        if isinstance(data, pa.Table):
            data = data.select([name for name in data.column_names if name not in columns])
            for name, (cells, kind) in columns.items():
                repeats = isinstance(cells, str)
                data = data.append_column(name, pa.repeat(cells, len(self)) if repeats else to_typed(cells, kind))
        else:
            lists = [[cells] * len(self) if isinstance(cells, str) else cells for cells, _ in columns.values()]
            cells_of_rows = zip(*lists, strict=True)
            data = [row | dict(zip(columns, new, strict=True)) for row, new in zip(data, cells_of_rows, strict=True)]
        return Block(self.numbers, data, self.bad, self.progress)


def _fields(cells: Sequence[Json], name: str) -> list[Json]:
    return [read_object(cell).get(name) for cell in cells]


def _paths(name: str) -> tuple[str, ...]:
    return ALIASES.get(name, (name,))
