"""Conversion between rows of plain JSON and Arrow tables, with the rows that do not fit. No files here."""

import contextlib
import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

from tinyzero_sdk.errors import DataError
from tinyzero_sdk.records import Json

Row = dict[str, Json]

_UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)


def infer_schema(blocks: Iterable[Sequence[Row]]) -> pa.Schema:
    """A schema that fits as many rows as possible, earlier ones first; `to_table` reports the others."""
    schema = pa.schema([])
    for rows in blocks:
        try:
            schema = _widen(schema, rows)
        except _UNFIT:
            for row in rows:
                with contextlib.suppress(*_UNFIT):
                    schema = _widen(schema, [row])
    return schema


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
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.table(columns, schema=schema)


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
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_boolean(kind):
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
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return is_number or is_text or pa.types.is_null(kind)
