"""Data files: damage is reported with its place, and files are written whole or not at all."""

import json
import math
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyzero_sdk.data import arrow_files, files
from tinyzero_sdk.data.arrow import check_json_types, infer_schema, to_rows, to_table
from tinyzero_sdk.data.files import JsonLinesWriter, ParquetWriter, parse_line, read_blocks, read_rows, replacing
from tinyzero_sdk.errors import DataError


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"a": 1', "not JSON: Expecting ',' delimiter at column 8"),
        (b"hello", "not JSON: Expecting value at column 1"),
        (b"[\n", "not JSON: Expecting value at column 2"), (b'{"a": 1\r\n', "Expecting ',' delimiter at column 8"),
        (b'{"a": 1} {"a": 2}', "not JSON: Extra data"), (b"[1]", "a list; expected a JSON object"),
        (b'{"a": NaN}', "NaN, which JSON does not have"), (b'{"a": 1e999}', "1e999, too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "Exceeds the limit"), (b'{"a": "\xff"}', "not UTF-8 at byte 8"),
        (b'\xff\xfe{\x00"\x00', "not UTF-8 at byte 1"), (b'{"a": "\x00"}', "Invalid control character"),
        (b'{"a": "\\ud800"}', "lone surrogate"), (b'{"a": 1, "b": {"c": 1, "c": 2}}', "a repeated key, 'c'"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    ],
)  # fmt: skip
def test_bad_line_is_reported(line, problem):
    with pytest.raises(DataError, match=problem.replace("[", r"\[")):
        parse_line(line)


@settings(max_examples=15)
@given(row=st.dictionaries(st.text(), st.text() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)))
def test_any_other_line_is_read_as_it_is(row):
    assert parse_line(json.dumps(row).encode()) == row
    assert parse_line(json.dumps(row, ensure_ascii=False).encode() + b"\r\n") == row


def write(path, content):
    path.write_bytes(content)
    return path


def test_blocks_of_long_lines_are_small(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_BLOCK_BYTES", 3000)
    path = write(tmp_path / "a.jsonl", (json.dumps({"a": "x" * 1000}).encode() + b"\n") * 10)
    blocks = list(read_blocks(path))
    assert max(len(block.numbers) for block in blocks) == 3
    assert [number for block in blocks for number in block.numbers] == list(range(1, 11))


@pytest.fixture
def parquet(tmp_path):
    path = tmp_path / "a.parquet"
    with ParquetWriter(path) as writer:
        writer.write(pa.table({"n": range(2000), "text": [f"row {n * n}" for n in range(2000)]}))
    return path


@pytest.mark.fault(
    "F11",
    "A Parquet file is cut off",
    made="at every sixteenth of its length",
    seen="… is not Parquet, or damaged…",
    kept="nothing is trained on it",
    code=2,
)
def test_truncated_parquet_is_refused(fault_row, parquet):
    whole = parquet.read_bytes()
    for sixteenth in range(16):
        with pytest.raises(DataError) as error:
            list(read_rows(write(parquet, whole[: len(whole) * sixteenth // 16])))
        fault_row.check(error.value)


def test_flipped_bits_never_read_as_other_data(parquet):
    whole, rows = parquet.read_bytes(), list(read_rows(parquet))
    dice = random.Random(0)
    noticed = 0
    pages_end = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")  # what follows has no checksum in Parquet
    for _ in range(100):
        damaged = bytearray(whole)
        damaged[dice.randrange(4, pages_end)] ^= 1 << dice.randrange(8)
        copy = write(parquet.with_name("b.parquet"), bytes(damaged))
        try:
            assert list(read_rows(copy)) == rows
        except DataError:
            noticed += 1
    assert noticed > 90


def test_text_of_a_parquet_file_that_is_not_unicode_is_refused(tmp_path):
    text = pa.array([b"good", b"\xff\xfe", b"fine"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": text}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet is not Parquet, or damaged after row \d+: .*UTF8"):
        list(read_blocks(tmp_path / "a.parquet"))


def test_failed_writing_keeps_the_old_file_and_leaves_no_litter(tmp_path):
    path = write(tmp_path / "a.jsonl", b"old")
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_text(f"half {1 / 0}")
    with pytest.raises(DataError, match=r"cannot write .*a\.jsonl: No space left"), replacing(path):
        raise OSError(28, "No space left on device")
    assert path.read_bytes() == b"old"
    with replacing(path) as temporary:
        temporary.write_text("new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_json_lines_are_strict_json(tmp_path):
    with JsonLinesWriter(tmp_path / "a.jsonl") as writer:
        writer.write([{"a": [math.nan, {"b": math.inf}], "c": "é\u2028"}, {"a": 1.5}])
    text = (tmp_path / "a.jsonl").read_text()
    assert text.isascii()
    assert list(read_rows(tmp_path / "a.jsonl")) == [{"a": [None, {"b": None}], "c": "é\u2028"}, {"a": 1.5}]


def test_a_column_without_a_common_type_is_one_of_json():
    first = [{"a": 1, "b": {"x": 1}, "d": 2**60}, {"a": "one"}, {"a": 2.5, "c": [None], "e": 1.5}]
    second = [{"a": None, "b": {"y": "z"}, "d": 0.5, "e": 2}, {"b": None, "c": [1], "f": [{"x": [{}]}]}]
    schema = infer_schema(lambda: iter([first, second]))
    assert [str(schema.field(name).type) for name in "bce"] == [
        "struct<x: int64, y: string>",
        "list<item: int64>",
        "double",
    ]
    assert [field.name for field in schema] == ["b", "c", "e", "a", "d", "f"]
    assert {str(schema.field(name).type) for name in "adf"} == {"extension<arrow.json>"}
    assert to_rows(to_table(first + second, schema))[3:] == [
        {"b": {"x": None, "y": "z"}, "c": None, "e": 2.0, "a": None, "d": 0.5, "f": None},
        {"b": None, "c": [1], "e": None, "a": None, "d": None, "f": [{"x": [{}]}]},
    ]
    with pytest.raises(DataError, match="the rows changed while the file was read"):
        to_table([{"b": 1}], schema)


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.binary(), pa.list_(pa.struct({"x": pa.date32()}))])
def test_columns_that_json_cannot_hold_are_refused(kind):
    fine = pa.schema({"a": pa.list_(pa.struct({"x": pa.float32()})), "b": pa.dictionary(pa.int8(), pa.string())})
    check_json_types(Path("a"), fine)
    with pytest.raises(DataError, match="column 'when' of a is"):
        check_json_types(Path("a"), fine.append(pa.field("when", kind)))


@given(
    st.lists(
        st.fixed_dictionaries(
            {}, optional={"a": st.integers(0, 9), "b": st.just({}), "c": st.none() | st.just({"d": {}})}
        ),
        min_size=1,
    )
)
def test_objects_without_any_field_are_null_in_parquet(tmp_path_factory, cells):
    path = tmp_path_factory.mktemp("empty") / "a.parquet"
    table = pa.table({"cell": pa.array([*cells, None])})
    with ParquetWriter(path) as writer:
        writer.write(table)
        writer.write(table)
    found = pq.read_table(path)["cell"].to_pylist()
    assert len(found) == 2 * len(cells) + 2
    assert [(cell or {}).get("a") for cell in found] == 2 * [*[cell.get("a") for cell in cells], None]


def test_what_parquet_cannot_hold_is_reported(tmp_path):
    with ParquetWriter(tmp_path / "a.parquet") as writer:
        with pytest.raises(DataError, match=r"write \.jsonl instead"):
            writer.write(pa.table({"a": pa.array([[{}], [{}]])}))
        writer.write(pa.table({"a": [1]}))
        with pytest.raises(DataError, match="changes its type"):
            writer.write(pa.table({"a": ["x"]}))


def test_line_too_long_for_memory_is_one_bad_line(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_ROW_BYTES", 64)
    long = json.dumps({"a": "x" * 1000}).encode()
    path = write(tmp_path / "a.jsonl", b'{"a": 1}\n' + long + b'\n{"a": 2}\n')
    (block,) = read_blocks(path)
    assert (block.numbers, [row.number for row in block.bad]) == ([1, 3], [2])
    assert block.bad[0].error == "a row of over 64 MB; shorten it"


@pytest.mark.parametrize(
    "rows", [b'1,"' + b"x" * 100, b'1,"' + b'x\n","' * 30, b"," * 100], ids=["text", "texts", "cells"]
)
def test_a_row_of_csv_too_long_for_memory_is_refused(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_ROW_BYTES", 64)
    path = write(tmp_path / "a.csv", b"a,b\n1,2\n" + rows)
    with pytest.raises(DataError, match=r"is not CSV in UTF-8, as of line \d+: a row of over 64 MB; shorten it"):
        list(read_blocks(path))


def test_a_row_of_parquet_too_large_for_memory_is_one_bad_row(tmp_path, monkeypatch):
    monkeypatch.setattr(arrow_files, "MOST_ROW_BYTES", 5000)
    pq.write_table(pa.table({"a": ["x", "x" * 5000, "y"]}), tmp_path / "a.parquet")
    (block,) = read_blocks(tmp_path / "a.parquet")
    assert (block.numbers, [row.number for row in block.bad], block.data["a"].to_pylist()) == ([1, 3], [2], ["x", "y"])


def test_what_takes_too_much_to_decode_is_refused_before(tmp_path, monkeypatch):
    monkeypatch.setattr(arrow_files, "_MOST_AT_ONCE", 1 << 16)
    pq.write_table(pa.table({"a": ["x" * 2**17]}), tmp_path / "a.parquet", use_dictionary=False)
    with pytest.raises(DataError, match=r"it takes .* GB to decode a part of it; .* write it anew with smaller"):
        list(read_blocks(tmp_path / "a.parquet"))
    pq.write_table(pa.table({"a": [[7] * 2**16]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="to decode a part of it"):
        list(read_blocks(tmp_path / "a.parquet"))
