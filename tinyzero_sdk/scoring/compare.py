"""Compare scored files problem by problem: the Python call behind `tinyzero compare`.

Every number is a mean over problems, each of which counts once, whatever the number of its completions. A difference is
the mean of the problems' own differences: what makes a problem hard is common to both sides, and cancels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from tinyzero_sdk.console import plural
from tinyzero_sdk.data.arrow import as_text, to_list
from tinyzero_sdk.data.column_hash import hash_array
from tinyzero_sdk.data.table import Block
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.records import REASONS, Json
from tinyzero_sdk.scoring.outputs import PARTS
from tinyzero_sdk.scoring.provenance import Provenance
from tinyzero_sdk.scoring.readers.runs import first_and_last
from tinyzero_sdk.scoring.score_file import MAX_LISTED
from tinyzero_sdk.scoring.scored_table import TEXT, find_common_column, read_scored_table
from tinyzero_sdk.scoring.statistics import bootstrap_interval, interval_of_mean, named_ranges, pass_at_k
from tinyzero_sdk.scoring.summary import MOST_DRAWN, usual_k

FEW = 10  # problems with another accuracy, below which Student's t is not to be relied on


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of one quantity over the same problems in two files."""

    name: str
    problems: int  # problems of which both files know it
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
    completions: tuple[int, int]
    rows: tuple[int, int]  # the problem's first row or line in each file


@dataclass(frozen=True)
class Comparison:
    """A file against the baseline."""

    file: str
    accuracy: Difference
    metrics: list[Difference]
    """Mean score, pass@k, and, where both files have them, the parts of the reward as `part NAME`, the fraction that is
    cut off and the number of tokens."""

    by_reason: list[Difference]  # fraction of the completions with each reason
    by_difficulty: list[Difference]  # accuracy within at most five ranges of difficulty, easiest first
    by_task: list[Difference]  # where there are several
    better: int  # problems with a greater fraction of right completions than in the baseline
    worse: int
    newly_solved: int  # problems with a right completion here, and none in the baseline
    no_longer_solved: int
    gains: list[ProblemChange]  # the first `MAX_LISTED` that are better, the largest change first
    losses: list[ProblemChange]


@dataclass(frozen=True)
class ComparedFile:
    file: str
    completions: int  # of the problems that all files have
    other_problems: int  # problems that are not in all files, and not compared
    ignored: dict[str, int]  # rows that are not compared, by what they lack


@dataclass(frozen=True)
class ComparisonReport:
    problems: int  # problems that all files have, to which every number refers
    problems_by: str
    files: list[ComparedFile]  # the baseline first
    differing: dict[str, list[list[Json] | None]]
    """Settings of scorer and sampling that are not the same in all files, with the values in each, None without any."""

    comparisons: list[Comparison]


@dataclass(frozen=True)
class CompareOptions:
    key: str | None = None  # column that identifies a problem; None = the first usual one that all files have
    pass_at: Sequence[int] = ()  # values of k for pass@k; () = powers of two
    resamples: int = 0  # samples of a paired bootstrap over problems; 0 = intervals by Student's t


def compare_files(paths: Sequence[Path], options: CompareOptions | None = None) -> ComparisonReport:
    """Compare scored files, or the held-out evaluations of runs (`read_held_out`), with the first of them.

    Of a single run, compare its last evaluation with its first.

    Raises:
        DataError: a file cannot be read or has no scores, or the files have no problem in common.
    """
    options = options or CompareOptions()
    if len(paths) == 1:
        paths = first_and_last(paths[0])
    key = options.key or find_common_column(paths)
    keys: dict[str | None, int] = {}
    tasks: dict[str | None, int] = {}
    files = [_read(path, key, keys, tasks) for path in paths]
    texts = [str(key) for key in keys]
    if all(len(np.unique(rows.columns["task"])) > 1 for rows in files):
        # Problems of different tasks are different ones, though they may have one key.
        for rows in files:
            rows.problems[:] = rows.problems * len(tasks) + rows.columns["task"]
        texts = [f"{task}: {text}" for text in texts for task in tasks]
    has = [np.bincount(rows.problems, minlength=len(texts)) > 0 for rows in files]
    common = np.logical_and.reduce(has)
    if not common.any():
        example = [texts[there.argmax()][:40] for there in (has[0], has[-1])]
        raise DataError(
            f"the files have no problem in common by {key}, such as {example[0]!r} and {example[1]!r}; compare files "
            "of one task and split, or name another column with --by"
        )
    sides = [rows.within(common) for rows in files]
    texts = [texts[index] for index in np.flatnonzero(common).tolist()]
    return ComparisonReport(
        problems=len(texts),
        problems_by=key,
        files=[
            ComparedFile(str(rows.path), int(side.sizes.sum()), int((there & ~common).sum()), rows.ignored)
            for rows, side, there in zip(files, sides, has, strict=True)
        ],
        differing=differing([rows.settings for rows in files]),
        comparisons=[_compare(sides[0], side, texts, list(tasks), options) for side in sides[1:]],
    )


@dataclass(frozen=True)
class Side:
    """The n rows of a file that have a problem, of G problems."""

    numbers: np.ndarray  # [n] line or row number
    problems: np.ndarray  # [n] index of the problem
    columns: dict[str, np.ndarray]
    """[n] each: `task` (index into those of all files), what is compared by its name, and `difficulty`; NaN where
    unknown."""

    path: Path
    settings: dict[str, list[Json]]  # all values of what the rows depend on: the scorer, its options, the sampling
    ignored: dict[str, int]  # rows of the file that are not among these, by what they lack

    def within(self, chosen: np.ndarray) -> "Side":
        """The rows of the chosen problems, which are numbered anew."""
        keep = chosen[self.problems]
        columns = {name: values[keep] for name, values in self.columns.items()}
        problems = (np.cumsum(chosen) - 1)[self.problems[keep]]
        return replace(self, numbers=self.numbers[keep], problems=problems, columns=columns)

    @cached_property
    def sizes(self) -> np.ndarray:
        """[G] completions."""
        return np.bincount(self.problems)

    @cached_property
    def solved(self) -> np.ndarray:
        """[G] right completions."""
        return np.bincount(self.problems, self.columns["accuracy"]).astype(np.int64)

    @cached_property
    def rates(self) -> np.ndarray:
        """[G] accuracy."""
        return self.solved / self.sizes

    @cached_property
    def first(self) -> np.ndarray:
        """[G] index of each problem's first row."""
        return np.unique(self.problems, return_index=True)[1]

    def mean(self, name: str) -> np.ndarray:
        """[G] mean of each problem's rows with a known value of a column; NaN without any."""
        values = self.columns[name]
        known = np.isfinite(values)
        counts = np.bincount(self.problems[known], minlength=len(self.sizes))
        sums = np.bincount(self.problems[known], values[known], len(self.sizes))
        return np.divide(sums, counts, out=np.full(len(self.sizes), np.nan), where=counts > 0)

    def pass_at(self, k: int) -> np.ndarray:
        """[G] pass@k of the problems with k completions, or NaN."""
        enough = self.sizes >= k
        rates = np.full(len(enough), np.nan)
        rates[enough] = pass_at_k(self.solved[enough], self.sizes[enough], k)
        return rates


_SCHEMA = pa.schema(
    dict.fromkeys(("problem", "task", "reason"), TEXT)
    | {name: pa.bool_() for name in ("correct", "finished")}
    | {name: pa.float64() for name in ("score", "difficulty", "num_tokens")}
    | {PARTS: pa.map_(pa.string(), pa.float64())}
)
_SETTINGS = (
    *Provenance._fields,
    *("data_source", "extra_info.task_version", "extra_info.split", "sampling", "evaluation"),
)


def _read(path: Path, key: str, problems: dict[str | None, int], tasks: dict[str | None, int]) -> Side:
    """The scored rows of a file; new problems and tasks are added to those that are known, by their text."""
    settings = dict[str, dict[str, Json]]()
    table = read_scored_table(
        path, _SCHEMA, problems_by=key, others=_SETTINGS, visit=lambda block: _add_settings(block, settings)
    )
    has_problem = table.columns["problem"].is_valid().to_numpy()
    ignored = table.ignored | ({f"without {key}": int((~has_problem).sum())} if not has_problem.all() else {})
    if not has_problem.any():
        raise DataError(f"{path} has no row with {key}, which should identify its problems; name a column with --by")
    rows = table.columns.filter(pa.array(has_problem))
    reasons = rows["reason"].combine_chunks()
    names, codes = np.array(reasons.dictionary.to_pylist(), object), reasons.indices.to_numpy()
    parts: list[dict[str, float]] = [dict(cell or ()) for cell in rows[PARTS].to_pylist()]
    columns: dict[str, np.ndarray] = {
        "task": _codes(rows["task"], tasks),
        "difficulty": _floats(rows, "difficulty"),
        "accuracy": _floats(rows, "correct"),
        "mean score": _floats(rows, "score"),
        # A part is 0 where a row does not have it, as where the scorer failed.
        **{
            f"part {name}": np.array([cell.get(name, 0.0) for cell in parts])
            for name in dict.fromkeys(name for cell in parts for name in cell)
        },
        "cut off": 1 - _floats(rows, "finished"),
        "tokens": _floats(rows, "num_tokens"),
        **{reason: (names == reason)[codes].astype(float) for reason in REASONS},
    }
    by_name = {name: [values[text] for text in sorted(values)] for name, values in settings.items()}
    return Side(table.numbers[has_problem], _codes(rows["problem"], problems), columns, path, by_name, ignored)


def _codes(column: pa.ChunkedArray, known: dict[str | None, int]) -> np.ndarray:
    """[n] the number of each text among the known ones, to which new ones are added."""
    column = column.combine_chunks()
    texts = column.dictionary.to_pylist()
    occurring = [*texts, *([None] if column.null_count else [])]
    codes = np.array([known.setdefault(text, len(known)) for text in occurring], np.int64)
    return codes[column.indices.fill_null(len(texts)).to_numpy()]


def _floats(columns: pa.Table, name: str) -> np.ndarray:
    return columns[name].cast(pa.float64()).to_numpy()


def _add_settings(block: Block, settings: dict[str, dict[str, Json]]) -> None:
    """Collect the different values of the columns with settings, by name and text; those of an object by its keys."""

    def add(name: str, value: Json) -> None:
        if name == "task_options" and isinstance(value, str):
            value = Provenance("", "", value, "").options()
        if isinstance(value, dict):
            for entry in value:
                add(f"{name}.{entry}", value[entry])
        else:
            settings.setdefault(name, {})[as_text(value)] = value

    for name in _SETTINGS:
        values = block.column(name)
        firsts = np.sort(np.unique(hash_array(values), return_index=True)[1])
        for value in to_list(values.take(pa.array(firsts))):
            if value is not None:
                add(name, value)


def _difference(name: str, old: np.ndarray, new: np.ndarray, resamples: int) -> Difference:
    """The change of a metric, by its values of each problem, over the problems that both sides know."""
    known = np.isfinite(old) & np.isfinite(new)
    old, new = old[known], new[known]
    change, interval = new - old, None
    if not change[0] or (change != change[0]).any():  # else there are too few to show how they vary
        interval = bootstrap_interval(change, resamples) if resamples else interval_of_mean(change)
    if interval and is_fraction(name):
        interval = max(-1.0, interval[0]), min(1.0, interval[1])
    return Difference(name, len(change), float(old.mean()), float(new.mean()), float(change.mean()), interval)


def remark(changed: int) -> str | None:
    """What the number of problems with another accuracy says of its interval; None where that can be relied on."""
    if not changed:
        return "no problem differs in accuracy: its interval says nothing about other problems"
    few = f"only {plural(changed, 'problem')} with another accuracy, too few to rely on its interval"
    return few if changed < FEW else None


def _compare(
    baseline: Side, other: Side, texts: Sequence[str], tasks: Sequence[str | None], options: CompareOptions
) -> Comparison:
    def difference(
        name: str, value: Callable[[Side], np.ndarray], where: np.ndarray | slice = slice(None)
    ) -> Difference:
        """The change of a metric within some problems."""
        return _difference(name, value(baseline)[where], value(other)[where], options.resamples)

    def is_known(name: str) -> bool:
        return bool(np.isfinite(baseline.mean(name) + other.mean(name)).any())

    both = [name for name in baseline.columns if name in other.columns]
    parts = [name for name in both if name.startswith("part ")]
    known = [name for name in (*parts, "cut off", "tokens") if is_known(name)]
    reasons = [reason for reason in REASONS if baseline.mean(reason).any() or other.mean(reason).any()]
    levels = baseline.mean("difficulty")
    levels = np.where(np.isfinite(levels), levels, other.mean("difficulty"))
    task_of = baseline.columns["task"][baseline.first]
    task_codes = np.unique(task_of).tolist()
    gain = other.rates - baseline.rates
    return Comparison(
        file=str(other.path),
        accuracy=difference("accuracy", lambda side: side.rates),
        metrics=[
            difference("mean score", lambda side: side.mean("mean score")),
            *(
                difference(f"pass@{k}", partial(Side.pass_at, k=k))
                for k in _values_of_k(baseline, other, options.pass_at)
            ),
            *(difference(name, partial(Side.mean, name=name)) for name in known),
        ],
        by_reason=[difference(reason, partial(Side.mean, name=reason)) for reason in reasons],
        by_difficulty=[difference(name, lambda side: side.rates, where) for name, where in named_ranges(levels)],
        by_task=[difference(str(tasks[code]), lambda side: side.rates, task_of == code) for code in task_codes]
        if len(task_codes) > 1
        else [],
        better=int((gain > 0).sum()),
        worse=int((gain < 0).sum()),
        newly_solved=int(((baseline.rates == 0) & (other.rates > 0)).sum()),
        no_longer_solved=int(((baseline.rates > 0) & (other.rates == 0)).sum()),
        gains=_changes(baseline, other, texts, gain),
        losses=_changes(baseline, other, texts, -gain),
    )


def _values_of_k(baseline: Side, other: Side, pass_at: Sequence[int]) -> Sequence[int]:
    """Those requested, or the usual ones above 1."""
    most = min(int(np.minimum(baseline.sizes, other.sizes).max()), MOST_DRAWN)
    if max(pass_at, default=1) > most:
        raise DataError(
            f"no problem has {max(pass_at):,} completions in both {baseline.path} and {other.path}, as pass@"
            f"{max(pass_at)} needs; at most {most:,} are possible"
        )
    return pass_at or usual_k(most)[1:]


def _changes(baseline: Side, other: Side, texts: Sequence[str], gain: np.ndarray) -> list[ProblemChange]:
    """The problems with the largest gain above 0."""
    order = np.argsort(-gain, kind="stable")[: min(int((gain > 0).sum()), MAX_LISTED)].tolist()
    sides = ((side.solved, side.sizes, side.numbers[side.first]) for side in (baseline, other))
    pairs = [np.stack(pair, axis=1) for pair in zip(*sides, strict=True)]  # [G, 2] each
    return [ProblemChange(texts[problem], *(tuple(pair[problem].tolist()) for pair in pairs)) for problem in order]


def differing(files: Sequence[Mapping[str, list[Json]]]) -> dict[str, list[list[Json] | None]]:
    """The settings that are not the same in all files, each with its values in every file."""
    differences: dict[str, list[list[Json] | None]] = {}
    for name in dict.fromkeys(name for settings in files for name in settings):
        values = [settings.get(name) for settings in files]
        is_repeated = name.startswith("sampling.") and values == differences.get(name.removeprefix("sampling."))
        if not is_repeated and any(value != values[0] for value in values):
            differences[name] = values
    return differences
