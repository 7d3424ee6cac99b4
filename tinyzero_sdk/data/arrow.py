"""Conversion between rows of plain JSON and Arrow tables, in which ragged columns are JSON. No files here."""

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tinyzero_sdk.data.rows import number
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.records import Json

Row = dict[str, Json]

_JSON = json.JSONEncoder(default=str)
_SORTED_JSON = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=str)
_UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)


def infer_schema(read: Callable[[], Iterable[Sequence[Row]]]) -> pa.Schema:
    """A schema that all rows fit, which `read` gives in blocks, the same each time.

    A column whose cells have no common type that Parquet can hold, such as text beside numbers, is one of JSON.
    """
    types: dict[str, pa.DataType] = {}
    widened: set[str] = set()  # columns in which integers become floats, of which those over 2**53 have none
    for rows in read():
        for name in dict.fromkeys(name for row in rows for name in row):
            kinds = types.get(name, pa.null()), _type_of([row.get(name) for row in rows])
            types[name] = _common_type(*kinds)
            if any(_turns_into_floats(kind, types[name]) for kind in kinds):
                widened.add(name)
    for rows in read() if widened else ():
        for name in widened:
            try:
                _to_column([row.get(name) for row in rows], types[name])
            except _UNFIT:
                types[name] = pa.json_()
    types = {name: pa.json_() if _lists_empty_structs(kind) else kind for name, kind in types.items()}
    return pa.schema(sorted(types.items(), key=lambda item: isinstance(item[1], pa.JsonType)))


def _type_of(cells: Sequence[Json]) -> pa.DataType:
    if {bool, float} <= {*map(type, cells)}:  # Arrow would turn the flags into numbers
        return pa.json_()
    try:
        return pa.array(cells).type
    except _UNFIT:
        return pa.json_()


def _common_type(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    """The type that the cells of both fit; JSON where there is none."""
    try:
        schemas = [pa.schema([("cell", kind)]) for kind in (first, second)]
        return pa.unify_schemas(schemas, promote_options="permissive").field("cell").type
    except _UNFIT:
        return pa.json_()


def _turns_into_floats(kind: pa.DataType, wider: pa.DataType) -> bool:
    """Whether integers of a type become floats in a wider one."""
    if isinstance(wider, pa.JsonType):
        return False
    if pa.types.is_list(kind):
        return _turns_into_floats(kind.value_type, wider.value_type)
    if pa.types.is_struct(kind):
        return any(_turns_into_floats(field.type, wider.field(field.name).type) for field in kind)
    return pa.types.is_integer(kind) and pa.types.is_floating(wider)


def _lists_empty_structs(kind: pa.DataType, in_list: bool = False) -> bool:
    """Whether a type has lists of `{}` alone, which Parquet cannot hold."""
    if pa.types.is_struct(kind) and not kind.num_fields:
        return in_list
    in_list = in_list or pa.types.is_list(kind)
    return any(_lists_empty_structs(kind.field(place).type, in_list) for place in range(kind.num_fields))


def to_table(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    """The rows as a table.

    Raises:
        DataError: they do not fit the schema.
    """
    try:
        return pa.table([_to_column([row.get(field.name) for row in rows], field.type) for field in schema], schema)
    except _UNFIT as error:
        raise DataError(f"the rows changed while the file was read: {error}") from error


def _to_column(cells: Sequence[Json], kind: pa.DataType) -> pa.Array:
    return _to_json(cells) if isinstance(kind, pa.JsonType) else pa.array(cells, kind)


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
        try:
            return [None if text is None else json.loads(text) for text in to_list(array.storage)]
        except (ValueError, RecursionError) as error:
            raise DataError(f"a column of JSON has a cell that is none: {error}") from error
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
    try:
        cells = array.to_pylist()
    except (ValueError, OverflowError):  # a time that Python has no type for
        cells = array.cast(pa.string()).to_pylist()
    return [None if cell is None else number(cell) for cell in cells] if pa.types.is_decimal(kind) else cells


def to_rows(table: pa.Table) -> list[Row]:
    """Its rows as plain JSON; `table.to_pylist()` leaves maps and JSON as they are stored."""
    cells = zip(*(to_list(column.combine_chunks()) for column in table.columns), strict=True)
    return [dict(zip(table.column_names, row, strict=True)) for row in cells]


def _with_nulls(array: pa.Array, values: list[Json]) -> list[Json]:
    if not array.null_count:
        return values
    return [value if valid else None for value, valid in zip(values, array.is_valid().to_pylist(), strict=True)]


def plain_columns(table: pa.Table) -> pa.Table:
    """The table with views as large types, which most Arrow functions accept, and dictionaries in lists as values."""
    schema = pa.schema([field.with_type(_plain_type(field.type)) for field in table.schema], table.schema.metadata)
    return table if schema.equals(table.schema) else table.cast(schema)


def _plain_type(kind: pa.DataType, *, in_list: bool = False) -> pa.DataType:
    if in_list and pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type, in_list=True)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_plain_type(kind.value_type, in_list=True)))
    if pa.types.is_map(kind):
        item = _plain_type(kind.item_type, in_list=True)
        return pa.map_(_plain_type(kind.key_type, in_list=True), kind.item_field.with_type(item))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type, in_list=in_list)) for field in kind])
    return kind


def check_json_types(path: Path, schema: pa.Schema) -> None:
    """Refuse columns that JSON cannot hold."""
    for field in schema:
        if not fits_json(field.type):
            raise DataError(f"column {field.name!r} of {path} is {field.type}, which JSON lacks; write .parquet")


def fitting(array: pa.Array) -> pa.Array | None:
    """What JSON can hold of a column: of objects, those of their fields; None where it is nothing."""
    if fits_json(array.type) or not pa.types.is_struct(array.type):
        return array if fits_json(array.type) else None
    parts = {field.name: fitting(part) for field, part in zip(array.type, array.flatten(), strict=True)}
    kept = {name: part for name, part in parts.items() if part is not None}
    return pa.StructArray.from_arrays([*kept.values()], names=[*kept], mask=array.is_null()) if kept else None


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
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    return any(fits(kind) for fits in (*numbers, is_text, pa.types.is_string_view, pa.types.is_null))
