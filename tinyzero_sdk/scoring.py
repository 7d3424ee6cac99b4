"""Scoring a file of outputs: the Python call behind `tinyzero score`.

Reads and writes a block at a time, so a file may be larger than memory. Rows that cannot be scored are left
out of the output and listed in the report; an answer that the scorer fails on is kept, with its reason.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from tinyzero_sdk.errors import DataError
from tinyzero_sdk.files import (
    BadRow,
    Block,
    JsonLinesWriter,
    ParquetWriter,
    check_ending,
    read_blocks,
    replacing,
)
from tinyzero_sdk.pool import ScoringPool
from tinyzero_sdk.records import Completion, Json, Score
from tinyzero_sdk.table import Row, check_json_types, infer_schema, to_table
from tinyzero_sdk.task import Task
from tinyzero_sdk.wire import completion_of, ground_truth_of

MAX_LISTED = 1000
"""So many bad rows are listed; more are counted."""

Case = tuple[Completion, Json]
"""What there is to score in a row: the completion and the ground truth."""


@dataclass
class ScoreReport:
    """What became of a file."""

    rows: int = 0
    """Rows scored; all of them are in the output."""

    correct: int = 0
    """How many of them are correct."""

    score_sum: float = 0.0
    """The sum of their scores."""

    reasons: Counter[str] = field(default_factory=Counter)
    """How many have each reason."""

    bad_rows: int = 0
    """Rows left out, since they cannot be read, or have no completion or no ground truth."""

    bad: list[BadRow] = field(default_factory=list)
    """The first `MAX_LISTED` of them."""

    first_error: str | None = None
    """Traceback of the first exception that the scorer raised."""

    seconds: float = 0.0
    """How long it took."""

    @property
    def accuracy(self) -> float | None:
        """Share of the scored rows that are correct; None without any."""
        return self.correct / self.rows if self.rows else None

    @property
    def mean_score(self) -> float | None:
        """Mean of the scores; None without any."""
        return self.score_sum / self.rows if self.rows else None

    @property
    def is_clean(self) -> bool:
        """No row was bad, and no answer too much for the scorer."""
        return not (self.bad_rows or self.reasons["error"] or self.reasons["timeout"])

    def add(self, scores: Sequence[Score], bad: Sequence[BadRow]) -> None:
        """Count what came of a block."""
        self.rows += len(scores)
        self.correct += sum(score.correct for score in scores)
        self.score_sum += sum(score.value for score in scores)
        self.reasons.update(score.reason for score in scores)
        self.bad_rows += len(bad)
        self.bad += bad[: MAX_LISTED - len(self.bad)]


def score_file(
    task: Task,
    source: Path,
    output: Path,
    *,
    workers: int = 1,
    time_limit: float = 5.0,
    memory_limit_gb: float = 4.0,
    on_progress: Callable[[float], object] = lambda share: None,
) -> ScoreReport:
    """Score every row of `source` and write it to `output`, with the columns score, correct, reason and answer.

    Args:
        task: from `load_task`.
        source: `.jsonl` or `.parquet`, with the columns of an outputs file (`docs/data-format.md`).
        output: `.jsonl` or `.parquet`; written aside, and put in place when all is done.
        workers: scoring processes.
        time_limit: seconds for one answer.
        memory_limit_gb: address space of a worker, in GiB.
        on_progress: called with the share of the file that is done.

    Raises:
        DataError: a file cannot be read or written, or the source has no rows.
    """
    started = time.perf_counter()
    _check_paths(source, output)
    report = ScoreReport()
    to_parquet = output.suffix == ".parquet"
    schema = _find_schema(source) if to_parquet and source.suffix == ".jsonl" else None
    with (
        replacing(output) as temporary,
        ScoringPool(task, workers=workers, time_limit=time_limit, memory_limit_gb=memory_limit_gb) as pool,
        ParquetWriter(temporary) if to_parquet else JsonLinesWriter(temporary) as writer,
    ):
        for block, cases in _read_cases(source, schema):
            scores = pool.score([completion for completion, _ in cases], [truth for _, truth in cases])
            report.add(scores, block.bad)
            if isinstance(writer, ParquetWriter):
                writer.write(_scored_table(block, scores))
            else:
                writer.write(_scored_rows(source, block, scores))
            on_progress(block.progress)
        if not report.rows and not report.bad_rows:
            raise DataError(f"{source} has no rows; there is nothing to score")
        report.first_error = pool.first_error
    report.seconds = time.perf_counter() - started
    return report


def _check_paths(source: Path, output: Path) -> None:
    for path in (source, output):
        check_ending(path)
    if not source.is_file():
        raise DataError(f"{source} {'is a directory' if source.is_dir() else 'does not exist'}; expected a file")
    if output.resolve() == source.resolve():
        raise DataError(f"the output {output} is the input itself; give it another name")
    if not output.parent.is_dir():
        raise DataError(f"the directory of the output, {output.parent}, does not exist; create it first")


def _find_schema(source: Path) -> pa.Schema:
    """The types of a JSON Lines file, for Parquet, which must know them before the first row: a pass of its own."""
    return infer_schema(block.rows for block, _ in _read_cases(source, None))


def _read_cases(source: Path, schema: pa.Schema | None) -> Iterator[tuple[Block, list[Case]]]:
    """The blocks of a file without their bad rows, and what there is to score; with a schema, as tables."""
    for block in read_blocks(source):
        cases: list[Case] = []
        problems: dict[int, str] = {}
        for place, row in enumerate(block.rows if block.table is None else _cells(source, block.table)):
            try:
                cases.append((completion_of(row), ground_truth_of(row)))
            except DataError as error:
                problems[place] = str(error)
        block.drop(problems)
        if schema is not None:
            table, misfits = to_table(block.rows, schema)
            block.drop(misfits)
            block.table = table
            cases = [case for place, case in enumerate(cases) if place not in misfits]
        yield block, cases


def _cells(source: Path, table: pa.Table) -> list[Row]:
    """The columns that scoring needs, as rows."""
    names = [name for name in ("completion", "ground_truth", "reward_model") if name in table.column_names]
    if "completion" not in names or len(names) == 1:
        raise DataError(
            f"{source} has the columns {', '.join(table.column_names)}; expected `completion`, "
            "and `ground_truth` or `reward_model`"
        )
    return table.select(names).to_pylist()


def _scored_rows(source: Path, block: Block, scores: Sequence[Score]) -> Iterator[Row]:
    if block.table is not None:
        check_json_types(source, block.table.schema)
    for row, score in zip(block.rows if block.table is None else block.table.to_pylist(), scores, strict=True):
        yield row | {"score": score.value, "correct": score.correct, "reason": score.reason, "answer": score.answer}


def _scored_table(block: Block, scores: Sequence[Score]) -> pa.Table:
    assert block.table is not None
    results = {
        "score": pa.array([score.value for score in scores], pa.float64()),
        "correct": pa.array([score.correct for score in scores], pa.bool_()),
        "reason": pa.array([score.reason for score in scores], pa.string()),
        "answer": pa.array([_storable(score.answer) for score in scores], pa.string()),
    }
    others = [name for name in block.table.column_names if name not in results]
    # Without the old metadata: what pandas or `datasets` noted there about the columns is no longer true.
    table = block.table.select(others).replace_schema_metadata(None)
    for name, column in results.items():
        table = table.append_column(name, column)
    return table


def _storable(answer: str | None) -> str | None:
    """The answer without lone surrogates, which Arrow refuses (the completion has none, but who knows the task)."""
    return None if answer is None else answer.encode("utf-8", "backslashreplace").decode()
