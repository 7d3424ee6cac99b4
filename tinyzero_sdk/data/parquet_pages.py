"""How much memory the pages of a Parquet file take once they are decoded, by their headers. Reads no rows.

A footer does not tell: one entry of a dictionary stands for any number of rows, and a few bytes, compressed, for
gigabytes. As in parquet.thrift of apache/parquet-format, in Thrift's compact protocol.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

MOST_DECODED = 512 << 20  # bytes of the pages of all columns, and of the lists of a row group, that are read at a time
_SHARE = 64  # unless these are at most so many times their bytes in the file
_BATCH_BYTES = 16 << 20
_VALUE_BYTES = 16  # of a number, with what says to which row it belongs
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_OF_DICTIONARY, _BY_DIFFERENCE = (2, 8), 7  # encodings whose values are indices, or what differs from the last
_CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
_FAULTS = (LookupError, TypeError, ValueError, RecursionError, OSError)  # of bytes that are no metadata


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


def plan_reading(
    file: BinaryIO, metadata: pq.FileMetaData, columns: Sequence[str] | None, groups: Sequence[int]
) -> tuple[int, list[str]]:
    """How many rows may be decoded at a time, and the columns of lists to keep as dictionaries meanwhile.

    Raises:
        pa.ArrowInvalid: it takes too much memory to decode even one row, or the file is damaged.
    """
    row_bytes, most, kept, chunks = 1.0, 0, list[str](), _column_chunks(file)
    for place in range(metadata.num_columns):
        column = metadata.schema.column(place)
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
        if column.physical_type == "BYTE_ARRAY" and any(_decoded(pages) > MOST_DECODED for pages in found):
            kept.append(column.path)
            for pages in found:
                pages.longest = _VALUE_BYTES
        most += max((_decoded(pages) for pages in found if _decoded(pages) > _SHARE * pages.stored), default=0)
        for group, pages in zip(groups, found, strict=True):
            row_bytes += _decoded(pages) / max(1, metadata.row_group(group).num_rows) / len(groups)
    if most > MOST_DECODED:
        raise pa.ArrowInvalid(
            f"it takes {most / 2**30:,.1f} GB to decode a part of it; at most {MOST_DECODED >> 20} MB are used; write "
            "it anew with smaller pages and row groups"
        )
    return max(1, int(_BATCH_BYTES / row_bytes)), kept


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
        header, body = _read_header(file, at)
        kind, size, stored = header[1], header[2], header[3]
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
    if size > MOST_DECODED:
        return size
    page: Any = os.pread(file.fileno(), stored, at)
    if codec:
        page = pa.decompress(page, size, codec, asbytes=True)
    longest = place = 0
    while place < len(page):
        length = int.from_bytes(page[place : place + 4], "little")
        longest, place = max(longest, length), place + 4 + length
    return longest


def _read_header(file: BinaryIO, at: int) -> tuple[Any, int]:
    """The page header at a place, and where it ends."""
    for most in (1 << 10, 1 << 24):
        try:
            header, length = _read_value(os.pread(file.fileno(), most, at), 0)
            return header, at + length
        except IndexError:
            continue
    raise ValueError


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
