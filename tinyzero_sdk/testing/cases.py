"""Labelled completions, in one JSON Lines format: those that a task ships, those that `tinyzero fuzz` finds, and those
that `tinyzero check` replays.

A package keeps them next to its module as `cases.jsonl`, a task file `my_task.py` as `my_task.cases.jsonl`.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tinyzero_sdk.errors import DataError
from tinyzero_sdk.records import Json

if TYPE_CHECKING:
    from tinyzero_sdk.tasks.task import Task


@dataclass(frozen=True, slots=True)
class Case:
    """A completion labelled right or wrong."""

    completion: str
    """The text, as a model might write it; a lone surrogate is kept as JSON's escape."""

    ground_truth: Json
    correct: bool
    note: str = ""
    """Why the case is there, or where it comes from."""


def read_cases(path: Path) -> list[Case]:
    """The cases of a file.

    Raises:
        DataError: it cannot be read, or a line is no case; the message names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the cases in {path}: {error}") from error
    return [parse_case(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]


def parse_case(line: str, place: str) -> Case:
    """The case in a line of JSON.

    Raises:
        DataError: it is none; the message begins with `place`.
    """
    expected = 'expected {"completion": text, "ground_truth": …, "correct": true or false}, and "note" if you like'
    try:
        row = json.loads(line)
        case = Case(row["completion"], row["ground_truth"], row["correct"], row.get("note", ""))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DataError(f"{place} is no case ({type(error).__name__}: {error}); {expected}") from error
    if not isinstance(case.completion, str) or not isinstance(case.correct, bool) or not isinstance(case.note, str):
        raise DataError(f"{place} is no case (a value of another type); {expected}")
    return case


def write_cases(path: Path, cases: Iterable[Case]) -> None:
    """Write a file of cases, all in ASCII, over what was there."""
    path.write_text("".join(json.dumps(asdict(case)) + "\n" for case in cases), encoding="ascii")


def add_cases(path: Path, cases: Iterable[Case]) -> int:
    """Add to a file those of the cases whose completion and ground truth it does not hold yet; how many those are.

    Raises:
        DataError: the file is there and cannot be read; it is left as it is.
    """
    from tinyzero_sdk.data.files import replacing

    old = read_cases(path) if path.exists() else []
    known = {_identity(case) for case in old}
    new = {_identity(case): case for case in cases if _identity(case) not in known}
    if new:
        with replacing(path) as temporary:
            write_cases(temporary, [*old, *new.values()])
    return len(new)


def _identity(case: Case) -> tuple[str, str]:
    return case.completion, json.dumps(case.ground_truth, sort_keys=True)


def cases_path(task: "Task") -> Path:
    """Where the cases that belong to a task are, if it has any."""
    source = Path(task.source)
    if source.name == "__init__.py":
        return source.with_name("cases.jsonl")
    if source.suffix == ".py":
        return source.with_suffix(".cases.jsonl")
    return task.module_file.parent / "cases.jsonl"
