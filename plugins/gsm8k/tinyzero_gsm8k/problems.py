"""Problems from a file in GSM8K's format: Parquet or JSON Lines with the columns `question` and `answer`."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tinyzero_gsm8k.numbers import read_number
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.seeds import derive_seed

COLUMNS = ("question", "answer")


@dataclass(frozen=True, slots=True)
class Problem:
    """One word problem."""

    question: str
    """The text."""

    solution: str
    """One step a line, and `#### result` as the last."""

    result: str
    """The number after `####`, without commas."""


def read_problems(path: str) -> tuple[Problem, ...]:
    """All problems of a file, in its order.

    Raises:
        DataError: the file cannot be read, or a row is no problem; the message names it.
    """
    try:
        return _read(Path(path), Path(path).stat().st_mtime_ns)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


@lru_cache(maxsize=4)  # problems are asked for block by block
def _read(path: Path, changed: int) -> tuple[Problem, ...]:
    from tinyzero_sdk.files import read_rows  # brings pyarrow, which scoring does not need

    return tuple(_problem(row, f"{path}, problem {number}") for number, row in enumerate(read_rows(path), start=1))


def _problem(row: Mapping[str, Any], place: str) -> Problem:
    if not all(isinstance(row.get(column), str) for column in COLUMNS):
        raise DataError(f"{place}: expected text in the columns {' and '.join(COLUMNS)}, got {str(row)[:80]}")
    marked = row["answer"].rpartition("####")[2].strip()
    if "####" not in row["answer"] or read_number(marked) is None:
        raise DataError(f"{place}: expected the answer to end in `#### number`, got {row['answer'][-40:]!r}")
    return Problem(row["question"], row["answer"], marked.replace(",", ""))


def shuffled(problems: tuple[Problem, ...], seed: int) -> list[Problem]:
    """The problems in the order that `seed` decides."""
    return random.Random(derive_seed("gsm8k", seed)).sample(problems, len(problems))
