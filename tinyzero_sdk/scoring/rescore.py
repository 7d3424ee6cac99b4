"""Score a scored file again with the installed task and compare: the Python call behind `tinyzero rescore`.

The old scores are those in the file; the old version does not run.
"""

import json
import shlex
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from tinyzero_sdk.data.arrow import to_list
from tinyzero_sdk.data.files import BadRow, Block
from tinyzero_sdk.records import ScoreColumns
from tinyzero_sdk.scoring.outputs import (
    PARTS,
    RESULT_COLUMNS,
    OutputBatch,
    Provenance,
    ProvenanceCheck,
    RowSource,
    accept_any,
    column,
    provenance_of,
    read_parts,
    score_columns,
)
from tinyzero_sdk.scoring.readers import find_reader
from tinyzero_sdk.scoring.score_file import (
    MAX_LISTED,
    ScoreReport,
    ScoringOptions,
    check_output,
    find_schema,
    scored_batches,
    writing,
)
from tinyzero_sdk.tasks.task import Task

_END = 200  # characters of a completion that are shown
_ALWAYS_LISTED = 20  # changes of each pair of reasons


@dataclass(frozen=True, slots=True)
class RowScore:
    """One side of a comparison."""

    score: float
    correct: bool
    reason: str
    answer: str | None


@dataclass(frozen=True, slots=True)
class ScoreChange:
    """A row whose score changed."""

    number: int
    """Line of a JSON Lines file, row of a Parquet file; the first is 1."""

    old: RowScore
    new: RowScore
    completion_end: str
    parts: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By name: the parts of the reward that changed, before and now."""

    @property
    def is_flip(self) -> bool:
        """Whether its correctness changed."""
        return self.old.correct != self.new.correct

    @property
    def reasons(self) -> tuple[str, str]:
        """The reason before and the one now."""
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
    before: list[Provenance] = field(default_factory=list)
    """What produced the old scores, as far as it is known."""

    compared: int = 0
    """Rows with an old and a new score, to which the numbers below refer."""

    old_correct: int = 0
    new_correct: int = 0
    changed: int = 0
    """Rows whose score, a part of it, correctness or reason changed."""

    flipped: int = 0
    """Rows whose correctness changed."""

    other_answer: int = 0
    """Rows with the same score for another answer."""

    parts: defaultdict[str, PartChanges] = field(default_factory=lambda: defaultdict(PartChanges))
    """By the part's name, where the file has the parts of its scores."""

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

    Args:
        task: from `load_task`.
        source: what `score_file` wrote.
        output: file for the rows with their new scores; the old ones move to `old_score` and so on.
        options: processes, limits and checks.

    Raises:
        DataError: the file cannot be read, has no rows or no scores.
        VersionMismatchError: the two sides differ in more than the version.
    """
    options = options or ScoringOptions()
    reader = find_reader(None, source)
    if output is not None:
        check_output(source, output, overwrite=options.overwrite)
    before: list[Provenance] = []
    find_problem = accept_any if options.allow_version_mismatch else rescoring_check(task)

    def check(row_source: RowSource) -> str | None:
        if row_source.scored_by is not None and row_source.scored_by not in before:
            before.append(row_source.scored_by)
        return find_problem(row_source)

    started = time.perf_counter()
    schema = None if output is None else find_schema(task, reader, source, output, check)
    report = RescoreReport(ScoreReport(provenance=provenance_of(task)), before)
    with ExitStack() as stack:
        write = None if output is None else stack.enter_context(writing(task, source, output))
        batches = scored_batches(task, reader, source, check, options, report.scored, schema)
        for batch, scores in stack.enter_context(batches):
            _compare(source, batch, scores, report)
            if write is not None:
                _keep_old(batch.block)
                write(batch, scores)
            options.on_progress(batch.block.progress)
    report.scored.seconds = time.perf_counter() - started
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
        if old.task != now.task:
            return f"the row was scored by task {old.task}, and this is {now.task}{_FIX}"
        if old.task_options != now.task_options:
            return f"the row was scored with {old.task_options}, and this is {now.task_options}{_FIX}"
        if old.task_wrappers != now.task_wrappers:
            return f"the row was scored with {_typed(old)}, and this is with {_typed(now)}{_FIX}"
        if old != first[0]:
            return f"rows were scored by {old.task} {old.task_version} and by {first[0].task_version}{_FIX}"
        if row_source.data_version and row_source.data_version not in (old.task_version, now.task_version):
            made = f"generated by {row_source.data_source} {row_source.data_version}"
            return f"the problem was {made}, and scored by {old.task_version}{_FIX}"
        return None

    return check


def _typed(provenance: Provenance) -> str:
    """The wrappers of a provenance as command-line options."""
    try:
        specs = json.loads(provenance.task_wrappers or "[]")
        return " ".join(f"--wrapper {shlex.quote(spec)}" for spec in specs) or "no wrapper"
    except (ValueError, TypeError):  # not written by us
        return provenance.task_wrappers


_FIX = "; only the version may differ; compare anyway with --allow-version-mismatch"


def _compare(source: Path, batch: OutputBatch, scores: ScoreColumns, report: RescoreReport) -> None:
    cells = column(batch.block, PARTS)
    old_parts = (to_list(cells) if isinstance(cells, pa.Array) else cells) or [None] * len(scores)
    new = zip(scores.values, scores.correct, scores.reasons, scores.answers, strict=True)
    for place, (old_cells, new_cells) in enumerate(zip(_old(source, batch.block), new, strict=True)):
        old_score, old_correct, old_reason, old_answer = old_cells
        number = batch.block.numbers[place]
        is_score = type(old_score) in (int, float) and abs(old_score) <= sys.float_info.max
        if not is_score or type(old_correct) is not bool or not isinstance(old_reason, str):
            report.scored.note_bad([BadRow(number, "no old score in the columns score, correct and reason")])
            continue
        if new_cells[0] is None:  # the scorer failed, which is counted
            continue
        report.compared += 1
        report.old_correct += old_correct
        report.new_correct += new_cells[1]
        moved = _moved(read_parts(old_parts[place]), scores.parts.get(place, {}), report)
        if moved or old_cells[:3] != new_cells[:3]:
            texts = batch.texts
            text = texts[place] if isinstance(texts, list) else texts[place].as_py()
            report.add(ScoreChange(number, RowScore(*old_cells), RowScore(*new_cells), text[-_END:], moved))
        elif old_answer != new_cells[3]:
            report.other_answer += 1


def _moved(old: dict[str, float], new: Mapping[str, float], report: RescoreReport) -> dict[str, tuple[float, float]]:
    """The parts of a row that changed, counted in the report."""
    pairs = {name: (old[name], value) for name, value in new.items() if name in old}
    for name, pair in pairs.items():
        report.parts[name].add(*pair)
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _old(source: Path, block: Block) -> Iterator[tuple]:
    """The old scores of the rows."""
    columns = score_columns(source, block).values()
    return zip(*(to_list(values) if isinstance(values, pa.Array) else values for values in columns), strict=True)


def _keep_old(block: Block) -> None:
    """Move the old scores to their own columns, replacing any of these names."""
    new_names = {name: f"old_{name}" for name in (*RESULT_COLUMNS, PARTS)}
    stale = {*new_names.values()}
    if block.table is None:
        block.rows = [{new_names.get(name, name): row[name] for name in row if name not in stale} for row in block.rows]
        return
    kept = [name for name in block.table.column_names if name not in stale]
    block.table = block.table.select(kept).rename_columns([new_names.get(name, name) for name in kept])
