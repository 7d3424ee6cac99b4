"""Shared by the readers: convert records of other tools to blocks of rows."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tinyzero_sdk.data.arrow import Row
from tinyzero_sdk.data.files import read_blocks
from tinyzero_sdk.data.folders import files_of
from tinyzero_sdk.data.table import BadRow, Block
from tinyzero_sdk.errors import DataError

Convert = Callable[[Any], Sequence[Row]]
"""The rows of a record, one for each completion; raises DataError for a record without any."""


def numbered(files: Sequence[Path], read: Callable[[Path], Iterator[Block]]) -> Iterator[tuple[Path, Block]]:
    """The blocks of several files, each with its file; rows and progress are counted through all of them."""
    before = 0
    for index, file in enumerate(files):
        last = before
        for block in read(file):
            block.numbers = [before + number for number in block.numbers]
            block.bad = [BadRow(before + row.number, row.error) for row in block.bad]
            block.progress = (index + block.progress) / len(files)
            last = max([last, *block.numbers[-1:], *(row.number for row in block.bad[-1:])])
            yield file, block
        before = last


def read_json_lines(path: Path, pattern: str, convert_for: Callable[[Path], Convert], *, form: str) -> Iterator[Block]:
    """The records of a JSON Lines file, or of the files of a folder that match `pattern`, as blocks of rows.

    Rows are numbered by the line of their record. Each file gets its own `Convert`.
    """
    convert_for = cache(convert_for)
    for file, block in numbered(files_of(path, pattern), read_blocks):
        records = zip(block.numbers, block.rows(), strict=True)
        yield converted(records, block.bad, convert_for(file), block.progress, form=form)


def converted(
    records: Iterable[tuple[int, Any]], bad: Sequence[BadRow], convert: Convert, progress: float, *, form: str
) -> Block:
    """A block of the rows of numbered records; `bad` are those known to be, `form` says what they are, for messages."""
    converted_rows = list[Row]()
    block = Block([], converted_rows, list(bad), progress)
    for number, record in records:
        try:
            rows = convert(record)
        except (DataError, TypeError, AttributeError, KeyError) as error:  # a list where an object should be, ...
            fault = f"the record is not {form} ({type(error).__name__}: {error})"
            block.bad.append(BadRow(number, str(error) if isinstance(error, DataError) else fault))
            continue
        converted_rows += rows
        block.numbers += [number] * len(rows)
    block.bad.sort(key=lambda row: row.number)
    return block
