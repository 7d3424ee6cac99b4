"""Read Parquet and Arrow files in blocks that take little memory, whatever a file claims to hold.

A footer of Parquet does not tell what its pages decode to: one entry of a dictionary stands for any number of rows, and
a few bytes, compressed, for gigabytes. Their headers do, as in parquet.thrift of apache/parquet-format. A row that is
too large is a bad row, as a line of JSON Lines is.
"""

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tinyzero_sdk.data.arrow import is_text, plain_columns
from tinyzero_sdk.data.table import BadRow, Block
from tinyzero_sdk.errors import DataError

MOST_ROW_BYTES = 64 << 20
TOO_LARGE = f"a row of over {MOST_ROW_BYTES >> 20} MB; shorten it"

_BLOCK_ROWS = 4096
_BLOCK_BYTES, _MOST_BLOCK_BYTES = 8 << 20, 16 << 20  # on average, and of any that has several rows
_MOST_DECODED, _MOST_RATIO = 256 << 20, 1000  # bytes of the rows of a file, or so many times its size
_MOST_AT_ONCE, _LIST_RATIO = 512 << 20, 64  # of pages, and of lists, unless at most so many times their bytes in a file
_OBJECT_BYTES, _VALUE_BYTES = 32, 16  # of a number in Python, and in Arrow with what says to which row it belongs
_READ_AHEAD, _SMALL_FILE = 1 << 20, 64 << 20
_MOST_HEADER = 1 << 16  # bytes of a page's
_INSIDE = 12  # bytes of a text that a view holds itself
_END_MARKER = 8  # bytes after the last batch of an Arrow file
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_OF_DICTIONARY, _BY_DIFFERENCE = (2, 8), 7  # encodings whose values are indices, or what differs from the last
_CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
_FAULTS = (LookupError, TypeError, ValueError, RecursionError, OSError, struct.error)  # of bytes that are no metadata

Batches = Iterable[tuple[pa.RecordBatch, float]]
"""Each with the fraction of the file that is read, 0 to 1."""


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> Iterator[Block]:
    """The rows of a Parquet file; a DataError if it cannot be read."""
    return _blocks(path, read_batches(path, columns), "Parquet")


def read_batches(
    path: Path,
    columns: Sequence[str] | None = None,
    *,
    groups: Sequence[int] | None = None,
    metadata: pq.FileMetaData | None = None,
    repeated: Sequence[str] = (),
) -> Batches:
    """Rows of a Parquet file as it holds them: columns may be dictionaries, and texts not UTF-8.

    Only `columns`, of which some may be missing, and `groups` are read, `repeated` columns as dictionaries; `metadata`
    is that of the file, if it is known. Raises pa.ArrowException or OSError.
    """
    # With a buffer, a column is read page by page however large its row group is. Without, it is read whole, and a
    # damaged page that says it has gigabytes takes no more than the file.
    buffer = _READ_AHEAD if path.stat().st_size > _SMALL_FILE else 0
    with path.open("rb") as raw:
        metadata = metadata or pq.read_metadata(raw)
        schema = metadata.schema.to_arrow_schema()
        if len(set(schema.names)) < len(schema.names):
            raise DataError(f"{path} has two columns of one name, among: {', '.join(schema.names)}; rename one")
        if columns is not None:  # a field of JSON, which may be text, is in no column of its own
            objects = {field.name for field in schema if pa.types.is_struct(field.type)}
            outer = {path: path.partition(".")[0] for path in columns}
            columns = [path if outer[path] in objects else outer[path] for path in columns]
        leaves = {metadata.schema.column(place).path for place in range(metadata.num_columns)}
        groups = range(metadata.num_row_groups) if groups is None else groups
        sizes = [metadata.row_group(group) for group in groups]
        done, count = 0, sum(group.num_rows for group in sizes)
        at_once, kept = _plan(raw, metadata.schema, columns, groups, count)
        mean = max((group.total_byte_size / max(1, group.num_rows) for group in sizes), default=0.0)
        rows = min(_BLOCK_ROWS, max(16, int(_BLOCK_BYTES / max(1.0, mean))), at_once)
        with pq.ParquetFile(
            raw,
            metadata=metadata,
            read_dictionary=[*kept, *(name for name in repeated if name in leaves)],
            page_checksum_verification=True,
            pre_buffer=False,
            buffer_size=buffer,
        ) as file:
            for batch in file.iter_batches(rows, columns=columns, row_groups=groups):
                done += len(batch)
                yield batch, done / count


def read_arrow(path: Path) -> Iterator[Block]:
    """The rows of an Arrow file in the streaming format, as `datasets` writes it; a DataError if it cannot be read."""
    return _blocks(path, _arrow_batches(path), "Arrow")


def _arrow_batches(path: Path) -> Batches:
    size = path.stat().st_size
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        for batch in stream:
            yield batch, min(1.0, (file.tell() + _END_MARKER) / size)


def within_limit(path: Path, batches: Batches, done: int = 0) -> Iterator[tuple[pa.RecordBatch, np.ndarray, float]]:
    """Each batch, after `done` rows, with the bytes of each row as plain values; a DataError if all take too many."""
    left = max(_MOST_DECODED, _MOST_RATIO * path.stat().st_size)
    for batch, progress in batches:
        batch.validate()
        sizes = np.zeros(len(batch), np.int64)
        left -= _OBJECT_BYTES * len(batch)
        if left >= 0:
            with suppress(IndexError):  # offsets that lead nowhere
                sizes = sizes + sum(map(_row_bytes, batch.columns))
            left -= int(sizes.sum())
        if left < 0:
            raise DataError(
                f"{path} has rows of over {_MOST_DECODED >> 20} MB, and over {_MOST_RATIO:,} times its size, as of "
                f"row {done + 1}; write it anew without what repeats"
            )
        yield batch, sizes, progress
        done += len(batch)


def _blocks(path: Path, batches: Batches, form: str) -> Iterator[Block]:
    done = 0
    try:
        for batch, sizes, progress in within_limit(path, batches):
            batch.validate(full=True)  # of such offsets, and of text that is not UTF-8, some functions would crash
            cuts = np.flatnonzero(np.diff(np.cumsum(sizes) // _MOST_BLOCK_BYTES)) + 1
            for start, end in pairwise(sorted({*range(0, len(batch), _BLOCK_ROWS), *cuts.tolist(), len(batch)})):
                numbers, fits = np.arange(done + start, done + end) + 1, sizes[start:end] <= MOST_ROW_BYTES
                is_whole = len(numbers) == len(batch) and fits.all()
                # A slice would be cast with all the values of its lists.
                part = batch if is_whole else batch.take(pa.array(np.flatnonzero(fits) + start))
                table = plain_columns(pa.Table.from_batches([part]))
                bad = [BadRow(number, TOO_LARGE) for number in numbers[~fits].tolist()]
                yield Block(numbers[fits].tolist(), table, bad, progress)
            done += len(batch)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        reason = " ".join(str(error).split())
        raise DataError(f"{path} is not {form}, or damaged after row {done}: {reason}") from error


def _row_bytes(array: pa.Array) -> np.ndarray | int:
    """[n] bytes of the values as plain ones, or one number for each."""
    kind = array.type
    if not len(array):
        return _OBJECT_BYTES
    if isinstance(kind, pa.BaseExtensionType):
        return _row_bytes(array.storage)
    if pa.types.is_dictionary(kind):
        sizes = np.append(np.zeros(len(array.dictionary), np.int64) + _row_bytes(array.dictionary), 0)
        return sizes[array.indices.cast(pa.int64()).fill_null(-1).to_numpy()]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        inner, offsets = _row_bytes(array.values), array.offsets.to_numpy().astype(np.int64)
        ends = offsets * inner if isinstance(inner, int) else np.append(0, np.cumsum(inner))[offsets]
        return np.diff(ends) + _OBJECT_BYTES
    if pa.types.is_struct(kind):
        return sum(map(_row_bytes, array.flatten()), _OBJECT_BYTES)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        views = np.frombuffer(array.buffers()[1], np.int32)[::4][array.offset : array.offset + len(array)]
        if (views.view(np.uint32) > _INSIDE)[array.is_null().to_numpy(zero_copy_only=False)].any():
            raise pa.ArrowInvalid("a missing text that leads elsewhere")  # a cast would end the process, as of 26.0.1
        return np.maximum(views, 0) + _OBJECT_BYTES
    if is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pc.binary_length(array).fill_null(0).to_numpy() + _OBJECT_BYTES
    return _OBJECT_BYTES


@dataclass(slots=True)
class _Pages:
    """The pages of a column in a row group; sizes in bytes, uncompressed."""

    longest: int  # of a value that is stored once for several
    values: int = 0
    stored: int = 0  # in the file
    size: int = 0
    largest: int = 0
    dictionary: int = 0
    mean: float = 0.0  # of a value, in the page where it is greatest


def _plan(
    file: BinaryIO, schema: pq.ParquetSchema, columns: Sequence[str] | None, groups: Sequence[int], rows: int
) -> tuple[int, list[str]]:
    """How many rows may be decoded at a time, and the columns of lists to keep as dictionaries meanwhile."""
    row_bytes, most, kept, chunks = 1.0, 0, list[str](), _column_chunks(file)
    for place in range(len(schema)):
        column = schema.column(place)
        if columns is not None and not any(f"{column.path}.".startswith(f"{name}.") for name in columns):
            continue
        try:
            found = [_survey(file, chunks[group][place], column) for group in groups]
        except _FAULTS as error:
            raise pa.ArrowInvalid(f"the pages of {column.path} cannot be read") from error
        most += max((pages.largest + pages.dictionary for pages in found), default=0)
        if not column.max_repetition_level:
            row_bytes += max((max(pages.longest, pages.mean) for pages in found), default=0)
            continue
        if column.physical_type == "BYTE_ARRAY" and any(_decoded(pages) > _MOST_AT_ONCE for pages in found):
            kept.append(column.path)
            for pages in found:
                pages.longest = _VALUE_BYTES
        most += max((_decoded(pages) for pages in found if _decoded(pages) > _LIST_RATIO * pages.stored), default=0)
        row_bytes += sum(map(_decoded, found)) / max(1, rows)
    if most > _MOST_AT_ONCE:
        raise pa.ArrowInvalid(
            f"it takes {most / 2**30:,.1f} GB to decode a part of it; at most {_MOST_AT_ONCE >> 20} MB are used; write "
            "it anew with smaller pages and row groups"
        )
    return max(1, int(_MOST_BLOCK_BYTES / row_bytes)), kept


def _decoded(pages: _Pages) -> int:
    return pages.values * pages.longest + pages.size


def _column_chunks(file: BinaryIO) -> list[list[dict[int, Any]]]:
    """The metadata of each column in each row group: pyarrow ends the process where some fields of it are wrong."""
    try:
        end = file.seek(-8, os.SEEK_END)
        size = int.from_bytes(os.pread(file.fileno(), 4, end), "little")
        footer, _ = _read_value(os.pread(file.fileno(), size, end - size), 0)
        return [[column[3] for column in group[1]] for group in footer[4]]
    except _FAULTS as error:
        raise pa.ArrowInvalid("its footer cannot be read") from error


def _survey(file: BinaryIO, chunk: dict[int, Any], column: pq.ColumnSchema) -> _Pages:
    pages, of_dictionary, dictionary = _Pages(max(_VALUE_BYTES, column.length)), False, (0, 0, 0)
    codec, count, first, first_dictionary = chunk[4], chunk[5], chunk[9], chunk.get(11)
    begin, end = min(first, first_dictionary or first), os.fstat(file.fileno()).st_size
    at = begin
    while pages.values < count:
        header, length = _read_value(os.pread(file.fileno(), _MOST_HEADER, at), 0)
        kind, size, stored, body = header[1], header[2], header[3], at + length
        if min(size, stored) < 0 or body + stored > end:
            raise ValueError
        if kind == _DICTIONARY_PAGE:
            dictionary, pages.dictionary = (body, stored, size), max(size, _VALUE_BYTES * header[7][1])
        elif kind in (_DATA_PAGE, _DATA_PAGE_V2):
            values, encoding = (header[5][1], header[5][2]) if kind == _DATA_PAGE else (header[8][1], header[8][4])
            pages.values += values
            pages.mean = max(pages.mean, size / max(1, values))
            of_dictionary |= encoding in _OF_DICTIONARY
            if encoding == _BY_DIFFERENCE:
                pages.longest = max(pages.longest, size)
        pages.size, pages.largest = pages.size + size, max(pages.largest, size)
        at = body + stored
    pages.stored = at - begin
    if of_dictionary and column.physical_type == "BYTE_ARRAY":
        pages.longest = max(pages.longest, _longest(file, *dictionary, _CODECS.get(codec)))
    return pages


def _longest(file: BinaryIO, at: int, stored: int, size: int, codec: str | None) -> int:
    """Bytes of the longest entry of a dictionary, in which each is preceded by its length."""
    if size > _MOST_AT_ONCE:
        return size
    page: Any = os.pread(file.fileno(), stored, at)
    if codec:
        page = pa.decompress(page, size, codec, asbytes=True)
    longest, place, read_length = 0, 0, struct.Struct("<I").unpack_from
    while place < size:
        (length,) = read_length(page, place)
        longest, place = length if length > longest else longest, place + 4 + length
    return longest


def _read_value(data: bytes, at: int, kind: int = 12) -> tuple[Any, int]:
    """A struct by the numbers of its fields, a list or an integer, None for others; and where it ends."""
    if kind == 12:
        fields, number = dict[int, Any](), 0
        while head := data[at]:
            at += 1
            if head >> 4:
                number += head >> 4
            else:
                number, at = _read_value(data, at, 5)
            if head & 15 > 2:  # a flag has no bytes of its own
                value, at = _read_value(data, at, head & 15)
                if fields.setdefault(number & 0xFFFF, value) is not value:
                    raise ValueError  # Thrift would merge the two
        return fields, at + 1
    if kind in (1, 2, 3):
        return None, at + 1
    if kind == 9:
        (count, inner), values = divmod(data[at], 16), []
        count, at = _read_varint(data, at + 1) if count == 15 else (count, at + 1)
        for _ in range(count):
            value, at = _read_value(data, at, inner)
            values.append(value)
        return values, at
    number, at = _read_varint(data, at)
    number &= 2**64 - 1 if kind == 6 else 2**32 - 1  # as Thrift does
    if kind == 8:
        return None, at + number
    if kind not in (4, 5, 6):
        raise ValueError
    return (number >> 1) ^ -(number & 1), at


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        byte, at = data[at], at + 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise ValueError
