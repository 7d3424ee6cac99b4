"""Read the rows of a scored file that have a score, as a table by our names of its columns: no task, no completions.

Of a Parquet file only the columns that are needed are read.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from tinyzero_sdk.data.arrow import to_float, to_floats, to_texts, to_typed
from tinyzero_sdk.data.files import read_blocks
from tinyzero_sdk.data.table import ALIASES, UNKNOWN_FLAG, BadRow, Block
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.records import REASONS
from tinyzero_sdk.scoring.outputs import (
    PROBLEM_COLUMNS,
    find_problem_column,
    identifying_columns,
    problem_column,
    read_parts,
)
from tinyzero_sdk.scoring.readers import find_reader
from tinyzero_sdk.scoring.readers.runs import is_evaluation, read_held_out
from tinyzero_sdk.tasks.score_guard import describe_value

SCORES = ("score", "correct", "reason")  # what every row of a scored file has
TEXT = pa.dictionary(pa.int32(), pa.string())
_EXPECTED = {"score": "a finite number", "correct": "true or false", "reason": f"one of {', '.join(REASONS)}"}


@dataclass(frozen=True)
class ScoredTable:
    """The n rows of a file that have a score."""

    numbers: np.ndarray  # [n] line of a JSON Lines file, row of a Parquet file; the first is 1. In order
    columns: pa.Table  # [n] of the schema that was asked for
    ignored: dict[str, int]  # rows of the file that are not among these, by what they lack


def read_scored_blocks(
    path: Path, columns: Sequence[str] | None = None, ignored: Counter[str] | None = None
) -> Iterator[Block]:
    """The rows with a score of a file, run or checkpoint; the others are the bad ones of their blocks.

    Reads these columns and `SCORES`, or all but not of runs; `ignored` counts the bad rows, by what they lack.

    Raises:
        DataError: the file cannot be read, or no row has a score.
    """
    counts, bad, is_empty = Counter[str](), list[BadRow](), True
    wanted = None if columns is None else [*columns, *(name for name in SCORES if name not in columns)]
    if not (of_run := is_evaluation(path)):
        find_reader(None, path)
    for block in read_held_out(path, wanted or SCORES) if of_run else read_blocks(path, wanted):
        counts["unreadable"] += len(block.bad)
        counts["without a score"] += len(errors := _score_errors(block))
        block.drop(errors)
        bad, is_empty = bad or block.bad[:1], is_empty and not len(block)
        yield block
    if is_empty:
        why = f"with a score; row {bad[0].number}: {bad[0].error}" if bad else "at all"
        raise DataError(f"{path} has no row {why} (expected a file that `tinyzero score` wrote)")
    if ignored is not None:
        ignored.update(+counts)


def _score_errors(block: Block) -> dict[int, str]:
    """What is wrong with the scores of rows, by index."""
    columns = {name: block.column(name) for name in SCORES}
    reasons = to_texts(columns["reason"]).dictionary_encode("encode")
    valid = {
        "score": np.isfinite(to_floats(columns["score"])),
        "correct": block.flags("correct") != UNKNOWN_FLAG,
        "reason": np.isin(reasons.dictionary.to_pylist(), REASONS)[reasons.indices.to_numpy()],
    }
    errors, wrong = {}, np.flatnonzero(~np.logical_and.reduce([*valid.values()])).tolist()
    values = {name: block.cells(name) for name in SCORES} if wrong else {}
    for row in wrong:
        cells = {name: values[name][row] for name in SCORES}
        if missing := [name for name, cell in cells.items() if cell is None]:
            errors[row] = f"no {', '.join(missing)}"
        else:
            name = next(name for name in SCORES if not valid[name][row])
            errors[row] = f"{name} is {describe_value(cells[name])}; expected {_EXPECTED[name]}"
    return errors


def find_common_column(paths: Sequence[Path]) -> str:
    """The first of `PROBLEM_COLUMNS` that identifies problems in all files; a DataError where none does."""
    common: Sequence[str] = PROBLEM_COLUMNS
    for path in paths:
        common = identifying_columns(_first_rows(path), common)
    if not common:
        raise DataError(
            f"no column identifies the problems in all files; expected {', '.join(ALIASES['problem'])}, or a ground "
            "truth that is a list or an object; name another with --by"
        )
    return common[0]


def _first_rows(path: Path) -> Block:
    """The first block of scored rows, with what may identify their problems."""
    return next(block for block in read_scored_blocks(path, sources(PROBLEM_COLUMNS)) if len(block))


def sources(names: Sequence[str]) -> list[str]:
    """The columns of files where these may stand."""
    return list(dict.fromkeys(path for name in names for path in (*ALIASES.get(name, ()), name)))


def read_scored_table(
    path: Path,
    schema: pa.Schema,
    *,
    problems_by: str = "",
    others: Sequence[str] = (),
    visit: Callable[[Block], object] = lambda block: None,
) -> ScoredTable:
    """The scored rows of a file, as `read_scored_blocks` reads them, and `visit` sees them with the columns `others`.

    The schema has names of columns, as `ALIASES` and scored files have them, and types as for `typed`; `problems_by` is
    the column that identifies a problem, or else the first usual one that the first rows have.
    """
    problems_by = problems_by or find_problem_column(_first_rows(path))
    wanted = [*sources([name for name in schema.names if name != "problem"]), *sources([problems_by]), *others]
    ignored, numbers, tables = Counter[str](), list[int](), list[pa.Table]()
    for block in read_scored_blocks(path, wanted, ignored):
        if len(block):
            tables.append(pa.table([typed(block, field, problems_by) for field in schema], schema=schema))
            numbers += block.numbers
            visit(block)
    table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    return ScoredTable(np.array(numbers), table, dict(+ignored))


def typed(block: Block, field: pa.Field, problems_by: str = "") -> pa.Array:
    """[n] a column of rows as text, numbers, flags, lists or parts of the reward by name; null where it is no such."""
    name, kind = field.name, field.type
    if kind == pa.bool_():
        flags = block.flags(name)
        return pa.array(flags == 1, mask=flags == UNKNOWN_FLAG)
    if kind in (TEXT, pa.string()):
        values = problem_column(block, problems_by) if name == "problem" else block.first(name)
        texts = to_texts(values).cast(pa.string())
        return texts if kind == pa.string() else texts.dictionary_encode()
    if pa.types.is_map(kind):
        parts = [
            {part: to_float(value) for part, value in read_parts(cell).items()} if isinstance(cell, dict) else None
            for cell in block.cells(name)
        ]
        return to_typed(parts, kind)
    if pa.types.is_list(kind):
        values = block.first(name)
        try:
            return pa.array(block.cells(name), kind) if isinstance(values.type, pa.JsonType) else values.cast(kind)
        except (pa.ArrowException, OverflowError):
            return pa.nulls(len(block), kind)
    floats = block.floats(name)
    return pa.array(floats, mask=np.isnan(floats)).cast(kind, safe=False)
