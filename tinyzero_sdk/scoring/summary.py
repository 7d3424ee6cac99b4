"""The summary of scored completions: collected block by block, computed at the end.

A row takes 39 bytes until then, so ten million rows fit in memory. The formulas are in `statistics.py`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import pyarrow.compute as pc

from tinyzero_sdk.data.column_hash import hash_numbers, hash_values
from tinyzero_sdk.data.table import UNKNOWN_FLAG
from tinyzero_sdk.records import REASONS, Json, ScoreColumns
from tinyzero_sdk.scoring.learning_signal import LearningSignal, measure
from tinyzero_sdk.scoring.outputs import OutputBatch, find_problem_column, problem_keys
from tinyzero_sdk.scoring.statistics import (
    best_at_k,
    draws_each,
    interval_of_mean_rate,
    interval_of_rate,
    majority_at_k,
    named_ranges,
    pass_at_k,
    standard_error,
)

MOST_DRAWN = 1024  # greatest k of pass@k, majority@k and best@k
_CODES = {reason: code for code, reason in enumerate(REASONS)}


@dataclass(frozen=True, slots=True)
class AtK:
    """pass@k, majority@k and best@k: means over the prompts with at least k completions (see `statistics.py`)."""

    k: int
    prompts: int
    pass_at_k: float
    interval: tuple[float, float]  # 95% interval of pass@k, over prompts (`interval_of_rate`)
    majority_at_k: float
    best_at_k: float


@dataclass(frozen=True, slots=True)
class DifficultyBucket:
    """The rows within a range of difficulty, both ends included; None where it is unknown how many are cut off."""

    low: float
    high: float
    rows: int
    accuracy: float
    interval: tuple[float, float]
    mean_score: float
    truncated_frac: float | None


@dataclass(frozen=True, slots=True)
class ReasonStats:
    """The rows of one reason; what is unknown of them is None."""

    reason: str
    rows: int
    mean_score: float
    mean_length: float | None
    median_length: float | None
    p95_length: float | None
    max_length: int | None
    truncated_frac: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    rows: int
    prompts: int
    prompts_by: str
    """What identifies a prompt: a column, `ground_truth`, or `row` where each row counts as its own prompt."""

    accuracy: float
    interval: tuple[float, float]  # 95% Wilson interval of the accuracy, clustered by prompt (`interval_of_rate`)
    standard_error: float
    mean_score: float
    length_unit: str
    mean_length: float | None
    signal: LearningSignal
    at_k: list[AtK] = field(default_factory=list)
    """Estimates for the requested k, else for powers of two and the largest number of completions, if any prompt has
    several."""

    too_large_k: list[int] = field(default_factory=list)  # requested k for which no prompt has enough completions
    by_difficulty: list[DifficultyBucket] = field(default_factory=list)
    """At most five, easiest first; empty where no row has a difficulty."""

    by_reason: list[ReasonStats] = field(default_factory=list)  # most frequent first
    parts: dict[str, float] = field(default_factory=dict)
    """Mean of each part of the reward, before its weight; a row without it counts as 0."""

    alone: int = 0  # rows without a value of `prompts_by`; each counts as its own prompt

    def as_json(self) -> dict[str, Json]:
        return asdict(self)


class SummaryBuilder:
    """Collects scores block by block and computes their summary."""

    def __init__(self, group_by: str | None = None, pass_at: Sequence[int] = (), *, greedy: bool = False) -> None:
        """The arguments are those of `ScoringOptions`, with values of k of at most `MOST_DRAWN`."""
        self.rows = 0
        self.prompts_by = ""
        self.length_unit = ""
        self.alone = 0
        self._group_by = group_by
        self._pass_at = pass_at
        self._greedy = greedy
        self._columns: dict[str, list[np.ndarray]] = {}
        self._parts: Counter[str] = Counter()

    def add(self, batch: OutputBatch, scores: ScoreColumns) -> None:
        """Add n rows and their scores."""
        size = len(scores)
        if not size:
            return
        block = batch.block
        lengths = block.floats("num_tokens") if self.length_unit != "characters" else np.zeros(0)
        if not self.prompts_by:  # by the first rows
            self.prompts_by = find_problem_column(block, self._group_by)
            self.length_unit = "characters" if np.isnan(lengths).all() else "tokens"
        if self.length_unit == "characters":
            ascii_only = pc.all(pc.string_is_ascii(batch.texts)).as_py()  # then a byte is a character
            counts = pc.binary_length(batch.texts) if ascii_only else pc.utf8_length(batch.texts)
            lengths = np.asarray(counts, np.float64)
        keys, known_keys = problem_keys(batch, self.prompts_by)
        votes = np.full(size, -1, np.int32)  # for none
        if self.prompts_by != "row":
            self.alone += size - int(known_keys.sum())
            answered = [answer is not None for answer in scores.answers]
            votes = np.where(answered, (hash_values(scores.answers) >> np.uint64(33)).astype(np.int32), votes)
        arrays = {
            "key": np.where(known_keys, keys, hash_numbers(np.arange(self.rows, self.rows + size))),
            "answer": votes,
            "score": np.array(scores.values, np.float64),  # NaN for None
            "correct": np.array(scores.correct, bool),
            "reason": np.array([_CODES[reason] for reason in scores.reasons], np.uint8),
            "difficulty": block.floats("difficulty"),  # NaN where unknown
            "length": np.where(lengths >= 0, lengths, np.nan),
            "finished": block.flags("finished"),
        }
        for name, values in arrays.items():
            self._columns.setdefault(name, []).append(values)
        for parts in scores.parts.values():
            self._parts.update(parts)
        self.rows += size

    def result(self) -> Summary | None:
        """The summary, or None without rows. Frees the collected columns."""
        if not self.rows:
            return None
        columns = {name: np.concatenate(self._columns.pop(name)) for name in list(self._columns)}
        if (unknown := np.isnan(columns["score"])).all():
            return None
        if unknown.any():
            columns = {name: values[~unknown] for name, values in columns.items()}
        keys, correct, score = columns["key"], columns["correct"], columns["score"]
        order = np.argsort(keys, kind="stable")
        starts = np.flatnonzero(np.diff(keys[order], prepend=~keys[order[:1]]))
        sizes = np.diff(starts, append=len(keys))
        solved = np.add.reduceat(correct[order].astype(np.int64), starts)
        lengths = columns["length"][np.isfinite(columns["length"])]
        # Greedy completions of a prompt have one reward by construction: only the first says something.
        compared, group_sizes = (order[starts], np.ones_like(sizes)) if self._greedy else (order, sizes)
        return Summary(
            rows=len(keys),
            prompts=len(sizes),
            prompts_by=self.prompts_by,
            accuracy=float(correct.mean()),
            interval=interval_of_rate(solved, sizes),
            standard_error=standard_error(solved, sizes),
            mean_score=float(score.mean()),
            length_unit=self.length_unit,
            mean_length=float(lengths.mean()) if len(lengths) else None,
            signal=measure(
                group_sizes,
                score[compared],
                correct[compared],
                columns["reason"][compared] == _CODES["no_answer"],
                _truncated(columns["finished"][compared]),
            ),
            at_k=_at_k(columns, order, starts, sizes, solved, self._pass_at),
            too_large_k=[k for k in self._pass_at if k > sizes.max()],
            by_difficulty=[
                _bucket({name: columns[name][chosen] for name in ("key", "difficulty", "correct", "score", "finished")})
                for _, chosen in named_ranges(columns["difficulty"])
            ],
            by_reason=_by_reason(columns),
            parts={name: total / len(keys) for name, total in self._parts.items()},
            alone=self.alone,
        )


def _truncated(finished: np.ndarray) -> np.ndarray | None:
    return finished == 0 if (finished != UNKNOWN_FLAG).any() else None


def _truncated_frac(finished: np.ndarray) -> float | None:
    truncated = _truncated(finished)
    return None if truncated is None else float(truncated.mean())


def _at_k(
    columns: Mapping[str, np.ndarray],
    order: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
    solved: np.ndarray,
    pass_at: Sequence[int],
) -> list[AtK]:
    most = min(int(sizes.max()), MOST_DRAWN)
    chosen = [k for k in pass_at if k <= most] if pass_at else usual_k(most)
    if not chosen:
        return []
    by_size = {}
    for size in np.unique(sizes).tolist():
        rows = order[starts[sizes == size][:, None] + np.arange(size)]  # [G, size]
        by_size[size] = {name: columns[name][rows] for name in ("score", "answer", "correct")}
    result = []
    for k in chosen:
        enough = sizes >= k
        groups = [group for size, group in by_size.items() if size >= k]
        draws = draws_each(int(enough.sum()), k)
        passed = pass_at_k(solved[enough], sizes[enough], k)
        interval = interval_of_mean_rate(passed, sizes[enough])
        majority = [majority_at_k(group["answer"], group["correct"], k, draws=draws) for group in groups]
        best = [best_at_k(group["score"], k) for group in groups]
        means = (float(np.concatenate(values).mean()) for values in (majority, best))
        result.append(AtK(k, int(enough.sum()), float(passed.mean()), interval, *means))
    return result


def usual_k(most: int) -> list[int]:
    """The values of k where some prompts have `most` completions: powers of two, and `most`; none for one."""
    return sorted({*(2**power for power in range(most.bit_length())), most}) if most > 1 else []


def _bucket(values: Mapping[str, np.ndarray]) -> DifficultyBucket:
    _, prompt, sizes = np.unique(values["key"], return_inverse=True, return_counts=True)
    solved = np.bincount(prompt, weights=values["correct"], minlength=len(sizes))
    accuracy = float(values["correct"].mean())
    return DifficultyBucket(
        low=float(values["difficulty"].min()),
        high=float(values["difficulty"].max()),
        rows=len(prompt),
        accuracy=accuracy,
        interval=interval_of_rate(solved, sizes),
        mean_score=float(values["score"].mean()),
        truncated_frac=_truncated_frac(values["finished"]),
    )


def _by_reason(columns: Mapping[str, np.ndarray]) -> list[ReasonStats]:
    outcomes = []
    for code, reason in enumerate(REASONS):
        rows = columns["reason"] == code
        if not rows.any():
            continue
        lengths = columns["length"][rows]
        lengths = lengths[np.isfinite(lengths)]
        median, p95 = np.quantile(lengths, [0.5, 0.95]).tolist() if len(lengths) else (None, None)
        outcomes.append(
            ReasonStats(
                reason,
                int(rows.sum()),
                float(columns["score"][rows].mean()),
                float(lengths.mean()) if len(lengths) else None,
                median,
                p95,
                int(lengths.max()) if len(lengths) else None,
                _truncated_frac(columns["finished"][rows]),
            )
        )
    return sorted(outcomes, key=lambda outcome: -outcome.rows)
