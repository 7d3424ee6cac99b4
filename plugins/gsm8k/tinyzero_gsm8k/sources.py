"""The published problems, or a user's own: from a folder, a file, or the Hub; and which of them are train and test.

What is divided already stays so, but for questions of the test split that occur in train too: those leave train.
A file, or a dataset saved without splits, is divided by the host, by the hash of the question.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tinyzero_gsm8k.options import Gsm8kOptions
from tinyzero_gsm8k.problems import Problem, question_key, read_problems
from tinyzero_sdk.data.sources import Rows, find_files
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.records import Split

PUBLISHED = "openai/gsm8k/main"

_Stamp = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Collection:
    """Problems by split."""

    splits: Mapping[str, tuple[Problem, ...]]
    """Under `train` and `test` what belongs there; either may be missing. Under "" what is not divided."""

    shared: int
    """How many problems were left out of `train` since `test` asks the same question."""


def is_divided(options: Gsm8kOptions) -> bool:
    """Whether what the options name has a train and a test split of its own."""
    path = _folder_of(options)
    return options.source == "gsm8k" and (path is None or not path.exists() or "" not in find_files(str(path)))


def problems_of(split: Split, options: Gsm8kOptions) -> tuple[Problem, ...]:
    """The problems of a split; all problems, where the host divides them.

    Raises:
        DataError: they cannot be found or read; the message says what to do.
    """
    path = _folder_of(options)
    if path is not None and not path.exists():
        raise DataError(f"there is no {path}; give a folder or a file with task.path, or take task.source=synthetic")
    splits = _problems(str(path or PUBLISHED), _stamp(path)).splits
    if split not in splits and "" not in splits:
        raise DataError(
            f"{path or PUBLISHED} has no {split} problems, its splits are {', '.join(splits) or 'none'}; name its "
            "files train and test, or give one file with task.path, which is then divided"
        )
    return splits[split if split in splits else ""]


def _folder_of(options: Gsm8kOptions) -> Path | None:
    """The path of the options; of a copy of the Hub's repository, the folder of its configuration."""
    path = Path(options.path).expanduser()
    return None if not options.path else path / "main" if (path / "main").is_dir() else path


def _stamp(path: Path | None) -> _Stamp:
    """Changes when a file of the folder does."""
    files = [] if path is None else [path] if path.is_file() else [*path.glob("*"), *path.glob("*/*")]
    return tuple(sorted((str(file), file.stat().st_mtime_ns) for file in files if file.exists()))


# Problems are asked for block by block; the stamp makes a changed file a new one.


@lru_cache(maxsize=4)
def _problems(source: str, stamp: _Stamp) -> Collection:
    try:
        rows = {split: list(Rows(files)) for split, files in find_files(source).items()}
    except DataError as error:
        if source != PUBLISHED:
            raise
        raise DataError(f"{error}: task.path=FOLDER_OR_FILE, or made-up problems with task.source=synthetic") from error
    return collect(rows, source)


def collect(rows: Mapping[str, list[dict[str, object]]], origin: str) -> Collection:
    """The problems of each split, without those of `train` whose question `test` asks too.

    Raises:
        DataError: as `read_problems`.
    """
    splits = {
        split: read_problems(rows[split], f"{origin}, split {split}" if split else origin)
        for split in ("train", "test", "")
        if split in rows
    }
    held_out = {question_key(problem.question) for problem in splits.get("test", ())}
    kept = tuple(problem for problem in splits.get("train", ()) if question_key(problem.question) not in held_out)
    shared = len(splits.get("train", ())) - len(kept)
    return Collection(splits | ({"train": kept} if shared else {}), shared)
