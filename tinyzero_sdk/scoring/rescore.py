"""Score a scored file again with the installed task and compare: the Python call behind `tinyzero rescore`.

The old scores are those in the file; the old version does not run.
"""

import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from tinyzero_sdk.data.table import BadRow, Block
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.records import ScoreColumns
from tinyzero_sdk.scoring.outputs import PARTS, RESULT_COLUMNS, SCORE_COLUMNS, OutputBatch, read_parts
from tinyzero_sdk.scoring.provenance import Provenance, ProvenanceCheck, RowSource, accept_any, provenance_of
from tinyzero_sdk.scoring.readers import find_reader
from tinyzero_sdk.scoring.score_file import MAX_LISTED, ScoreReport, ScoringOptions, run_scoring
from tinyzero_sdk.tasks.task import Task

_END = 200  # characters of a completion that are shown
_ALWAYS_LISTED = 20  # changes of each pair of reasons


@dataclass(frozen=True, slots=True)
class RowScore:
    score: float
    correct: bool
    reason: str
    answer: str | None


@dataclass(frozen=True, slots=True)
class ScoreChange:
    """A row whose score changed."""

    number: int  # line of a JSON Lines file, row of a Parquet file; the first is 1
    old: RowScore
    new: RowScore
    completion_end: str
    parts: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The parts of the reward that changed, by name, before and now."""

    @property
    def is_flip(self) -> bool:
        return self.old.correct != self.new.correct

    @property
    def reasons(self) -> tuple[str, str]:
        return self.old.reason, self.new.reason


@dataclass(slots=True)
class PartChanges:
    """A part of the reward in the rows that have it before and now."""

    rows: int = 0
    rose: int = 0
    fell: int = 0
    old_sum: float = 0.0
    new_sum: float = 0.0

    def add(self, old: float, new: float) -> None:
        self.rows += 1
        self.rose += new > old
        self.fell += new < old
        self.old_sum += old
        self.new_sum += new


@dataclass
class RescoreReport:
    """What became of the scores of a file."""

    scored: ScoreReport
    before: list[Provenance] = field(default_factory=list)  # what produced the old scores, as far as it is known
    compared: int = 0  # rows with an old and a new score, to which the numbers below refer
    old_correct: int = 0
    new_correct: int = 0
    changed: int = 0  # rows whose score, a part of it, correctness or reason changed
    flipped: int = 0  # rows whose correctness changed
    other_answer: int = 0  # rows with the same score for another answer
    parts: defaultdict[str, PartChanges] = field(default_factory=lambda: defaultdict(PartChanges))
    """The changes of each part of the reward by name, where the file has such parts."""

    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    changes: list[ScoreChange] = field(default_factory=list)
    """The first `MAX_LISTED`, and after these the first few of each pair of reasons."""

    @property
    def old_accuracy(self) -> float | None:
        """Fraction of the compared rows that were correct before, or None."""
        return self.old_correct / self.compared if self.compared else None

    @property
    def new_accuracy(self) -> float | None:
        """Fraction of the compared rows that are correct now, or None."""
        return self.new_correct / self.compared if self.compared else None

    def add(self, change: ScoreChange) -> None:
        self.changed += 1
        self.flipped += change.is_flip
        self.reasons[change.reasons] += 1
        if len(self.changes) < MAX_LISTED or self.reasons[change.reasons] <= _ALWAYS_LISTED:
            self.changes.append(change)


def rescore_file(
    task: Task, source: Path, output: Path | None = None, options: ScoringOptions | None = None
) -> RescoreReport:
    """Score a scored file again and compare.

    The output has the rows with their new scores; the old ones move to `old_score` and so on.

    Raises:
        DataError: the file cannot be read, has no rows or no scores.
        VersionMismatchError: the two sides differ in more than the version.
    """
    options = options or ScoringOptions()
    before: list[Provenance] = []
    find_problem = accept_any if options.allow_version_mismatch else rescoring_check(task)
    report = RescoreReport(ScoreReport(provenance=provenance_of(task)), before)

    def check(row_source: RowSource) -> str | None:
        if row_source.scored_by is not None and row_source.scored_by not in before:
            before.append(row_source.scored_by)
        return find_problem(row_source)

    def compare(batch: OutputBatch, scores: ScoreColumns) -> Block:
        _compare(source, batch, scores, report)
        old = {f"old_{name}": name for name in (*RESULT_COLUMNS, PARTS) if name in batch.block.names}
        return batch.block.mapped(old, source)

    run_scoring(task, find_reader(None, source), source, output, check, options, report.scored, compare)
    return report


def rescoring_check(task: Task) -> ProvenanceCheck:
    """Refuses to compare scores that differ in more than the version of the scorer.

    That is: rows that do not say what scored them; another task; other options or wrappers; rows scored by several
    versions; and problems from a version that is neither the old scorer's nor the installed one.
    """
    now = provenance_of(task)
    first: list[Provenance] = []

    def check(row_source: RowSource) -> str | None:
        old = row_source.scored_by
        if old is None:
            return f"the row does not say what scored it{_FIX}"
        first.append(old)
        for name in ("task", "task_options", "task_wrappers"):
            before, installed = getattr(old, name), getattr(now, name)
            if before != installed:
                return f"the row was scored with {name.replace('_', ' ')} {before}, and this is {installed}{_FIX}"
        if old != first[0]:
            return f"rows were scored by {old.task} {old.task_version} and by {first[0].task_version}{_FIX}"
        if row_source.data_version and row_source.data_version not in (old.task_version, now.task_version):
            origin = f"generated by {row_source.data_source} {row_source.data_version}"
            return f"the problem was {origin}, and scored by {old.task_version}{_FIX}"
        return None

    return check


_FIX = "; only the version may differ; compare anyway with --allow-version-mismatch"


def _compare(source: Path, batch: OutputBatch, scores: ScoreColumns, report: RescoreReport) -> None:
    block = batch.block
    missing = [name for name in SCORE_COLUMNS if name not in block.names]
    if len(batch) and (missing if isinstance(block.data, pa.Table) else len(missing) == len(SCORE_COLUMNS)):
        raise DataError(f"{source} has no {', '.join(missing)}; expected a file that `tinyzero score` wrote")
    old_parts = block.cells(PARTS)
    old = zip(*map(block.cells, SCORE_COLUMNS), strict=True)
    new = zip(scores.values, scores.correct, scores.reasons, scores.answers, strict=True)
    for row, (old_cells, new_cells) in enumerate(zip(old, new, strict=True)):
        old_score, old_correct, old_reason, old_answer = old_cells
        number = block.numbers[row]
        is_score = type(old_score) in (int, float) and abs(old_score) <= sys.float_info.max
        if not is_score or type(old_correct) is not bool or not isinstance(old_reason, str):
            report.scored.add(ScoreColumns(), [BadRow(number, "no old score in the columns score, correct and reason")])
            continue
        if new_cells[0] is None:  # the scorer failed, which is counted
            continue
        report.compared += 1
        report.old_correct += old_correct
        report.new_correct += new_cells[1]
        before, now = read_parts(old_parts[row]), scores.parts.get(row, {})
        parts = {name: (before[name], value) for name, value in now.items() if name in before}
        for name, pair in parts.items():
            report.parts[name].add(*pair)
        moved = {name: pair for name, pair in parts.items() if pair[0] != pair[1]}
        if moved or old_cells[:3] != new_cells[:3]:
            text = batch.texts[row].as_py()
            report.add(ScoreChange(number, RowScore(*old_cells), RowScore(*new_cells), text[-_END:], moved))
        elif old_answer != new_cells[3]:
            report.other_answer += 1
