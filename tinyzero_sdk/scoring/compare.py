"""Compare scored files problem by problem: the Python call behind `tinyzero compare`.

Every number is a mean over problems, each of which counts once, whatever the number of its completions. A difference is
the mean of the problems' own differences: what makes a problem hard is common to both sides, and cancels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from tinyzero_sdk.console import plural
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.records import REASONS, Json
from tinyzero_sdk.scoring.readers.runs import first_and_last
from tinyzero_sdk.scoring.score_file import MAX_LISTED
from tinyzero_sdk.scoring.scored_rows import ScoredRows, find_key, read_scored_rows
from tinyzero_sdk.scoring.statistics import bootstrap_intervals, interval_of_mean, named_ranges, pass_at_k
from tinyzero_sdk.scoring.summary import MOST_DRAWN, usual_k

FEW = 10
"""Problems with another accuracy, below which Student's t is not to be relied on."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of one quantity over the same problems in two files."""

    name: str
    problems: int
    """Problems of which both files know it."""

    baseline: float
    other: float
    difference: float
    interval: tuple[float, float] | None
    """95% interval of the difference, of a fraction cut at -1 and 1; None where it is the same for every problem, and
    not 0, or there is only one."""


def is_fraction(name: str) -> bool:
    """Whether what is compared under this name is from 0 to 1."""
    return name not in ("mean score", "tokens") and not name.startswith("part ")


@dataclass(frozen=True, slots=True)
class ProblemChange:
    """A problem with another fraction of right completions; pairs are of the baseline and the other file."""

    problem: str
    correct: tuple[int, int]
    """Right completions."""

    completions: tuple[int, int]
    rows: tuple[int, int]
    """The problem's first row or line in each file."""


@dataclass(frozen=True)
class Comparison:
    """A file against the baseline."""

    file: str
    accuracy: Difference
    metrics: list[Difference]
    """Mean score, pass@k, and, where both files have them, the parts of the reward as `part NAME`, greedy accuracy, the
    fraction that is cut off and the number of tokens."""

    by_reason: list[Difference]
    """Fraction of the completions with each reason."""

    by_difficulty: list[Difference]
    """Accuracy within at most five ranges of difficulty, easiest first."""

    by_task: list[Difference]
    """Accuracy on each task, where there are several."""

    better: int
    """Problems with a greater fraction of right completions than in the baseline."""

    worse: int
    newly_solved: int
    """Problems with a right completion here, and none in the baseline."""

    no_longer_solved: int
    gains: list[ProblemChange]
    """The first `MAX_LISTED` that are better, the largest change first."""

    losses: list[ProblemChange]


@dataclass(frozen=True)
class ComparedFile:
    file: str
    completions: int
    """Of the problems that all files have."""

    other_problems: int
    """Problems that are not in all files, and not compared."""

    ignored: dict[str, int]
    """Rows that are not compared, by what they lack."""


@dataclass(frozen=True)
class ComparisonReport:
    problems: int
    """Problems that all files have, to which every number refers."""

    problems_by: str
    """Column that identifies a problem."""

    files: list[ComparedFile]
    """The baseline first."""

    differing: dict[str, list[list[Json] | None]]
    """Settings that are not the same in all files, with the values in each: of the scorer, its options, the sampling.
    None where a file does not have them."""

    comparisons: list[Comparison]


@dataclass(frozen=True)
class CompareOptions:
    key: str | None = None
    """Column that identifies a problem; None = the first usual one that all files have."""

    pass_at: Sequence[int] = ()
    """Values of k for pass@k; () = powers of two."""

    resamples: int = 0
    """Samples of a paired bootstrap over problems; 0 = intervals by Student's t."""

    on_progress: Callable[[float], object] = field(default=lambda fraction: None)
    """Called with the fraction of the work that is done; half of it is the bootstrap, where there is one."""


def compare_files(paths: Sequence[Path], options: CompareOptions | None = None) -> ComparisonReport:
    """Compare scored files, or the held-out evaluations of runs (`read_held_out`), with the first of them.

    Of a single run, compare its last evaluation with its first.

    Raises:
        DataError: a file cannot be read or has no scores, or the files have no problem in common.
    """
    options = options or CompareOptions()
    if len(paths) == 1:
        paths = first_and_last(paths[0])
    key = options.key or find_key(paths)
    keys: dict[str, int] = {}
    tasks: dict[str | None, int] = {}

    def part(start: float, end: float, place: int, places: int) -> Callable[[float], object]:
        """Progress of one of several alike parts of the work."""
        return lambda fraction: options.on_progress(start + (end - start) * (place + fraction) / places)

    read = 0.5 if options.resamples else 1.0
    files = [
        read_scored_rows(path, key, keys, tasks, part(0.0, read, place, len(paths))) for place, path in enumerate(paths)
    ]
    texts = list(keys)
    if all(len(np.unique(rows.columns["task"])) > 1 for rows in files):
        texts = _tell_tasks_apart(files, texts, [str(name) for name in tasks])
    has = [np.bincount(rows.problems, minlength=len(texts)) > 0 for rows in files]
    common = np.logical_and.reduce(has)
    if not common.any():
        example = [texts[there.argmax()][:40] for there in (has[0], has[-1])]
        raise DataError(
            f"the files have no problem in common by {key}, such as {example[0]!r} and {example[1]!r}; compare files "
            "of one task and split, or name another column with --by"
        )
    sides = [_Side(rows, common) for rows in files]
    texts = [texts[index] for index in np.flatnonzero(common).tolist()]
    return ComparisonReport(
        problems=len(texts),
        problems_by=key,
        files=[
            ComparedFile(str(rows.path), int(side.sizes.sum()), int((there & ~common).sum()), rows.ignored)
            for rows, side, there in zip(files, sides, has, strict=True)
        ],
        differing=differing([rows.settings for rows in files]),
        comparisons=[
            _compare(
                sides[0],
                side,
                texts,
                list(tasks),
                replace(options, on_progress=part(read, 1.0, place, len(paths) - 1)),
            )
            for place, side in enumerate(sides[1:])
        ],
    )


def _tell_tasks_apart(files: Sequence[ScoredRows], texts: Sequence[str], tasks: Sequence[str]) -> list[str]:
    """Make the problems of different tasks different ones, though they may have one key; their texts.

    Only where all files have several tasks: one of them alone may have another name elsewhere.
    """
    for rows in files:
        rows.problems[:] = rows.problems * len(tasks) + rows.columns["task"]
    return [f"{task}: {text}" for text in texts for task in tasks]


class _Side:
    """The rows of one file on the G problems that all files have."""

    def __init__(self, rows: ScoredRows, common: np.ndarray) -> None:
        keep = common[rows.problems]
        self.file = str(rows.path)
        self.problems = (np.cumsum(common) - 1)[rows.problems[keep]]
        self.columns = {name: values[keep] for name, values in rows.columns.items()}
        self.sizes = np.bincount(self.problems)
        self.solved = np.bincount(self.problems, rows.correct[keep]).astype(np.int64)
        first = np.unique(self.problems, return_index=True)[1]
        self.first_rows, self.tasks = rows.numbers[keep][first], self.columns["task"][first]

    def mean(self, values: np.ndarray) -> np.ndarray:
        """[G] mean of each problem's rows with a known value; NaN without any."""
        known = np.isfinite(values)
        counts = np.bincount(self.problems[known], minlength=len(self.sizes))
        sums = np.bincount(self.problems[known], values[known], len(self.sizes))
        return np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)

    def pass_at(self, k: int) -> np.ndarray:
        """[G] pass@k of the problems with k completions, or NaN."""
        enough = self.sizes >= k
        rates = np.full(len(enough), np.nan)
        rates[enough] = pass_at_k(self.solved[enough], self.sizes[enough], k)
        return rates


Pair = tuple[str, np.ndarray, np.ndarray]
"""What is compared, and its value for each problem on both sides."""


def differences(
    pairs: Sequence[Pair], resamples: int, on_progress: Callable[[float], object] = lambda fraction: None
) -> list[Difference]:
    """The mean difference of each pair over the problems that both sides know; `resamples` as in `CompareOptions`."""
    columns, found = list[np.ndarray](), list[Difference]()
    for name, old, new in pairs:
        known = np.isfinite(old) & np.isfinite(new)
        columns.append(change := (new - old)[known])
        before, now, mean = (float(values.mean()) for values in (old[known], new[known], change))
        found.append(Difference(name, len(change), before, now, mean, None))
    # Not where there is a single problem, or too few to show how they vary.
    vary = [place for place, change in enumerate(columns) if not change[0] or (change != change[0]).any()]
    columns = [columns[place] for place in vary]
    by_t = map(interval_of_mean, columns)
    intervals = bootstrap_intervals(columns, resamples, on_progress=on_progress) if resamples else by_t
    for place, interval in zip(vary, intervals, strict=True):
        if interval and is_fraction(found[place].name):
            interval = max(-1.0, interval[0]), min(1.0, interval[1])
        found[place] = replace(found[place], interval=interval)
    return found


def remark(changed: int) -> str | None:
    """What the number of problems with another accuracy says of its interval; None where that can be relied on."""
    if not changed:
        return "no problem differs in accuracy: its interval says nothing about other problems"
    few = f"only {plural(changed, 'problem')} with another accuracy, too few to rely on its interval"
    return few if changed < FEW else None


def _compare(
    baseline: _Side, other: _Side, texts: Sequence[str], tasks: Sequence[str | None], options: CompareOptions
) -> Comparison:
    def both(of: Callable[[_Side], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        return of(baseline), of(other)

    rates = both(lambda side: side.solved / side.sizes)
    pairs = {"mean score": both(lambda side: side.mean(side.columns["score"]))}
    for k in _values_of_k(baseline, other, options.pass_at):
        pairs[f"pass@{k}"] = both(partial(_Side.pass_at, k=k))
    parts = [name for name in baseline.columns if name.startswith("part ") and name in other.columns]
    for name in (*parts, "greedy accuracy", "cut off", "tokens"):
        pair = both(lambda side, name=name: side.mean(side.columns[name]))  # type: ignore[misc]
        if np.isfinite(pair[0] + pair[1]).any():
            pairs[name] = pair
    reasons = {
        reason: both(lambda side, code=code: side.mean(side.columns["reason"] == code))  # type: ignore[misc]
        for code, reason in enumerate(REASONS)
    }
    of_tasks = [(str(tasks[task]), baseline.tasks == task) for task in np.unique(baseline.tasks).tolist()]
    groups: dict[str, list[Pair]] = {
        "accuracy": [("accuracy", *rates)],
        "metrics": [(name, *pair) for name, pair in pairs.items()],
        "by_reason": [(name, *pair) for name, pair in reasons.items() if pair[0].any() or pair[1].any()],
        "by_difficulty": [
            (name, rates[0][chosen], rates[1][chosen]) for name, chosen in _difficulties(baseline, other)
        ],
        "by_task": [(name, rates[0][of], rates[1][of]) for name, of in of_tasks] if len(of_tasks) > 1 else [],
    }
    pairs_of_all = [pair for group in groups.values() for pair in group]
    every = iter(differences(pairs_of_all, options.resamples, options.on_progress))
    found = {name: list(islice(every, len(group))) for name, group in groups.items()}
    gain = rates[1] - rates[0]
    return Comparison(
        file=other.file,
        accuracy=found["accuracy"][0],
        metrics=found["metrics"],
        by_reason=found["by_reason"],
        by_difficulty=found["by_difficulty"],
        by_task=found["by_task"],
        better=int((gain > 0).sum()),
        worse=int((gain < 0).sum()),
        newly_solved=int(((rates[0] == 0) & (rates[1] > 0)).sum()),
        no_longer_solved=int(((rates[0] > 0) & (rates[1] == 0)).sum()),
        gains=_changes(baseline, other, texts, gain),
        losses=_changes(baseline, other, texts, -gain),
    )


def _values_of_k(baseline: _Side, other: _Side, pass_at: Sequence[int]) -> Sequence[int]:
    """Those requested, or the usual ones above 1."""
    most = min(int(np.minimum(baseline.sizes, other.sizes).max()), MOST_DRAWN)
    if max(pass_at, default=1) > most:
        raise DataError(
            f"no problem has {max(pass_at):,} completions in both {baseline.file} and {other.file}, as pass@"
            f"{max(pass_at)} needs; at most {most:,} are possible"
        )
    return pass_at or usual_k(most)[1:]


def _changes(baseline: _Side, other: _Side, texts: Sequence[str], gain: np.ndarray) -> list[ProblemChange]:
    """The problems with the largest gain above 0."""

    def pair(name: str, place: int) -> tuple[int, int]:
        return int(getattr(baseline, name)[place]), int(getattr(other, name)[place])

    places = np.argsort(-gain, kind="stable")[: min(int((gain > 0).sum()), MAX_LISTED)].tolist()
    return [
        ProblemChange(texts[place], *(pair(name, place) for name in ("solved", "sizes", "first_rows")))
        for place in places
    ]


def _difficulties(baseline: _Side, other: _Side) -> list[tuple[str, np.ndarray]]:
    """At most five ranges of difficulty, each with the [G] problems in it."""
    values = baseline.mean(baseline.columns["difficulty"])
    return named_ranges(np.where(np.isfinite(values), values, other.mean(other.columns["difficulty"])))


def differing(files: Sequence[Mapping[str, list[Json]]]) -> dict[str, list[list[Json] | None]]:
    """The settings that are not the same in all files, each with its values in every file."""
    differences: dict[str, list[list[Json] | None]] = {}
    for name in dict.fromkeys(name for settings in files for name in settings):
        values = [settings.get(name) for settings in files]
        is_repeated = name.startswith("sampling.") and values == differences.get(name.removeprefix("sampling."))
        if not is_repeated and any(value != values[0] for value in values):
            differences[name] = values
    return differences
