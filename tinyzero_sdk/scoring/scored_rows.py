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
from tinyzero_sdk.data.files import Block, read_blocks
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.records import REASONS, Json
from tinyzero_sdk.scoring.outputs import (
    LENGTH_COLUMNS,
    UNKNOWN_FLAG,
    Cells,
    Provenance,
    as_flags,
    as_numbers,
    column,
    has_values,
    score_columns,
)
from tinyzero_sdk.scoring.readers.runs import read_held_out
from tinyzero_sdk.scoring.summary import PROMPT_COLUMNS

_TRUTHS = ("ground_truth", "reward_model.ground_truth")  # identify a problem where they are lists or objects
_SETTINGS = ("data_source", "extra_info.task_version", "extra_info.split", "sampling", "evaluation")
_SCORES = ("score", "correct", "reason")
_READ = (*_SCORES, *_SETTINGS, *Provenance._fields, *LENGTH_COLUMNS, "extra_info.difficulty", "finished")


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
    `tokens` and `cut off`, NaN where unknown."""

    settings: dict[str, list[Json]]
    """What the rows depend on, by column, with all its values: the scorer, its options, the sampling."""

    ignored: dict[str, int]
    """Rows of the file that are not among these, by what they lack."""


def find_key(paths: Sequence[Path]) -> str:
    """The first of the usual columns that identifies problems in all files.

    Raises:
        DataError: there is none.
    """
    candidates = (*PROMPT_COLUMNS, *_TRUTHS)
    common = set(candidates)
    for path in paths:
        first = next(_read_blocks(path, candidates), None)
        if first is None:
            raise DataError(f"{path} has no rows")
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


def _read_blocks(path: Path, columns: Sequence[str]) -> Iterator[Block]:
    return read_held_out(path) if path.is_dir() else read_blocks(path, columns)


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
    parts: dict[str, list[np.ndarray]] = {}
    seen: dict[str, Json] = {}
    ignored: Counter[str] = Counter()
    for block in _read_blocks(path, (*_READ, key)):
        ignored["unreadable"] += len(block.bad)
        if block.numbers:
            for name, values in _arrays(path, block, key, problems, tasks, ignored).items():
                parts.setdefault(name, []).append(values)
            _add_settings(block, seen)
        on_progress(block.progress)
    columns = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    if not columns or not len(columns["number"]):
        raise DataError(f"{path} has no row with a score and {key}; expected a file that `tinyzero score` wrote")
    numbers, indices, correct = (columns.pop(name) for name in ("number", "problem", "correct"))
    return ScoredRows(path, numbers, indices, correct, columns, _by_name(seen.values()), dict(+ignored))


def _arrays(
    path: Path,
    block: Block,
    key: str,
    problems: dict[str, int],
    tasks: dict[str | None, int],
    ignored: Counter[str],
) -> dict[str, np.ndarray]:
    size = len(block.numbers)
    cells = score_columns(path, block, _SCORES)
    score, correct = as_numbers(cells["score"], size), as_flags(cells["correct"], size)
    reason = np.array([_REASON.get(cell, -1) for cell in _texts(cells["reason"])], np.int8)
    has_score = np.isfinite(score) & (correct != UNKNOWN_FLAG) & (reason >= 0)
    keys = column(block, key)
    texts = [None] * size if keys is None else _texts(keys)
    problem = np.array([-1 if text is None else problems.setdefault(text, len(problems)) for text in texts], np.int64)
    names = [None] * size if (of_task := column(block, "task")) is None else _texts(of_task)
    ignored["without a score"] += int((~has_score).sum())
    ignored[f"without {key}"] += int((has_score & (problem < 0)).sum())
    lengths = [as_numbers(column(block, name), size) for name in LENGTH_COLUMNS]
    finished = as_flags(column(block, "finished"), size)
    arrays = {
        "number": np.array(block.numbers),
        "problem": problem,
        "correct": correct == 1,
        "score": score,
        "reason": reason,
        "task": np.array([tasks.setdefault(name, len(tasks)) for name in names]),
        "difficulty": as_numbers(column(block, "extra_info.difficulty"), size),
        "tokens": np.where(np.isfinite(lengths[0]), *lengths),
        "cut off": np.where(finished == UNKNOWN_FLAG, np.nan, finished == 0),
    }
    keep = has_score & (problem >= 0)
    return {name: values[keep] for name, values in arrays.items()}


_REASON: dict[str | None, int] = {name: place for place, name in enumerate(REASONS)}


def _texts(values: Cells) -> list[str | None]:
    """[n] cells as text: the same for a value in JSON Lines and in Parquet."""
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
