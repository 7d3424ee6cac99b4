"""Read Parquet and Arrow files in blocks that take little memory, whatever a file claims to hold.

A row that is too large is a bad row, as a line of JSON Lines is. `parquet_pages.py` knows what pages decode to.
"""

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tinyzero_sdk.data.arrow import is_text, plain_columns
from tinyzero_sdk.data.parquet_pages import plan_reading
from tinyzero_sdk.data.table import BadRow, Block
from tinyzero_sdk.errors import DataError

MOST_ROW_BYTES = 64 << 20
TOO_LARGE = f"a row of over {MOST_ROW_BYTES >> 20} MB; shorten it"

_BLOCK_ROWS = 4096
_BLOCK_BYTES = 8 << 20  # on average
_MOST_BLOCK_BYTES = 16 << 20
_MOST_DECODED, _MOST_RATIO = 256 << 20, 1000  # bytes of the rows of a file, or so many times its size
_VALUE_BYTES = 32  # of a number, as a Python object
_READ_AHEAD = 1 << 20
_SMALL_FILE = 64 << 20
_CONTINUES, _DICTIONARY_BATCH, _RECORD_BATCH = b"\xff" * 4, 2, 3
_END_MARKER = 8  # bytes after the last batch of an Arrow file

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
    most_rows: int | None = None,
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
        at_once, kept = plan_reading(raw, metadata, columns, groups)
        sizes = [metadata.row_group(group) for group in groups]
        mean = max((group.total_byte_size / max(1, group.num_rows) for group in sizes), default=0.0)
        rows = min(most_rows or _BLOCK_ROWS, max(16, int(_BLOCK_BYTES / max(1.0, mean))), at_once)
        done, count = 0, sum(group.num_rows for group in sizes)
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
    with path.open("rb") as raw:
        try:
            compressed = _is_compressed(raw)
        except (struct.error, LookupError, ValueError) as error:
            raise pa.ArrowInvalid("a message cannot be read") from error
    if compressed:  # a few bytes may stand for gigabytes
        raise DataError(f"{path} has compressed columns; expected Arrow as `datasets` writes it, or Parquet")
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        for batch in stream:
            yield batch, min(1.0, (file.tell() + _END_MARKER) / size)


def _is_compressed(file: BinaryIO) -> bool:
    """Whether any message of an Arrow stream has compressed buffers, as in Message.fbs of apache/arrow."""
    size = os.fstat(file.fileno()).st_size
    while (head := file.read(8))[:4] == _CONTINUES and (length := int.from_bytes(head[4:], "little")):
        data = file.read(min(length, size))
        message = _target(data, 0)
        kind, batch = data[_field(data, message, 1)], _target(data, _field(data, message, 2))
        if kind == _DICTIONARY_BATCH:
            batch = _target(data, _field(data, batch, 1))
        if kind in (_DICTIONARY_BATCH, _RECORD_BATCH) and _field(data, batch, 3):
            return True
        if body := _field(data, message, 3):
            file.seek(struct.unpack_from("<q", data, body)[0], os.SEEK_CUR)
    return False


def _target(data: bytes, at: int) -> int:
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table is; 0 where it is absent."""
    entries = table - struct.unpack_from("<i", data, table)[0]
    size, at = struct.unpack_from("<H", data, entries)[0], 4 + 2 * number
    offset = struct.unpack_from("<H", data, entries + at)[0] if at < size else 0
    return table + int(offset) if offset else 0


def _blocks(path: Path, batches: Batches, form: str) -> Iterator[Block]:
    done, left = 0, max(_MOST_DECODED, _MOST_RATIO * path.stat().st_size)
    try:
        for batch, progress in batches:
            batch.validate()
            left -= _VALUE_BYTES * len(batch)
            if left >= 0:
                sizes = np.zeros(len(batch), np.int64)
                with suppress(IndexError):  # offsets that lead nowhere
                    sizes = sizes + sum(map(_row_bytes, batch.columns))
                left -= int(sizes.sum())
            if left < 0:
                raise DataError(
                    f"{path} has rows of over {_MOST_DECODED >> 20} MB, and over {_MOST_RATIO:,} times its size, as of "
                    f"row {done + 1}; write it anew without what repeats"
                )
            batch.validate(full=True)  # of such offsets, and of text that is not UTF-8, some functions would crash
            cuts = np.flatnonzero(np.diff(np.cumsum(sizes) // _MOST_BLOCK_BYTES)) + 1
            for start, end in pairwise(sorted({*range(0, len(batch), _BLOCK_ROWS), *cuts.tolist(), len(batch)})):
                numbers, fits = np.arange(done + start, done + end) + 1, sizes[start:end] <= MOST_ROW_BYTES
                if (
                    len(numbers) < len(batch) or not fits.all()
                ):  # a slice would be cast with all the values of its lists
                    part = batch.take(pa.array(np.flatnonzero(fits) + start))
                else:
                    part = batch
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
        return _VALUE_BYTES
    if isinstance(kind, pa.BaseExtensionType):
        return _row_bytes(array.storage)
    if pa.types.is_dictionary(kind):
        sizes = np.append(np.zeros(len(array.dictionary), np.int64) + _row_bytes(array.dictionary), 0)
        return sizes[array.indices.cast(pa.int64()).fill_null(-1).to_numpy()]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        inner, offsets = _row_bytes(array.values), array.offsets.to_numpy().astype(np.int64)
        ends = offsets * inner if isinstance(inner, int) else np.append(0, np.cumsum(inner))[offsets]
        return np.diff(ends) + _VALUE_BYTES
    if pa.types.is_struct(kind):
        return sum(map(_row_bytes, array.flatten()), _VALUE_BYTES)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        views = np.frombuffer(array.buffers()[1], np.int32)[::4][array.offset : array.offset + len(array)]
        return np.maximum(views, 0) + _VALUE_BYTES
    if is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pc.binary_length(array).fill_null(0).to_numpy() + _VALUE_BYTES
    return _VALUE_BYTES
