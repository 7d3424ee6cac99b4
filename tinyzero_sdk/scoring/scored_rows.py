"""Read the scores of a scored file as arrays, with the problem of each row: no completions, no task.

Of a Parquet file only the columns that are needed are read. A row takes 50 bytes.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from tinyzero_sdk.data.arrow import to_list
from tinyzero_sdk.data.column_hash import hash_array
from tinyzero_sdk.data.files import BadRow, Block, read_blocks
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.records import REASONS, Json
from tinyzero_sdk.scoring.groups import PROMPT_COLUMNS
from tinyzero_sdk.scoring.outputs import (
    LENGTH_COLUMNS,
    PARTS,
    UNKNOWN_FLAG,
    Cells,
    Provenance,
    as_flags,
    as_numbers,
    column,
    has_values,
    read_parts,
)
from tinyzero_sdk.scoring.readers import find_reader
from tinyzero_sdk.scoring.readers.runs import is_evaluation, read_held_out
from tinyzero_sdk.tasks.score_guard import describe_value

_TRUTHS = ("ground_truth", "reward_model.ground_truth")  # identify a problem where they are lists or objects
_SETTINGS = ("data_source", "extra_info.task_version", "extra_info.split", "sampling", "evaluation")
SCORES = ("score", "correct", "reason")  # what every row of a scored file has
_READ = (
    *_SETTINGS,
    *Provenance._fields,
    *LENGTH_COLUMNS,
    "extra_info.difficulty",
    "finished",
    "greedy_accuracy",
    PARTS,
)


@dataclass(frozen=True)
class ScoredRows:
    """The n rows of a file that have a problem and a score."""

    path: Path
    numbers: np.ndarray
    """[n] line of a JSON Lines file, row of a Parquet file; the first is 1. In order."""

    problems: np.ndarray
    """[n] index into the problems of all files that are read together."""

    correct: np.ndarray
    """[n] bool."""

    columns: dict[str, np.ndarray]
    """[n] each: `score`, `reason` (index of REASONS), `task` (index into all that are read together), and `difficulty`,
    `tokens`, `cut off`, `greedy accuracy` (of the problem) and `part NAME` of each part of the reward, NaN where
    unknown."""

    settings: dict[str, list[Json]]
    """What the rows depend on, by column, with all its values: the scorer, its options, the sampling."""

    ignored: dict[str, int]
    """Rows of the file that are not among these, by what they lack."""


def read_scored_blocks(
    path: Path, columns: Sequence[str] | None = None, ignored: Counter[str] | None = None
) -> Iterator[Block]:
    """The rows of a file that have a score, with these columns; the others are the bad ones of their blocks.

    Args:
        path: what `tinyzero score`, `rescore` or `eval` wrote, or as for `read_held_out`.
        columns: as for `read_blocks`; `score`, `correct` and `reason` are read too; None = all, but not of runs.
        ignored: counts the bad rows, by what they lack.

    Raises:
        DataError: the file cannot be read, or no row has a score.
    """
    counts, bad, is_empty = Counter[str](), list[BadRow](), True
    wanted = None if columns is None else [*columns, *(name for name in SCORES if name not in columns)]
    if not (of_run := is_evaluation(path)):
        find_reader(None, path)
    for block in read_held_out(path, wanted or SCORES) if of_run else read_blocks(path, wanted):
        counts["unreadable"] += len(block.bad)
        counts["without a score"] += len(faults := _score_faults(block))
        block.drop(faults)
        bad, is_empty = bad or block.bad[:1], is_empty and not block.numbers
        yield block
    if is_empty:
        why = f"with a score; row {bad[0].number}: {bad[0].problem}" if bad else "at all"
        raise DataError(f"{path} has no row {why} (expected a file that `tinyzero score` wrote)")
    if ignored is not None:
        ignored.update(+counts)


def _score_faults(block: Block) -> dict[int, str]:
    """What is wrong with the scores of the rows at these places."""
    size, cells = len(block.numbers), {name: column(block, name) for name in SCORES}
    valid = {
        "score": np.isfinite(as_numbers(cells["score"], size)),
        "correct": as_flags(cells["correct"], size) != UNKNOWN_FLAG,
        "reason": np.array([name in _REASON for name in _texts(cells["reason"], size)], bool),
    }
    faults = {}
    for place in np.flatnonzero(~np.logical_and.reduce([*valid.values()])).tolist():
        given = {name: _cell(values, place) for name, values in cells.items()}
        if missing := [name for name, value in given.items() if value is None]:
            faults[place] = f"no {', '.join(missing)}"
        else:
            name = next(name for name in SCORES if not valid[name][place])
            faults[place] = f"{name} is {describe_value(given[name])}; expected {_EXPECTED[name]}"
    return faults


_EXPECTED = {"score": "a finite number", "correct": "true or false", "reason": f"one of {', '.join(REASONS)}"}


def _cell(values: Cells | None, place: int) -> Json:
    value = None if values is None else values[place]
    return value.as_py() if isinstance(value, pa.Scalar) else value


def find_key(paths: Sequence[Path]) -> str:
    """The first of the usual columns that identifies problems in all files.

    Raises:
        DataError: there is none, or a file has no scores.
    """
    candidates = (*PROMPT_COLUMNS, *_TRUTHS)
    common = set(candidates)
    for path in paths:
        first = next(block for block in read_scored_blocks(path, candidates) if block.numbers)
        values = {name: column(first, name) for name in candidates}
        common &= {name for name in candidates if has_values(values[name])}
        common -= {name for name in _TRUTHS if not _is_structured(values[name])}
    key = next((name for name in candidates if name in common), None)
    if key is None:
        raise DataError(
            f"no column identifies the problems in all files; expected {', '.join(PROMPT_COLUMNS)}, or a ground truth "
            "that is a list or an object; name another with --by"
        )
    return key


def _is_structured(values: Cells | None) -> bool:
    if isinstance(values, pa.Array):
        return pa.types.is_nested(values.type)
    return all(isinstance(value, dict | list) for value in values or ())


def read_scored_rows(
    path: Path,
    key: str,
    problems: dict[str, int],
    tasks: dict[str | None, int],
    on_progress: Callable[[float], object] = lambda fraction: None,
) -> ScoredRows:
    """The scores of a file.

    Args:
        path: what `tinyzero score`, `rescore` or `eval` wrote, or as for `read_held_out`.
        key: column that identifies a problem.
        problems: index of each problem by its key as text; new ones are added.
        tasks: index of each task by its name, None where it is not stated; new ones are added.
        on_progress: called with the fraction of the file that is read.

    Raises:
        DataError: the file cannot be read, or is not a scored one.
    """
    blocks: list[dict[str, np.ndarray]] = []
    seen: dict[str, Json] = {}
    ignored: Counter[str] = Counter()
    for block in read_scored_blocks(path, (*_READ, key), ignored):
        if block.numbers:
            blocks.append(_arrays(block, key, problems, tasks))
            _add_settings(block, seen)
        on_progress(block.progress)
    columns = {
        name: np.concatenate([block.get(name, np.full(len(block["number"]), np.nan)) for block in blocks])
        for name in dict.fromkeys(name for block in blocks for name in block)
    }
    has_problem = columns["problem"] >= 0
    ignored[f"without {key}"] = int((~has_problem).sum())
    if not has_problem.any():
        raise DataError(f"{path} has no row with {key}, which should identify its problems; name a column with --by")
    columns = {name: values[has_problem] for name, values in columns.items()}
    numbers, indices, correct = (columns.pop(name) for name in ("number", "problem", "correct"))
    return ScoredRows(path, numbers, indices, correct, columns, _by_name(seen.values()), dict(+ignored))


def _arrays(block: Block, key: str, problems: dict[str, int], tasks: dict[str | None, int]) -> dict[str, np.ndarray]:
    size = len(block.numbers)
    keys, names = (_texts(column(block, name), size) for name in (key, "task"))
    indices = [-1 if text is None else problems.setdefault(text, len(problems)) for text in keys]
    lengths = [as_numbers(column(block, name), size) for name in LENGTH_COLUMNS]
    finished = as_flags(column(block, "finished"), size)
    reasons = _texts(column(block, "reason"), size)
    return {
        **_parts(column(block, PARTS)),
        "number": np.array(block.numbers),
        "problem": np.array(indices, np.int64),
        "correct": as_flags(column(block, "correct"), size) == 1,
        "score": as_numbers(column(block, "score"), size),
        "reason": np.array([_REASON[name] for name in reasons], np.int8),
        "task": np.array([tasks.setdefault(name, len(tasks)) for name in names]),
        "difficulty": as_numbers(column(block, "extra_info.difficulty"), size),
        "tokens": np.where(np.isfinite(lengths[0]), *lengths),
        "greedy accuracy": as_numbers(column(block, "greedy_accuracy"), size),
        "cut off": np.where(finished == UNKNOWN_FLAG, np.nan, finished == 0),
    }


def _parts(cells: Cells | None) -> dict[str, np.ndarray]:
    """Each part of the reward: 0 where a row does not have it, as where the scorer failed."""
    if not has_values(cells):
        return {}
    every = [read_parts(cell) for cell in (to_list(cells) if isinstance(cells, pa.Array) else cells or ())]
    return {
        f"part {name}": as_numbers([parts.get(name, 0.0) for parts in every], len(every))
        for name in dict.fromkeys(name for parts in every for name in parts)
    }


_REASON: dict[str | None, int] = {name: place for place, name in enumerate(REASONS)}


def _texts(values: Cells | None, size: int) -> list[str | None]:
    """[n] cells as text: the same for a value in JSON Lines and in Parquet."""
    if values is None:
        return [None] * size
    cells = to_list(values) if isinstance(values, pa.Array) else values
    return [cell if cell is None or isinstance(cell, str) else _text(cell) for cell in cells]


def _text(value: Json) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _add_settings(block: Block, seen: dict[str, Json]) -> None:
    """Collect the different values of the columns with settings, by their text."""
    for name in (*Provenance._fields, *_SETTINGS):
        values = column(block, name)
        if isinstance(values, pa.Array):
            firsts = np.unique(hash_array(values), return_index=True)[1]
            values = values.take(pa.array(np.sort(firsts))).to_pylist()
        last = None
        for value in values or ():
            if value != last and value is not None:
                seen.setdefault(f"{name} {_text(value)}", (name, value))
                last = value


def _by_name(seen: Iterable[tuple[str, Json]]) -> dict[str, list[Json]]:
    """The values of each setting; an object has a setting for each of its entries."""
    settings: dict[str, list[Json]] = {}
    waiting = list(seen)
    while waiting:
        name, value = waiting.pop(0)
        if name == "task_options" and isinstance(value, str):
            value = Provenance("", "", value, "").options()
        if isinstance(value, dict):
            waiting += [(f"{name}.{inner}", entry) for inner, entry in value.items()]
        elif value not in settings.setdefault(name, []):
            settings[name].append(value)
    return {name: sorted(values, key=_text) for name, values in settings.items()}
