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
from tinyzero_sdk.data.files import ENDINGS
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.records import Split

_Stamp = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Collection:
    """Problems by split."""

    splits: Mapping[str, tuple[Problem, ...]]
    """Under `train` and `test` what belongs there; either may be missing."""

    shared: int
    """How many problems were left out of `train` since `test` asks the same question."""


def is_divided(options: Gsm8kOptions) -> bool:
    """Whether what the options name has a train and a test split of its own."""
    return options.source == "gsm8k" and not _is_one_pool(Path(options.path).expanduser())


def problems_of(split: Split, options: Gsm8kOptions) -> tuple[Problem, ...]:
    """The problems of a split; all problems, where the host divides them.

    Raises:
        DataError: they cannot be found or read; the message says what to do.
    """
    path = Path(options.path).expanduser()
    if not options.path:
        return _published().splits[split]
    if not path.exists():
        raise DataError(f"there is no {path}; give a folder or a file with task.path, or take task.source=synthetic")
    if _is_one_pool(path):
        return _pool(path, _stamp(path))
    found = _folder(path, _stamp(path)).splits
    if split not in found:
        raise DataError(
            f"{path} has no {split} problems, its splits are {', '.join(found) or 'none'}; name its files train and "
            "test, or give one file with task.path, which is then divided"
        )
    return found[split]


def _is_one_pool(path: Path) -> bool:
    return path.is_file() or (path / "state.json").is_file()  # the latter is what Dataset.save_to_disk writes


def _stamp(path: Path) -> _Stamp:
    """Changes when a file of the folder does."""
    files = [path] if path.is_file() else [*path.glob("*"), *path.glob("*/*")]
    return tuple(sorted((str(file), file.stat().st_mtime_ns) for file in files if file.exists()))


# Problems are asked for block by block; the stamp makes a changed file a new one.


@lru_cache(maxsize=4)
def _pool(path: Path, stamp: _Stamp) -> tuple[Problem, ...]:
    if path.is_dir():
        from tinyzero_gsm8k.data.folders import read_saved

        return read_problems(read_saved(path), str(path))
    from tinyzero_sdk.data.files import read_rows  # which, unlike `datasets`, names the line of a fault

    if path.suffix not in ENDINGS:
        raise DataError(f"task.path={path}: expected a folder, or a file that ends in {' or '.join(ENDINGS)}")
    return read_problems(read_rows(path), str(path))


@lru_cache(maxsize=4)
def _folder(path: Path, stamp: _Stamp) -> Collection:
    from tinyzero_gsm8k.data.folders import read_folder

    return collect(read_folder(path), str(path))


@lru_cache(maxsize=1)
def _published() -> Collection:
    from tinyzero_gsm8k.data.hub import REPOSITORY, published

    return collect(published(), REPOSITORY)


def collect(rows: Mapping[str, list[dict[str, object]]], origin: str) -> Collection:
    """The problems of each split, without those of `train` whose question `test` asks too.

    Raises:
        DataError: as `read_problems`.
    """
    splits = {
        split: read_problems(rows[split], f"{origin}, split {split}") for split in ("train", "test") if split in rows
    }
    held_out = {question_key(problem.question) for problem in splits.get("test", ())}
    kept = tuple(problem for problem in splits.get("train", ()) if question_key(problem.question) not in held_out)
    shared = len(splits.get("train", ())) - len(kept)
    return Collection(splits | ({"train": kept} if shared else {}), shared)
