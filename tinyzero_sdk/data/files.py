"""Read .jsonl, .json, .csv and .parquet files in blocks, and write the first and the last kind atomically.

`rows.py` is about their content.

A file that cannot be read raises a DataError; a row that cannot is a `BadRow`, and reading continues.
"""

import csv
import gzip
import io
import json
import os
import secrets
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO, NoReturn, Self, cast

import pyarrow as pa
import pyarrow.parquet as pq

from tinyzero_sdk.console import finite
from tinyzero_sdk.data.arrow import Row
from tinyzero_sdk.data.arrow_files import MOST_ROW_BYTES, TOO_LARGE, read_arrow, read_parquet
from tinyzero_sdk.data.table import BadRow, Block
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.records import Json

ENDINGS = (".jsonl", ".parquet")
READ_ENDINGS = (".jsonl", ".json", ".csv", ".parquet")
"""Those that are read; all but the last may be followed by `.gz`."""

CSV_TEXTS = ("prompt", "completion", "ground_truth")
"""Columns of a CSV file that are text, whatever they look like."""

_BLOCK_ROWS = 1024
_BLOCK_BYTES = 16 << 20
_GROUP_ROWS = 16384
_GROUP_BYTES = 256 << 20


def ending_of(path: Path) -> str:
    """The ending of a file name, without that of its compression."""
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix


def check_ending(path: Path, endings: Sequence[str] = ENDINGS) -> None:
    """Refuse a file name without one of these endings; that of a text file may have .gz after it, if any may."""
    ending = ending_of(path) if endings == READ_ENDINGS else path.suffix
    if ending not in endings or (ending, path.suffix) == (".parquet", ".gz"):
        *first, last = endings
        raise DataError(
            f"{path} ends in {path.suffix or 'nothing'}; expected a name that ends in {', '.join(first)} or {last}"
        )


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file.

    Raises:
        DataError: at the first bad row, with its number, or where the file cannot be read.
    """
    for block in read_blocks(path):
        if block.bad:
            raise DataError(f"{path}:{block.bad[0].number}: {block.bad[0].error}")
        yield from block.rows()


def read_blocks(path: Path, columns: Sequence[str] | None = None) -> Iterator[Block]:
    """The rows of a file, some thousand at a time.

    Args:
        path: of the file.
        columns: the only ones to read (`name` or `name.field`) where the format allows it; others may be missing.

    Raises:
        DataError: the file cannot be read.
    """
    if path.suffix != ".arrow":  # of folders alone
        check_ending(path, READ_ENDINGS)
    try:
        if path.suffix in (".parquet", ".arrow"):
            yield from read_parquet(path, columns) if path.suffix == ".parquet" else read_arrow(path)
        else:
            yield from _read_text(path)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def _read_text(path: Path) -> Iterator[Block]:
    """The rows of a JSON Lines or CSV file, which may be compressed."""
    rows, size = list[Row](), 0
    block = Block([], rows, [], 0.0)
    with path.open("rb") as raw, gzip.open(raw) if path.suffix == ".gz" else nullcontext(raw) as file:
        length = max(1, os.fstat(raw.fileno()).st_size)
        records = {".csv": _csv_records, ".json": _array_records}.get(ending_of(path), _json_records)
        for number, row, width in records(cast(BinaryIO, file)):
            if isinstance(row, str):
                block.bad.append(BadRow(number, row))
            elif row is not None:
                rows.append(row)
                block.numbers.append(number)
            size += width
            if len(block) + len(block.bad) >= _BLOCK_ROWS or size >= _BLOCK_BYTES:
                block.progress = raw.tell() / length
                yield block
                rows, size = [], 0
                block = Block([], rows, [], 0.0)
    block.progress = 1.0
    yield block


_Record = tuple[int, Row | str | None, int]
"""Line number, row (or its problem; None = a blank line), and size."""


def _json_records(file: BinaryIO) -> Iterator[_Record]:
    for number, line in _lines(file):
        try:
            yield number, TOO_LARGE if line is None else parse_line(line), len(line or b"")
        except DataError as error:
            yield number, str(error), len(line or b"")


def _array_records(file: BinaryIO) -> Iterator[_Record]:
    """The objects of a JSON array, numbered from 1; the lines of a file that holds none."""
    start = file.peek(1 << 10).lstrip(b"\xef\xbb\xbf \t\r\n")  # type: ignore[attr-defined]
    if not start.startswith(b"["):
        yield from _json_records(file)
        return
    text = file.read(MOST_ROW_BYTES + 1)
    if len(text) > MOST_ROW_BYTES:
        raise DataError(
            f"{file.name} is a JSON array of more than {MOST_ROW_BYTES >> 20} MB; write JSON Lines (jq -c '.[]')"
        )
    try:
        rows = _decode(text.removeprefix(b"\xef\xbb\xbf"))
    except DataError as error:
        raise DataError(f"cannot read {file.name}: {error}") from error
    for number, row in enumerate(rows, 1):
        yield number, row if isinstance(row, dict) else _no_object(row), len(text) // len(rows)


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Numbered lines, None for one that is too long."""
    number = 0
    while line := file.readline(MOST_ROW_BYTES):
        number += 1
        rest = line
        while len(rest) == MOST_ROW_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(MOST_ROW_BYTES)
        yield number, None if rest is not line else line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line


def _csv_records(file: BinaryIO) -> Iterator[_Record]:
    """The rows below a header; cells of `CSV_TEXTS` are text, others JSON where they can be read as that."""
    csv.field_size_limit(MOST_ROW_BYTES)
    size = 0
    with io.TextIOWrapper(file, "utf-8-sig", newline="") as text:

        def lines() -> Iterator[str]:
            nonlocal size
            while line := text.readline(MOST_ROW_BYTES):
                size += len(line)
                if size >= MOST_ROW_BYTES:
                    raise csv.Error(TOO_LARGE)
                yield line

        reader = csv.reader(lines(), strict=True)
        try:
            header = next(reader, [])
            if len(set(header)) < len(header):
                raise DataError(f"{file.name} has two columns of one name, among: {', '.join(header)}; rename one")
            number, size = reader.line_num + 1, 0
            for cells in reader:
                row: Row | str | None = None
                if len(cells) == len(header):
                    pairs = zip(header, cells, strict=True)
                    row = {name: cell if name in CSV_TEXTS else _csv_value(cell) for name, cell in pairs}
                elif cells:
                    row = f"a row of {len(cells)} where the header has {len(header)}"
                yield number, row, size
                number, size = reader.line_num + 1, 0
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{file.name} is not CSV in UTF-8, as of line {reader.line_num + 1}: {error}") from error


def _csv_value(cell: str) -> Json:
    """A cell as JSON, or else as text; `True` and `False` are pandas'."""
    words: dict[str, Json] = {"": None, "True": True, "False": False}
    try:
        return words[cell] if cell in words else _DECODER.decode(cell)
    except (ValueError, RecursionError, DataError):
        return cell


def parse_line(line: bytes) -> Row | None:
    """One line of a JSON Lines file; None if it is blank.

    Raises:
        DataError: it is not a JSON object in UTF-8, or holds what other readers reject: a repeated key, NaN, a number
            too large for a float, a lone surrogate.
    """
    if not line.strip(b" \t\r\n"):
        return None
    if not isinstance(row := _decode(line), dict):
        raise DataError(_no_object(row))
    return row


def _decode(text: bytes) -> Json:
    try:
        value = _DECODER.decode(text.decode())
        if b"\\ud" in text or b"\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise DataError(_fault(error)) from error
    return value


def _no_object(row: Json) -> str:
    return f"{'null' if row is None else f'a {type(row).__name__}'}; expected a JSON object"


def _fault(error: ValueError | RecursionError) -> str:
    """What is wrong with a line."""
    match error:
        case UnicodeDecodeError():
            return f"not UTF-8 at byte {error.start + 1} of the line"
        case UnicodeEncodeError():
            return "a lone surrogate (half a character)"
        case json.JSONDecodeError():  # whose own column is of the next line where the line's end is wrong
            return f"not JSON: {error.msg.removesuffix(' at')} at column {min(error.pos, len(error.doc.rstrip())) + 1}"
        case RecursionError():
            return "nested too deeply"
    return f"not readable: {error}"  # an integer with thousands of digits


def _unique(pairs: list[tuple[str, Json]]) -> Row:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise DataError(f"a repeated key, {next(name for name in names if names.count(name) > 1)!r}")
    return row


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise DataError(f"the number {text[:20]}, too large for a float")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise DataError(f"{name}, which JSON does not have")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_refuse_constant)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write to, which becomes `path` when the block ends, and is removed if the block fails.

    Raises:
        DataError: the system refuses to write.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            try:
                yield temporary
                os.fsync(file.fileno())
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error


class JsonLinesWriter:
    """Writes rows to a JSON Lines file, in ASCII for the sake of any reader."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="ascii", newline="\n")

    def write(self, rows: Iterable[Row]) -> None:
        """Append rows; NaN and infinity, which JSON lacks, become null."""
        self._file.writelines(as_json(row) + "\n" for row in rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


_ENCODER = json.JSONEncoder(allow_nan=False, default=str)


def as_json(value: Json) -> str:
    """A value as JSON, with null in place of NaN and infinity, which JSON lacks."""
    try:
        return _ENCODER.encode(value)
    except ValueError:
        return _ENCODER.encode(finite(value))


def _has_empty_struct(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) and (not kind.num_fields or any(_has_empty_struct(field.type) for field in kind))


def _without_empty_structs(values: pa.Array) -> pa.Array:
    """Null for `{}` where no row has a field, which Parquet has no type for."""
    if not pa.types.is_struct(values.type):
        return values
    if not values.type.num_fields:
        return pa.nulls(len(values))
    parts = [_without_empty_structs(part) for part in values.flatten()]
    return pa.StructArray.from_arrays(parts, [field.name for field in values.type], mask=values.is_null())


class ParquetWriter:
    """Writes tables to a Parquet file in row groups of one size, so that its bytes do not depend on the tables."""

    def __init__(self, path: Path, *, plain: Sequence[str] = ()) -> None:
        """
        Args:
            path: of the new file.
            plain: columns of text without repeated values, for which no dictionary is tried.
        """
        self._path = path
        self._plain = plain
        self._writer: pq.ParquetWriter | None = None
        self._waiting: pa.Table | None = None

    def write(self, table: pa.Table) -> None:
        """Append a table; the first one decides the schema.

        Raises:
            DataError: Parquet has no such type, or the types are not those of the first table.
        """
        for place, name in enumerate(table.schema.names):
            if _has_empty_struct(table.schema.field(place).type):
                table = table.set_column(place, name, _without_empty_structs(table.column(place).combine_chunks()))
        if self._writer is None or self._waiting is None:
            self._writer, self._waiting = self._open(table.schema), table
        else:
            try:
                table = table.cast(self._waiting.schema)
            except (pa.ArrowException, ValueError) as error:
                raise DataError(
                    f"a column changes its type, but Parquet needs one ({error}); use one type, or write .jsonl"
                ) from error
            self._waiting = pa.concat_tables([self._waiting, table])
        while len(self._waiting) >= _GROUP_ROWS or self._waiting.nbytes > _GROUP_BYTES:
            self._waiting = self._write_group(self._waiting)

    def _open(self, schema: pa.Schema) -> pq.ParquetWriter:
        self._file = pa.OSFile(os.fsencode(self._path), "wb")  # as bytes, since a path may be no UTF-8
        others: bool | list[str] = [name for name in schema.names if name not in self._plain] if self._plain else True
        try:
            return pq.ParquetWriter(
                self._file, schema, version="2.6", compression="zstd", use_dictionary=others, write_page_checksum=True
            )
        except pa.ArrowNotImplementedError as error:
            raise DataError(f"Parquet cannot hold this: {error}; write .jsonl instead") from error

    def _write_group(self, table: pa.Table) -> pa.Table:
        assert self._writer is not None
        self._writer.write_table(table[:_GROUP_ROWS].combine_chunks(), row_group_size=_GROUP_ROWS)
        return table[_GROUP_ROWS:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._writer is not None and self._waiting is not None:
            if kind is None and len(self._waiting):
                self._write_group(self._waiting)
            self._writer.close()
            self._file.close()
