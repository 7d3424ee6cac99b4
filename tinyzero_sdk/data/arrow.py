"""Conversion between rows of plain JSON and Arrow tables, with the rows that do not fit. No files here."""

import contextlib
import json
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tinyzero_sdk.errors import DataError
from tinyzero_sdk.records import Json

Row = dict[str, Json]

_JSON = json.JSONEncoder(default=str)
_SORTED_JSON = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=str)
_UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)


def infer_schema(blocks: Iterable[Sequence[Row]]) -> pa.Schema:
    """A schema that fits as many rows as possible, earlier ones first; `to_table` reports the others.

    A column none of whose cells Arrow has a type for, such as lists of text and numbers, is one of JSON.
    """
    schema, names = pa.schema([]), dict[str, None]()
    for rows in blocks:
        names |= dict.fromkeys(name for row in rows for name in row)
        try:
            schema = _widen(schema, rows)
        except _UNFIT:
            for row in rows:
                with contextlib.suppress(*_UNFIT):
                    schema = _widen(schema, [{name: cell for name, cell in row.items() if _has_type(cell)}])
    return pa.schema([*schema, *(pa.field(name, pa.json_()) for name in names if name not in schema.names)])


def _has_type(cell: Json) -> bool:
    try:
        return pa.array([cell]) is not None
    except _UNFIT:
        return False


def _widen(schema: pa.Schema, rows: Sequence[Row]) -> pa.Schema:
    names = dict.fromkeys(name for row in rows for name in row)
    types = [(name, pa.array([row.get(name) for row in rows]).type) for name in names]
    return pa.unify_schemas([schema, pa.schema(types)], promote_options="permissive")


def to_table(rows: Sequence[Row], schema: pa.Schema) -> tuple[pa.Table, dict[int, str]]:
    """The rows that fit the schema as a table, and the problems of the others, by index."""
    try:
        return _to_table(rows, schema), {}
    except _UNFIT:
        problems: dict[int, str] = {}
        for place, row in enumerate(rows):
            try:
                _to_table([row], schema)
            except _UNFIT as error:
                problems[place] = f"does not fit the types of the other rows: {error}"
        return _to_table([row for place, row in enumerate(rows) if place not in problems], schema), problems


def _to_table(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    lists = [[row.get(field.name) for row in rows] for field in schema]
    columns = [
        _to_json(cells) if isinstance(field.type, pa.JsonType) else pa.array(cells, field.type)
        for cells, field in zip(lists, schema, strict=True)
    ]
    return pa.table(columns, schema=schema)


def _to_json(cells: Sequence[Json]) -> pa.Array:
    texts = [None if cell is None else _JSON.encode(cell) for cell in cells]
    return pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts, pa.string()))


def to_array(cells: Sequence[Json]) -> pa.Array:
    """The cells as a column: of text, numbers or flags where all are that, otherwise of JSON.

    Example:
        >>> [str(to_array(cells).type) for cells in ([1, None], [1, 1.5], [[1]], [2**70])]
        ['int64', 'extension<arrow.json>', 'extension<arrow.json>', 'extension<arrow.json>']
    """
    if len(kinds := {*map(type, cells)} - {type(None)}) <= 1 and kinds <= {str, bool, int, float}:
        with contextlib.suppress(OverflowError, UnicodeEncodeError):  # of 64 bits, or half a character
            return pa.array(cells)
    return _to_json(cells)


def to_typed(cells: Sequence[Json], kind: pa.DataType) -> pa.Array:
    """The cells as a column of a type; of text with lone surrogates, which Arrow refuses, escaped."""
    if pa.types.is_map(kind):
        cells = [None if cell is None else list(cell.items()) for cell in cells]
    try:
        return pa.array(cells, kind)
    except UnicodeEncodeError:
        return pa.array([cell and cell.encode("utf-8", "backslashreplace").decode() for cell in cells], kind)


def to_floats(array: pa.Array) -> np.ndarray:
    """[n] float64: numbers, or lengths of lists; NaN for everything else."""
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        array = pc.list_value_length(array)
    if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
        return np.asarray(pc.cast(array, pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)
    if isinstance(array.type, pa.JsonType):
        return np.array(
            [to_float(len(cell) if isinstance(cell, list) else cell) for cell in to_list(array)], np.float64
        )
    return np.full(len(array), np.nan)


def to_float(value: Json) -> float:
    """A number as a float; NaN for what is none, or too great for one."""
    try:
        return float(value) if type(value) in (int, float) else math.nan
    except OverflowError:
        return math.nan


def to_texts(array: pa.Array) -> pa.Array:
    """A column as text, the same for equal values in JSON and in Parquet: what is not text as JSON."""
    if is_text(array.type):
        return array
    cells = [cell if cell is None or isinstance(cell, str) else as_text(cell) for cell in to_list(array)]
    return to_typed(cells, pa.string())


def as_text(value: Json) -> str:
    """A value as JSON, with the names of an object sorted."""
    return _SORTED_JSON.encode(value)


def is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def to_list(array: pa.Array) -> list[Json]:
    """Equal to `array.to_pylist()`, but several times faster for text, numbers, and lists and structs of them.

    Example:
        >>> to_list(pa.array([{"numbers": [3, 4], "target": 7}, None]))
        [{'numbers': [3, 4], 'target': 7}, None]
    """
    kind = array.type
    if pa.types.is_map(kind):
        return [None if pairs is None else dict(pairs) for pairs in array.to_pylist()]
    if isinstance(kind, pa.JsonType):
        return [None if text is None else json.loads(text) for text in to_list(array.storage)]
    if is_text(kind) or pa.types.is_boolean(kind):
        return array.to_numpy(zero_copy_only=False).tolist()
    if (pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind)) and not array.null_count:
        return array.to_numpy(zero_copy_only=False).tolist()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        offsets = array.offsets.to_pylist()
        first = offsets[0] if offsets else 0
        values = to_list(array.values[first : offsets[-1]]) if offsets else []
        lists = [values[start - first : end - first] for start, end in pairwise(offsets)]
        return _with_nulls(array, lists)
    if pa.types.is_struct(kind) and kind.num_fields:
        names = [field.name for field in kind]
        cells = zip(*(to_list(child) for child in array.flatten()), strict=True)
        return _with_nulls(array, [dict(zip(names, row, strict=True)) for row in cells])
    return array.to_pylist()


def to_rows(table: pa.Table) -> list[Row]:
    """Its rows as plain JSON; `table.to_pylist()` leaves maps and JSON as they are stored."""
    cells = zip(*(to_list(column.combine_chunks()) for column in table.columns), strict=True)
    return [dict(zip(table.column_names, row, strict=True)) for row in cells]


def _with_nulls(array: pa.Array, values: list[Json]) -> list[Json]:
    if not array.null_count:
        return values
    return [value if valid else None for value, valid in zip(values, array.is_valid().to_pylist(), strict=True)]


def without_views(table: pa.Table) -> pa.Table:
    """The table with string and binary views converted to large types: most Arrow functions do not accept views."""
    schema = pa.schema([field.with_type(_without_views(field.type)) for field in table.schema], table.schema.metadata)
    return table if schema.equals(table.schema) else table.cast(schema)


def _without_views(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_views(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_without_views(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_views(field.type)) for field in kind])
    return kind


def check_json_types(path: Path, schema: pa.Schema) -> None:
    """Refuse columns that JSON cannot hold."""
    for field in schema:
        if not fits_json(field.type):
            raise DataError(f"column {field.name!r} of {path} is {field.type}, which JSON lacks; write .parquet")


def fits_json(kind: pa.DataType) -> bool:
    """Whether JSON can hold the values of a type."""
    if isinstance(kind, pa.JsonType):
        return True
    if pa.types.is_map(kind):
        return pa.types.is_string(kind.key_type) and fits_json(kind.item_type)
    if pa.types.is_dictionary(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return fits_json(kind.value_type)
    if pa.types.is_struct(kind):
        return all(fits_json(field.type) for field in kind)
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return is_number or is_text(kind) or pa.types.is_string_view(kind) or pa.types.is_null(kind)
