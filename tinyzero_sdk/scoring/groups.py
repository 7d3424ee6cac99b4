"""The rows of a file that are completions of one prompt, and batches that keep them together."""

from collections.abc import Generator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tinyzero_sdk.data.arrow import to_list
from tinyzero_sdk.data.column_hash import hash_array, hash_values
from tinyzero_sdk.data.files import Block
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.records import Json
from tinyzero_sdk.scoring.outputs import OutputBatch, column, has_values

PROMPT_COLUMNS = ("extra_info.key", "prompt", "extra_info.index")
"""Rows with equal values in the first of these columns that a file has are completions of one prompt."""


def find_prompt_column(batch: OutputBatch, group_by: str | None) -> str:
    """What identifies a prompt, by the first rows: a column, `ground_truth`, or `row` where nothing does.

    Raises:
        DataError: no row has `group_by`.
    """
    wanted = [group_by] if group_by else PROMPT_COLUMNS
    found = [name for name in wanted if has_values(column(batch.block, name))]
    if group_by and not found:
        raise DataError(f"no row at the start of the file has {group_by!r}, which should identify prompts")
    is_structured = (
        pa.types.is_nested(batch.truths.type)
        if isinstance(batch.truths, pa.Array)
        else all(isinstance(truth, dict | list) for truth in batch.truths)
    )
    return found[0] if found else "ground_truth" if is_structured else "row"


def prompt_keys(batch: OutputBatch, name: str) -> tuple[np.ndarray, np.ndarray]:
    """[n] uint64, equal for completions of one prompt, and whether the row has any."""
    values = batch.truths if name == "ground_truth" else None if name == "row" else column(batch.block, name)
    if values is None:
        return np.zeros(len(batch), np.uint64), np.zeros(len(batch), bool)
    known = values.is_valid() if isinstance(values, pa.Array) else [value is not None for value in values]
    return _hashes(values), np.asarray(known, bool)


def _hashes(values: pa.Array | list[Json]) -> np.ndarray:
    return hash_array(values) if isinstance(values, pa.Array) else hash_values(values)


def whole_groups(
    batches: Iterable[OutputBatch], source: Path, group_by: str | None
) -> Generator[OutputBatch, None, None]:
    """The rows in the same order, in batches with `groups` that never end among the completions of a problem.

    Raises:
        DataError: a row does not say which problem it is of, or the completions of a problem are not adjacent.
    """
    name, seen = "", set[int]()
    rest: OutputBatch | None = None
    for batch in batches:
        if not len(batch):
            yield batch  # bad rows alone
            continue
        name = name or find_prompt_column(batch, group_by)
        joined = batch if rest is None else _joined(rest, batch)
        keys, known = prompt_keys(joined, name)
        if not known.all():
            number, has = joined.block.numbers[known.argmin()], "nothing" if name == "row" else f"no {name}"
            raise DataError(
                f"{source}:{number} has {has} to tell of which problem it is a completion, and the task compares those "
                "of a problem; add extra_info.key or prompt to each row, or name another column with --by"
            )
        keys ^= _hashes(joined.truths) >> np.uint64(1)  # another ground truth is another problem
        starts = np.flatnonzero(np.diff(keys, prepend=~keys[:1])).tolist()
        done, rest = _split(joined, starts[-1])
        for start in starts[:-1]:
            _note(seen, int(keys[start]), source, joined.block.numbers[start], name)
        yield replace(done, groups=np.diff(starts).tolist())
        last = int(keys[starts[-1]])
    if rest is not None:
        _note(seen, last, source, rest.block.numbers[0], name)
        yield replace(rest, groups=[len(rest)])


def _note(seen: set[int], key: int, source: Path, number: int, name: str) -> None:
    if key in seen:
        raise DataError(
            f"{source}:{number} is a completion of a problem that earlier rows have too, with other problems between "
            f"them, and the task compares those of a problem; sort the rows by {name}"
        )
    seen.add(key)


def _split(batch: OutputBatch, place: int) -> tuple[OutputBatch, OutputBatch]:
    """The rows before `place`, with the bad ones, and the others."""
    block = batch.block
    parts = []
    for rows, bad in ((slice(place), block.bad), (slice(place, None), [])):
        table = None if block.table is None else block.table[rows]
        part = Block(block.numbers[rows], block.rows[rows], table, bad, block.progress)
        details = None if batch.details is None else batch.details[rows]
        parts.append(OutputBatch(part, batch.texts[rows], batch.truths[rows], details, batch.weight // 2))
    return parts[0], parts[1]


def _joined(first: OutputBatch, second: OutputBatch) -> OutputBatch:
    one, two = first.block, second.block
    table = None
    if one.table is not None and two.table is not None:
        table = pa.concat_tables([one.table, two.table], promote_options="default")
    block = Block(one.numbers + two.numbers, one.rows + two.rows, table, one.bad + two.bad, two.progress)
    details = None
    if first.details is not None or second.details is not None:
        unknown: list[tuple[int | None, bool]] = [(None, True)]
        details = (first.details or unknown * len(first)) + (second.details or unknown * len(second))
    texts, truths = _concatenated(first.texts, second.texts), _concatenated(first.truths, second.truths)
    return OutputBatch(block, texts, truths, details, first.weight + second.weight)


def _concatenated(first: pa.Array | list[Json], second: pa.Array | list[Json]) -> Any:
    if isinstance(first, pa.Array) and isinstance(second, pa.Array) and first.type == second.type:
        return pa.concat_arrays([first, second])
    lists = [to_list(values) if isinstance(values, pa.Array) else values for values in (first, second)]
    return lists[0] + lists[1]
