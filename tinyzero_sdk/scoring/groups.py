"""Which rows of a file are completions of one problem, and batches that keep these together."""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from tinyzero_sdk.data.column_hash import hash_array, hash_values
from tinyzero_sdk.data.table import ALIASES, Block
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.scoring.outputs import OutputBatch

PROBLEM_COLUMNS = (*ALIASES["problem"], "ground_truth")
"""What identifies a problem: the first of these that rows have; the ground truths only if they are lists or objects."""


def problem_column(block: Block, path: str) -> pa.Array:
    """[n] what identifies the problem of each row, null where nothing does; "row" is no column."""
    if path == "row":
        return pa.nulls(len(block))
    return block.first(path) if path == "ground_truth" else block.column(path)


def identifying_columns(block: Block, paths: Sequence[str] = PROBLEM_COLUMNS) -> list[str]:
    """Those of the columns that can identify problems, by the rows of a block."""
    columns = [path for path in paths if path != "ground_truth" and block.column(path).null_count < len(block)]
    cells = block.first_cells("ground_truth") if "ground_truth" in paths else []
    return [*columns, "ground_truth"] if cells and all(isinstance(cell, dict | list) for cell in cells) else columns


def find_problem_column(block: Block, group_by: str | None = None) -> str:
    """What identifies a problem, by the first rows: a column, or `row` where nothing does, and each counts alone.

    Raises:
        DataError: no row has `group_by`.
    """
    if group_by:
        if block.column(group_by).null_count == len(block):
            raise DataError(f"no row at the start of the file has {group_by!r}, which should identify prompts")
        return group_by
    return next(iter(identifying_columns(block)), "row")


def problem_keys(batch: OutputBatch, path: str) -> tuple[np.ndarray, np.ndarray]:
    """[n] uint64, equal for completions of one problem, and whether the row has any."""
    if path == "row":
        return np.zeros(len(batch), np.uint64), np.zeros(len(batch), bool)
    if path == "ground_truth":
        return hash_values(batch.truths), np.ones(len(batch), bool)
    values = batch.block.column(path)
    return hash_array(values), values.is_valid().to_numpy(zero_copy_only=False)


def whole_groups(
    batches: Iterable[OutputBatch], source: Path, group_by: str | None
) -> Generator[OutputBatch, None, None]:
    """The rows in the same order, in batches with `groups` that never end among the completions of a problem.

    Raises:
        DataError: a row does not say which problem it is of, or the completions of a problem are not adjacent.
    """
    path, seen = "", set[int]()
    rest: OutputBatch | None = None

    def note(key: int, batch: OutputBatch, place: int) -> None:
        if key in seen:
            raise DataError(
                f"{source}:{batch.block.numbers[place]} is a completion of a problem that earlier rows have too, with "
                f"other problems between them, and the task compares those of a problem; sort the rows by {path}"
            )
        seen.add(key)

    for batch in batches:
        if not len(batch):
            yield batch  # bad rows alone
            continue
        path = path or find_problem_column(batch.block, group_by)
        joined = batch if rest is None else _joined(rest, batch)
        keys, known = problem_keys(joined, path)
        if not known.all():
            number, has = joined.block.numbers[known.argmin()], "nothing" if path == "row" else f"no {path}"
            raise DataError(
                f"{source}:{number} has {has} to tell of which problem it is a completion, and the task compares those "
                "of a problem; add extra_info.key or prompt to each row, or name another column with --by"
            )
        keys ^= hash_values(joined.truths) >> np.uint64(1)  # another ground truth is another problem
        starts = np.flatnonzero(np.diff(keys, prepend=~keys[:1])).tolist()
        for start in starts[:-1]:
            note(int(keys[start]), joined, start)
        done, rest = _split(joined, starts[-1])
        yield replace(done, groups=np.diff(starts).tolist())
        last = int(keys[starts[-1]])
    if rest is not None:
        note(last, rest, 0)
        yield replace(rest, groups=[len(rest)])


def _split(batch: OutputBatch, place: int) -> tuple[OutputBatch, OutputBatch]:
    """The rows before a place, with the bad ones, and the others."""
    first, second = (
        OutputBatch(block, batch.texts[rows], batch.truths[rows], batch.details and batch.details[rows])
        for block, rows in zip(batch.block.split(place), (slice(place), slice(place, None)), strict=True)
    )
    return first, second


def _joined(first: OutputBatch, second: OutputBatch) -> OutputBatch:
    details = None if first.details is None or second.details is None else first.details + second.details
    texts = pa.concat_arrays([first.texts, second.texts.cast(first.texts.type)])
    return OutputBatch(first.block.joined(second.block), texts, first.truths + second.truths, details)
