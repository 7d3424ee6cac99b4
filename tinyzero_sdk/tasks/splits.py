"""Train and test splits: which candidates of a task become the problems of a split, and in which order.

The result depends on candidate order alone, not on block size or the number of processes. This module yields problems
in one process; `data/build.py` writes whole datasets.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from tinyzero_sdk.errors import ExhaustedError, SettingsError
from tinyzero_sdk.records import Item, Split
from tinyzero_sdk.records_arrow import ItemColumns
from tinyzero_sdk.seeds import split_of_key

DEFAULT_TEST_FRACTION = 1 / 16
_LEAST_FRACTION = 1e-3
"""A smaller fraction is not searched for longer: a split that is empty would be searched for hours."""

_FIRST_BLOCK = 64  # small: a task may take milliseconds for each candidate, and the caller may need three


class CandidateSource(Protocol):
    """The part of `Task` that splitting needs."""

    name: str
    has_own_splits: bool

    def generate(self, split: Split, size: int, *, seed: int = 0, start: int = 0) -> ItemColumns | list[Item]: ...
    def item_key(self, item: Item) -> str: ...


@dataclass(frozen=True, slots=True)
class Candidates:
    """The k distinct candidates of a range that belong to a split."""

    items: list[Item]
    keys: list[str]
    positions: list[int]  # candidate numbers, ascending
    columns: ItemColumns | None  # the same problems as columns, where the task returns columns
    end: int  # number of the first candidate after the range
    is_last: bool  # the task returned fewer candidates than requested, so that none follow


def read_candidates(
    task: CandidateSource, split: Split, start: int, size: int, *, seed: int, test_fraction: float
) -> Candidates:
    """The candidates start … start + size - 1 that belong to `split` by the hash of their key."""
    generated = task.generate(split, size, seed=seed, start=start)
    items = list(islice(generated, size))
    first: dict[str, int] = {}
    for row, item in enumerate(items):
        key = task.item_key(item)
        if key not in first and (task.has_own_splits or split_of_key(key, test_fraction) == split):
            first[key] = row
    rows = list(first.values())
    return Candidates(
        items=[items[row] for row in rows],
        keys=list(first),
        positions=[start + row for row in rows],
        columns=generated.take(rows) if isinstance(generated, ItemColumns) else None,
        end=start + len(items),
        is_last=len(items) < size,
    )


def check_test_fraction(task: CandidateSource, test_fraction: float) -> None:
    """Refuse a fraction that would leave a split empty, or have no effect."""
    if not 0 < test_fraction < 1:
        raise SettingsError(f"the test fraction is {test_fraction}; expected a number between 0 and 1, such as 0.0625")
    if task.has_own_splits and test_fraction != DEFAULT_TEST_FRACTION:
        raise SettingsError(
            f"a test fraction ({test_fraction:g}) has no effect on {task.name!r} here: its data are already "
            "divided into train and test; leave it out"
        )


def split_fraction(task: CandidateSource, split: Split, test_fraction: float) -> float:
    """The fraction of a task's candidates that belongs to a split."""
    if task.has_own_splits:
        return 1.0
    return test_fraction if split == "test" else 1 - test_fraction


class SplitFilter:
    """Drops repeated keys in candidate order, and raises when a task has no new problems left."""

    def __init__(self, task: CandidateSource, split: Split, *, size: int | None, test_fraction: float) -> None:
        """Take the arguments of `iterate_split`."""
        self._task_name = task.name
        self._is_divided = task.has_own_splits
        self._split = split
        self._size = size
        self._fraction = split_fraction(task, split, test_fraction)
        self._seen: set[str] = set()
        self._newest = -1  # number of the latest candidate that was new

    def admit(self, keys: list[str], positions: list[int], end: int, is_last: bool) -> Iterator[int]:
        """Rows of a range whose key is new; see `Candidates` for the arguments.

        Raises:
            ExhaustedError: after too many candidates without a new key, or at the task's end.
        """
        for row, (key, position) in enumerate(zip(keys, positions, strict=True)):
            if key not in self._seen:
                self._check_patience(position)
                self._seen.add(key)
                self._newest = position
                yield row
        self._check_patience(end)
        if is_last:
            raise self._exhausted(f"the task ends after {end:,} candidates")

    def _check_patience(self, position: int) -> None:
        # With T equally likely keys, 8 T candidates miss a given one with probability exp(-8).
        repeats = position - self._newest - 1
        if repeats >= max(1024, 8 * len(self._seen)) / max(self._fraction, _LEAST_FRACTION):
            of_other = "" if self._is_divided else " or of the other split"
            raise self._exhausted(f"the last {repeats:,} candidates were all repeats{of_other}")

    def _exhausted(self, why: str) -> ExhaustedError:
        count, requested = len(self._seen), "more" if self._size is None else f"{self._size:,}"
        flag = "--size" if self._split == "train" else "--test-size"
        fixes = [f"request fewer (`tinyzero data` with {flag} {count}, or {flag} all)"]
        if not self._is_divided:
            fixes += ["change the test fraction", "widen the task's options (task.KEY=VALUE)"]
        return ExhaustedError(
            f"task {self._task_name} has only {count:,} different {self._split} problems, {requested} were requested "
            f"({why}); {', or '.join(fixes)}"
        )


def iterate_split(
    task: CandidateSource,
    split: Split,
    *,
    size: int | None = None,
    seed: int = 0,
    test_fraction: float = DEFAULT_TEST_FRACTION,
    block: int = 1024,
) -> Iterator[Item]:
    """Iterate over the problems of a split, without repeats, in candidate order.

    Args:
        size: number of problems; None = all there are.
        test_fraction: the fraction of all problems that belongs to the test split; no problem is in both, whatever
            the seeds.
        block: most candidates to request at a time; does not change the result.

    Raises:
        ExhaustedError: the task has fewer than `size` different problems.
        SettingsError: `test_fraction` would leave a split empty, or have no effect.
    """
    check_test_fraction(task, test_fraction)
    split_filter = SplitFilter(task, split, size=size, test_fraction=test_fraction)
    problems = _problems(task, split, split_filter, seed, test_fraction, block)
    if size is not None:
        return islice(problems, size)

    def all_problems() -> Iterator[Item]:
        with suppress(ExhaustedError):
            yield from problems

    return all_problems()


def _problems(
    task: CandidateSource, split: Split, split_filter: SplitFilter, seed: int, test_fraction: float, block: int
) -> Iterator[Item]:
    start, count = 0, min(_FIRST_BLOCK, block)
    while True:
        candidates = read_candidates(task, split, start, count, seed=seed, test_fraction=test_fraction)
        for row in split_filter.admit(candidates.keys, candidates.positions, candidates.end, candidates.is_last):
            yield candidates.items[row]
        start, count = candidates.end, min(2 * count, block)
