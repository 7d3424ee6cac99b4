"""The split guard: which candidates of a task become the problems of a split, and in which order.

Candidate order alone decides, so neither the size of a block nor the number of processes changes the
result. Only problems, one process and no files here: `data/build.py` makes whole data sets in columns.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from tinyzero_sdk.errors import ExhaustedError, SettingsError
from tinyzero_sdk.records import Item, Split
from tinyzero_sdk.records_arrow import ItemColumns
from tinyzero_sdk.seeds import split_of_key

if TYPE_CHECKING:
    import numpy as np

DEFAULT_TEST_FRACTION = 1 / 16
_FIRST_BLOCK = 64  # small, since a task may take milliseconds for each candidate and the reader want three


class CandidateSource(Protocol):
    """What the split guard needs of a `Task`."""

    name: str
    has_own_splits: bool

    def generate(self, split: Split, size: int, *, seed: int = 0, start: int = 0) -> ItemColumns | list[Item]:
        """See `Task.generate`."""

    def item_key(self, item: Item) -> str:
        """See `Task.item_key`."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates of one range that belong to a split, none of them twice."""

    items: list[Item]
    """[k] the problems."""

    keys: list[str]
    """[k] their canonical keys."""

    positions: list[int]
    """[k] their candidate numbers, rising."""

    columns: ItemColumns | None
    """[k] the same problems as columns, where the task gives columns."""

    end: int
    """Number of the first candidate after the range."""

    is_last: bool
    """The task gave fewer candidates than it was asked for: there are none from `end` on."""


def read_candidates(
    task: CandidateSource, split: Split, start: int, size: int, *, seed: int, test_fraction: float
) -> Candidates:
    """Ask `task` for the candidates start … start + size - 1 and keep those of `split`, by the hash of their key."""
    given = task.generate(split, size, seed=seed, start=start)
    items = list(islice(given, size))
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
        columns=given.take(_as_array(rows)) if isinstance(given, ItemColumns) else None,
        end=start + len(items),
        is_last=len(items) < size,
    )


def _as_array(rows: list[int]) -> "np.ndarray":
    import numpy as np

    return np.array(rows, dtype=np.int64)


def check_test_fraction(task: CandidateSource, test_fraction: float) -> None:
    """Refuse a share that would leave a split empty, or have no effect.

    Raises:
        SettingsError: it is not between 0 and 1, or not the default although the task's data are divided already.
    """
    if not 0 < test_fraction < 1:
        raise SettingsError(f"the test fraction is {test_fraction}; expected a number between 0 and 1, such as 0.0625")
    if task.has_own_splits and test_fraction != DEFAULT_TEST_FRACTION:
        raise SettingsError(
            f"a test fraction ({test_fraction:g}) has no effect on {task.name!r} here: its data are already "
            "divided into train and test; leave it out"
        )


def split_fraction(task: CandidateSource, split: Split, test_fraction: float) -> float:
    """The share of a task's candidates that belongs to a split."""
    if task.has_own_splits:
        return 1.0
    return test_fraction if split == "test" else 1 - test_fraction


class SplitFilter:
    """Drops repeated keys in candidate order, and notices when a task has nothing new to give."""

    def __init__(self, task: CandidateSource, split: Split, *, size: int | None, test_fraction: float) -> None:
        """
        Args:
            task: whose candidates they are.
            split: the split being filled.
            size: how many problems are wanted, for the message; None = no end.
            test_fraction: the share of all keys that belongs to the test split, between 0 and 1.
        """
        self._task_name = task.name
        self._is_divided = task.has_own_splits
        self._split = split
        self._size = size
        self._share = split_fraction(task, split, test_fraction)
        self._seen: set[str] = set()
        self._newest = -1  # number of the latest candidate that was new

    def admit(self, keys: list[str], positions: list[int], end: int, is_last: bool) -> Iterator[int]:
        """Rows of a range whose key was not seen before; see `Candidates` for the arguments.

        Raises:
            ExhaustedError: at the row where that shows.
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
        barren = position - self._newest - 1
        if barren >= max(1024, 8 * len(self._seen)) / self._share:
            raise self._exhausted(f"{barren:,} candidates in a row brought nothing new")

    def _exhausted(self, why: str) -> ExhaustedError:
        there, asked = len(self._seen), "more" if self._size is None else f"{self._size:,}"
        flag = "--size" if self._split == "train" else "--test-size"
        cures = [f"ask for fewer (`tinyzero data` with {flag} {there}, or {flag} all)"]
        if not self._is_divided:
            cures += ["change the test fraction", "widen the task's options (task.KEY=VALUE)"]
        return ExhaustedError(
            f"there are only {there:,} different {self._split} problems of {self._task_name}, {asked} were asked for "
            f"({why}); {', or '.join(cures)}"
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
    """The problems of a split, lazily: the right side of the split, without repeats, in candidate order.

    Args:
        task: from `load_task`.
        split: `train` or `test`; no problem is in both, whatever the seeds.
        size: how many; None = as many as the reader takes.
        seed: another seed gives other problems.
        test_fraction: the share of all problems that belongs to the test split.
        block: most candidates asked for at a time; never changes the result.

    Raises:
        ExhaustedError: the task has no more different problems.
        SettingsError: `test_fraction` would leave a split empty, or have no effect.
    """
    check_test_fraction(task, test_fraction)
    split_filter = SplitFilter(task, split, size=size, test_fraction=test_fraction)
    return islice(_endless(task, split, split_filter, seed, test_fraction, block), size)


def _endless(
    task: CandidateSource, split: Split, split_filter: SplitFilter, seed: int, test_fraction: float, block: int
) -> Iterator[Item]:
    start, count = 0, min(_FIRST_BLOCK, block)
    while True:
        found = read_candidates(task, split, start, count, seed=seed, test_fraction=test_fraction)
        for row in split_filter.admit(found.keys, found.positions, found.end, found.is_last):
            yield found.items[row]
        start, count = found.end, min(2 * count, block)
