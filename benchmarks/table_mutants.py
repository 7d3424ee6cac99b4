"""Parquet and Arrow files of every type and layout, with damage where it hurts: for `fuzz_readers.py`.

Not a benchmark: it has no results. A table holds the rows of a sound file in types drawn anew, in some of which few
bytes stand for many. Damage is done to the numbers of Parquet's footer and page headers, which are Thrift's, and of
Arrow's messages; and files are spliced.
"""

import io
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

Dice = random.Random
NUMBERS = (0, 1, 2, 7, 8, 15, 16, 63, 64, 127, 128, 4096, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 + 1, 2**40, 2**63 - 1)
CODECS = ("none", "none", "snappy", "zstd", "gzip", "lz4", "brotli")
ENCODINGS = ("PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY")
SHARED = (1, 1, 1000, 20_000)  # bytes of a text that many rows share
JSON_TEXTS = ("{}", '"a"', "[", "NaN", "[" * 5000, '{"target": 3}', None)


def number(dice: Dice) -> int:
    return dice.choice((1, -1)) * (dice.choice(NUMBERS) if dice.random() < 0.7 else dice.randrange(300))


def shared(count: int, dice: Dice) -> pa.Array:
    entry = "<answer>3</answer>" * dice.choice(SHARED if count < 10_000 else SHARED[:1])
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([entry]))


def as_text(cells: list[Any], dice: Dice) -> pa.Array:
    """Texts in one of Arrow's ways to hold them."""
    texts = [cell if cell is None or isinstance(cell, str) else str(cell) for cell in cells]
    ways: list[Callable[[], pa.Array]] = [
        lambda: pa.array(texts, pa.large_string()),
        lambda: pa.array(texts, pa.string_view()),
        lambda: pa.array(texts).dictionary_encode(),
        lambda: pa.array([text and text.encode() for text in texts], dice.choice((pa.binary(), pa.large_binary()))),
        lambda: shared(len(texts), dice),
        lambda: pa.array([text and text.encode("utf-16") for text in texts], pa.binary()).view(pa.string()),
    ]
    return dice.choice([*ways, *[lambda: pa.array(texts)] * 4])()


def as_other(n: int, dice: Dice) -> pa.Array:
    """A column of a type that need not be that of the cells."""
    draw = dice.randrange
    unit, zone = dice.choice(("s", "us", "ns")), dice.choice((None, "UTC"))
    float_type = dice.choice((pa.float16(), pa.float32(), pa.float64()))
    kinds: list[Callable[[], pa.Array]] = [
        lambda: pa.nulls(n),
        lambda: pa.array([draw(2**40) for _ in range(n)], pa.timestamp(unit, zone)),
        lambda: pa.array([draw(10**6) for _ in range(n)], pa.decimal128(dice.choice((9, 38)), 2)),
        lambda: pa.array([draw(2**60) for _ in range(n)], pa.uint64()),
        lambda: pa.array([dice.random() for _ in range(n)], float_type),
        lambda: pa.array(
            [[("a", draw(9)), ("b", None)][: draw(3)] for _ in range(n)], pa.map_(pa.string(), pa.int64())
        ),
        lambda: pa.array([[draw(9)] * 3] * n, pa.list_(pa.int32(), 3)),
        lambda: pa.array([None] * n, pa.binary(100_000 if n < 100 else 4)),
        lambda: pa.array([dice.choice(JSON_TEXTS) for _ in range(n)], pa.string()).cast(pa.json_()),
        lambda: pa.array(
            [[[str(draw(9))] * draw(3)] * draw(3) for _ in range(n)], pa.large_list(pa.list_(pa.string()))
        ),
        lambda: pa.array([{"role": "user", "content": [{"text": None}]}] * n),
        lambda: pa.array([{"a": {}}] * n),
        lambda: shared_list(n, dice),
    ]
    return dice.choice(kinds)()


def shared_list(n: int, dice: Dice) -> pa.Array:
    """Lists of an entry that all share, most of them in the first row."""
    count = dice.choice((0, 1, 100, 100, 100_000))
    values = dice.choice((shared(count, dice), pa.nulls(count), pa.array([7] * count)))
    if pa.types.is_dictionary(values.type) and dice.random() < 0.5:
        values = pa.StructArray.from_arrays([pa.nulls(count, pa.string()), values], ["role", "content"])
    return pa.ListArray.from_arrays(pa.array([0] + [count] * n, pa.int32()), values)


def make_table(rows: list[dict[str, Any]], dice: Dice) -> pa.Table:
    """The rows, with the types of some columns drawn anew, and some cells null."""
    rows = rows * (400 if dice.random() < 0.01 else 1)
    columns = {}
    for name in rows[0]:
        empty = 0.3 if dice.random() < 0.2 else 0
        cells, chance = [None if dice.random() < empty else row[name] for row in rows], dice.random()
        if chance < 0.1:
            columns[name] = as_other(len(rows), dice)
        elif chance < 0.9:
            is_text = isinstance(rows[0][name], str) or chance < 0.2
            columns[name] = as_text(cells, dice) if is_text else pa.array(cells)
    return pa.table(columns)


def write_parquet(table: pa.Table, dice: Dice) -> bytes:
    """The table in one of Parquet's layouts."""
    out, plain = io.BytesIO(), dice.random() < 0.3
    encodings = {name: dice.choice(ENCODINGS) for name in table.column_names if table[name].type == pa.string()}
    pq.write_table(
        table,
        out,
        compression=dice.choice(CODECS),
        use_dictionary=not plain,
        column_encoding=encodings if plain else None,
        dictionary_pagesize_limit=dice.choice((1, 1000, 1 << 30)),
        data_page_size=dice.choice((1, 1000, 1 << 20)),
        data_page_version=dice.choice(("1.0", "2.0")),
        version=dice.choice(("1.0", "2.6")),
        row_group_size=dice.choice((7, 1000, 1 << 20)),
        store_schema=dice.random() < 0.6,
        write_page_index=dice.random() < 0.3,
        write_statistics=dice.random() < 0.5,
    )
    return out.getvalue()


def write_stream(table: pa.Table, dice: Dice) -> bytes:
    out, options = io.BytesIO(), pa.ipc.IpcWriteOptions(compression=dice.choice([None] * 8 + ["zstd", "lz4"]))
    with pa.ipc.new_stream(out, table.schema, options=options) as stream:
        stream.write_table(table, max_chunksize=dice.choice((1, 7, None)))
    return out.getvalue()


class Part(NamedTuple):
    """A part of a struct in Thrift's compact protocol: where it is, and below which numbers of fields."""

    what: str  # integer, text, or the head of a field or list
    start: int
    end: int
    path: tuple[int, ...]


def find_parts(data: bytes, at: int, parts: list[Part], path: tuple[int, ...] = ()) -> int:
    """Append the parts of the struct that begins at a place; returns where it ends."""
    number = 0
    while head := data[at]:
        parts.append(Part("head", at, at + 1, path))
        at, kind = at + 1, head & 15
        if head >> 4:
            number += head >> 4
        else:
            number, at = read_varint(data, at)
            number //= 2
        at = at if kind in (1, 2) else find_value(data, at, kind, parts, (*path, number))
    return at + 1


def find_value(data: bytes, at: int, kind: int, parts: list[Part], path: tuple[int, ...]) -> int:
    if kind == 12:
        return find_parts(data, at, parts, path)
    if kind in (1, 2, 3):
        return at + 1
    value, end = read_varint(data, at)
    if kind in (4, 5, 6):
        parts.append(Part("integer", at, end, path))
        return end
    if kind == 8:
        parts.append(Part("text", end, end + value, path))
        return end + value
    assert kind == 9, kind
    parts.append(Part("head", at, at + 1, path))
    count, inner, at = data[at] >> 4, data[at] & 15, at + 1
    if count == 15:
        count, at = read_varint(data, at)
    for _ in range(count):
        at = find_value(data, at, inner, parts, path)
    return at


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def zigzag(value: int) -> bytes:
    left, out = ((value << 1) ^ (value >> 63)) & (2**64 - 1), bytearray()
    while left > 127:
        out.append(left & 127 | 128)
        left >>= 7
    return bytes([*out, left])


def change(data: bytes, part: Part, dice: Dice) -> bytes:
    """The bytes with another value of a part."""
    old = data[part.start : part.end]
    if part.what == "integer":
        value = read_varint(old, 0)[0]
        near = (value >> 1 ^ -(value & 1)) + dice.choice((-1, 1, 8))
        new = zigzag(number(dice) if dice.random() < 0.8 else near)
    elif old:
        at = dice.randrange(len(old))
        new = old[:at] + bytes([old[at] ^ 1 << dice.randrange(8)]) + old[at + 1 :]
    else:
        new = old
    return data[: part.start] + new + data[part.end :]


def damage_parquet(content: bytes, dice: Dice) -> bytes:
    """Changes in the footer, or a column that begins with another page header, and in pages."""
    size = int.from_bytes(content[-8:-4], "little")
    pages, footer, parts = content[: -8 - size], content[-8 - size : -8], list[Part]()
    find_parts(footer, 0, parts)
    first_pages = [part for part in parts if part.path in ((4, 1, 3, 9), (4, 1, 3, 11))]
    if dice.random() < 0.6 and first_pages:
        of_chunk, header = dice.choice(first_pages), list[Part]()
        at = read_varint(footer, of_chunk.start)[0] // 2
        end = find_parts(content, at, header)
        start = len(pages)
        chosen = dice.choice([part for part in header if part.what == "integer"] if dice.random() < 0.8 else header)
        pages += change(content[:end], chosen, dice)[at:] + pages[end:]  # all that follow it, too
        footer = footer[: of_chunk.start] + zigzag(start) + footer[of_chunk.end :]
    else:
        chosen = dice.choice([part for part in parts if part.what == "integer"] if dice.random() < 0.6 else parts)
        footer = change(footer, chosen, dice)
    if dice.random() < 0.3 and len(pages) > 8:  # indices of dictionaries, levels, texts
        at = dice.randrange(4, len(pages))
        pages = pages[:at] + bytes([dice.choice((0, 1, 2, 3, 255, dice.randrange(256)))]) + pages[at + 1 :]
    return pages + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def damage_stream(content: bytes, dice: Dice) -> bytes:
    """Other numbers in an Arrow stream, where they are aligned: lengths, offsets, counts, types."""
    changed = bytearray(content)
    for _ in range(dice.choice((1, 1, 2, 5))):
        form, width = dice.choice((("<i", 4), ("<q", 8), ("<h", 2)))
        at = dice.randrange(max(1, min(len(changed), 8192) - 8)) // width * width
        near = struct.unpack_from(form, changed, at)[0] + dice.choice((-8, -1, 1, 8))
        value = (number(dice) if dice.random() < 0.6 else near) + 2 ** (8 * width - 1)
        struct.pack_into(form, changed, at, value % 2 ** (8 * width) - 2 ** (8 * width - 1))
    return bytes(changed)


def write_mutant(path: Path, dice: Dice) -> None:
    """Another file in place of one of Parquet or Arrow; three in ten are sound, but for what their types are."""
    old, is_parquet = path.read_bytes(), path.suffix == ".parquet"
    rows = (pq.read_table(path) if is_parquet else pa.ipc.open_stream(old).read_all()).to_pylist()
    try:
        table = make_table(rows, dice)
        content = write_parquet(table, dice) if is_parquet else write_stream(table, dice)
    except (pa.ArrowException, MemoryError, ValueError, OSError):  # Parquet has no such type, or encoding of it
        return
    act = dice.random()
    if act > 0.4:
        content = damage_parquet(content, dice) if is_parquet else damage_stream(content, dice)
    elif act > 0.3:
        cut = dice.randrange(min(len(old), len(content)))
        content = old[:cut] + content[cut:]
    path.write_bytes(content)
