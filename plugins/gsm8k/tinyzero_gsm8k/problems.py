"""A word problem in GSM8K's format, and what its question and its solution say. Its origin: `sources.py`."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from tinyzero_gsm8k.numbers import read_number
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.seeds import derive_seed

MARKER = "####"
COLUMNS = ("question", "answer")


@dataclass(frozen=True, slots=True)
class Problem:
    """One word problem."""

    question: str
    solution: str
    """One step a line, and `#### result` as the last."""

    result: str
    """The number after `####`, without commas."""


def read_problems(rows: Iterable[Mapping[str, Any]], origin: str) -> tuple[Problem, ...]:
    """The problems that the rows are, in their order.

    Raises:
        DataError: a row is no problem; the message names `origin` and the row's number, from 1.
    """
    problems = []
    for number, row in enumerate(rows, start=1):
        try:
            problems.append(read_problem(row))
        except DataError as error:
            raise DataError(f"{origin}, problem {number}: {error}") from error
    return tuple(problems)


def read_problem(row: Mapping[str, Any]) -> Problem:
    """The problem that a row is.

    Raises:
        DataError: it is none.
    """
    if not all(isinstance(row.get(column), str) for column in COLUMNS):
        raise DataError(f"expected text in the columns {' and '.join(COLUMNS)}, got {str(row)[:80]}")
    marked = row["answer"].rpartition(MARKER)[2].strip()
    if MARKER not in row["answer"] or read_number(marked) is None:
        raise DataError(f"expected the answer to end in `{MARKER} number`, got {row['answer'][-40:]!r}")
    return Problem(row["question"], row["answer"], marked.replace(",", ""))


def shuffled(problems: Sequence[Problem], seed: int) -> list[Problem]:
    """The problems in the order that `seed` decides."""
    return random.Random(derive_seed("gsm8k", seed)).sample(problems, len(problems))


def question_key(question: str) -> str:
    """The same for two questions that differ in case and spacing only."""
    return blake2b(" ".join(question.casefold().split()).encode(), digest_size=16).hexdigest()


def steps_of(solution: str) -> list[str]:
    """The steps of a solution: its lines before `####`, without the calculator marks (`<<3*4=12>>`) of GSM8K."""
    lines = solution.rpartition(MARKER)[0].splitlines()
    return [_without_marks(line).strip() for line in lines if line.strip()]


def _without_marks(line: str) -> str:
    parts = line.split("<<")
    return parts[0] + "".join(part.partition(">>")[2] if ">>" in part else f"<<{part}" for part in parts[1:])
