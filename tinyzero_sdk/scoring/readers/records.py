"""Shared by the readers: convert records of other tools to blocks of rows."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from tinyzero_sdk.data.arrow import Row
from tinyzero_sdk.data.files import read_blocks
from tinyzero_sdk.data.folders import files_of
from tinyzero_sdk.data.table import BadRow, Block
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.scoring.outputs import PARTS, RESULT_COLUMNS

Convert = Callable[[Row], Sequence[Row]]
"""The rows of a record, one for each completion; raises DataError for a record without any."""

_OURS = (*RESULT_COLUMNS, PARTS, "prompt", "completion", "ground_truth")


def read_json_lines(path: Path, pattern: str, convert_for: Callable[[Path], Convert], *, form: str) -> Iterator[Block]:
    """The records of a JSON Lines file, or of the files of a folder that match `pattern`, as blocks of rows.

    Rows are numbered by the line of their record, counted through all files of a folder. Each file gets its own
    `Convert`.
    """
    files, before = files_of(path, pattern), 0
    for place, file in enumerate(files):
        lines, convert = before, convert_for(file)
        for block in read_blocks(file):
            numbers = [before + number for number in block.numbers]
            lines = max([lines, *numbers[-1:], *(before + bad.number for bad in block.bad[-1:])])
            bad = [BadRow(before + row.number, row.problem) for row in block.bad]
            progress = (place + block.progress) / len(files)
            yield converted(zip(numbers, block.rows(), strict=True), bad, convert, progress, form=form)
        before = lines


def converted(
    records: Iterable[tuple[int, Row]], bad: Sequence[BadRow], convert: Convert, progress: float, *, form: str
) -> Block:
    """A block of the rows of numbered records; `bad` are those known to be, `form` says what they are, for messages."""
    found = list[Row]()
    block = Block([], found, list(bad), progress)
    for number, record in records:
        try:
            rows = convert(record)
        except (DataError, TypeError, AttributeError, KeyError) as error:  # a list where an object should be, ...
            fault = f"the record is not {form} ({type(error).__name__}: {error})"
            block.bad.append(BadRow(number, str(error) if isinstance(error, DataError) else fault))
            continue
        found += rows
        block.numbers += [number] * len(rows)
    block.bad.sort(key=lambda row: row.number)
    return block


def renamed(record: Row, tool: str, without: Sequence[str] = ()) -> Row:
    """The other columns of a record; those that we or scoring would replace are renamed to `tool_name`."""
    return {f"{tool}_{name}" if name in _OURS else name: value for name, value in record.items() if name not in without}
