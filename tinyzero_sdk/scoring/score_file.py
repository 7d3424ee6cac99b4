"""Score a file of outputs: the Python call behind `tinyzero score`.

Reads and writes a block at a time, so a file may be larger than memory. Rows that cannot be scored are listed in the
report instead of written; a completion that the scorer fails on is kept, with its reason.
"""

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from tinyzero_sdk.data.arrow import check_json_types, infer_schema
from tinyzero_sdk.data.files import JsonLinesWriter, ParquetWriter, check_ending, ending_of, replacing
from tinyzero_sdk.data.table import BadRow, Block
from tinyzero_sdk.errors import DataError, SettingsError, TinyZeroError
from tinyzero_sdk.records import ScoreColumns
from tinyzero_sdk.scoring.outputs import PARTS, OutputBatch, read_outputs, read_parts, whole_groups
from tinyzero_sdk.scoring.pool import ScoringPool
from tinyzero_sdk.scoring.provenance import Provenance, ProvenanceCheck, accept_any, provenance_of, scoring_check
from tinyzero_sdk.scoring.readers import OWN, Reader, find_reader
from tinyzero_sdk.scoring.summary import Summary, SummaryBuilder
from tinyzero_sdk.tasks.score_guard import describe_value
from tinyzero_sdk.tasks.task import Task

MAX_LISTED = 1000  # most bad rows that are listed; all are counted
METADATA_KEY = b"tinyzero.scored_by"  # key of the provenance, as JSON, in the metadata of a scored Parquet file
_PREFETCHED = 4  # blocks prefetched, and tables waiting to be written


@dataclass
class ScoreReport:
    """The result of scoring a file."""

    rows: int = 0  # rows scored and written
    correct: int = 0
    score_sum: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)
    unknown: int = 0
    """Rows without a score, since the scorer of an asynchronous task failed; accuracy and mean score leave them out."""

    bad_rows: int = 0  # rows that were not written: unreadable, or without a completion or ground truth
    bad: list[BadRow] = field(default_factory=list)  # the first of them, at most `MAX_LISTED`
    first_error: str | None = None
    failed_truth: str | None = None  # row and ground truth that the scorer failed on first
    seconds: float = 0.0
    provenance: Provenance | None = None
    summary: Summary | None = None

    @property
    def accuracy(self) -> float | None:
        """Fraction of the rows with a score that are correct."""
        return self.correct / (self.rows - self.unknown) if self.rows > self.unknown else None

    @property
    def accuracy_of_all(self) -> float | None:
        """Fraction of all rows that are correct; bad ones and those without a score are not."""
        return self.correct / (self.rows + self.bad_rows) if self.rows or self.bad_rows else None

    @property
    def mean_score(self) -> float | None:
        """Mean over the rows with a score."""
        return self.score_sum / (self.rows - self.unknown) if self.rows > self.unknown else None

    @property
    def is_clean(self) -> bool:
        """Whether no row was bad and the scorer never failed."""
        return not (self.bad_rows or self.reasons["error"] or self.reasons["timeout"])

    @property
    def suspicion(self) -> str | None:
        """Where the scorer failed on every answer: that the ground truths look wrong, in one line."""
        if not (self.first_error and self.failed_truth) or any(
            self.reasons[reason] for reason in ("ok", "wrong", "malformed")
        ):
            return None
        return (
            f"the scorer failed on every answer; the ground truths may not have the form it needs: {self.failed_truth} "
            f"({self.first_error.splitlines()[-1]}; --json has the traceback)"
        )

    def add(self, scores: ScoreColumns, bad: list[BadRow]) -> None:
        self.rows += len(scores)
        self.correct += sum(scores.correct)
        known = [value for value in scores.values if value is not None]
        self.unknown += len(scores) - len(known)
        self.score_sum += sum(known)
        self.reasons.update(scores.reasons)
        self.bad_rows += len(bad)
        self.bad += bad[: MAX_LISTED - len(self.bad)]


@dataclass(frozen=True)
class ScoringOptions:
    """How a file is scored."""

    workers: int = 1
    timeout: float = 5.0  # seconds to score one completion
    memory_limit_gb: float = 4.0  # address space of a worker, in GiB
    group_by: str | None = None
    """Column that identifies a prompt in the summary, and for a task that compares its completions; None = the usual
    ones."""

    pass_at: tuple[int, ...] = ()  # values of k for pass@k, majority@k and best@k in the summary; () = powers of two
    allow_version_mismatch: bool = False  # skip the check of provenance: `scoring_check`, or `rescoring_check`
    on_progress: Callable[[float], object] = lambda fraction: None
    """Called with the fraction of the file that is done."""

    overwrite: bool = True  # replace an output that exists
    columns: Mapping[str, str] = field(default_factory=dict)
    """Further names of the columns of our own format: theirs, or `NAME.FIELD`, by ours."""

    greedy: bool = False
    """Whether the completions of a prompt are alike by construction, so that their rewards cannot differ."""


def score_file(
    task: Task, source: Path, output: Path | None, options: ScoringOptions | None = None, *, format: str | None = None
) -> ScoreReport:
    """Score every row of `source`, and write it to `output` with `RESULT_COLUMNS`.

    Args:
        task: from `load_task`.
        source: `.jsonl`, `.csv` or `.parquet` with the columns of `docs/tasks/data-format.md`, or what
            `format` names.
        output: `.jsonl` or `.parquet`; appears only once it is complete. None = write nothing.
        options: processes, limits and checks.
        format: name of a reader (`tinyzero_sdk.scoring.readers`); None = by the ending.

    Raises:
        DataError: a file cannot be read or written, or the source has no rows.
        VersionMismatchError: another task or version generated or scored a row.
    """
    options = options or ScoringOptions()
    check = accept_any if options.allow_version_mismatch else scoring_check(task)
    report = ScoreReport(provenance=provenance_of(task))
    reader = find_reader(format, source)
    if options.columns:
        if reader is not OWN:
            raise SettingsError(f"columns are mapped in our own format, and {format} has its own; leave them out")
        reader = replace(OWN, read=lambda path: (block.mapped(options.columns, path) for block in OWN.read(path)))
    run_scoring(task, reader, source, output, check, options, report)
    return report


def run_scoring(
    task: Task,
    reader: Reader,
    source: Path,
    output: Path | None,
    check: ProvenanceCheck,
    options: ScoringOptions,
    report: ScoreReport,
    rows_of: Callable[[OutputBatch, ScoreColumns], Block] = lambda batch, scores: batch.block,
) -> None:
    """Score a file into a report and write its rows: those `rows_of` a batch, before the score columns are added.

    Raises as `score_file`, and a DataError where the task compares completions and rows do not say of which problem.
    """
    started = time.perf_counter()
    if output is not None:
        check_output(source, output, overwrite=options.overwrite)
    with ExitStack() as stack:
        # The pool first: its workers start while we look at the file.
        pool = stack.enter_context(
            ScoringPool(task, workers=options.workers, timeout=options.timeout, memory_limit_gb=options.memory_limit_gb)
        )
        schema = None
        if output is not None and output.suffix == ".parquet" and not reader.is_typed(source):
            # A pass of its own infers the types of all columns, which the first table that is written needs.
            schema = infer_schema(
                lambda: (batch.block.rows() for batch in read_outputs(_blocks(task, reader, source), source, check))
            )
        write = None if output is None else stack.enter_context(_writing(task, source, output))
        batches = read_outputs(_blocks(task, reader, source), source, check, schema=schema, wrappers=task.wrappers)
        if task.compares_completions:
            batches = whole_groups(batches, source, options.group_by)
        if reader.is_typed(source):  # Arrow reads without the GIL; JSON rows would only wait for it
            batches = stack.enter_context(closing(_prefetch(batches)))
        builder = SummaryBuilder(options.group_by, options.pass_at, greedy=options.greedy)
        for batch, scores in stack.enter_context(closing(pool.stream(batches))):
            if "error" in scores.reasons and not report.failed_truth:
                first, block = scores.reasons.index("error"), batch.block
                name = "ground_truth" if block.cells("ground_truth")[first] is not None else "reward_model.ground_truth"
                truth = describe_value(batch.truths[first])
                report.failed_truth = f"{name} of row {block.numbers[first]} is {truth}"
            if task.is_async and ("error" in scores.reasons or "timeout" in scores.reasons):
                scores = scores.without_failures()
            report.add(scores, batch.block.bad)
            builder.add(batch, scores)
            block = rows_of(batch, scores)
            if write is not None:
                write(block, scores)
            options.on_progress(batch.block.progress)
        if not report.rows and not report.bad_rows:
            raise DataError(f"{source} has no rows; there is nothing to score")
    report.first_error, report.summary = pool.first_error, builder.result()
    report.seconds = time.perf_counter() - started


def check_output(source: Path, output: Path, *, overwrite: bool = True) -> None:
    """Refuse an output path that must be a mistake: with a `DataError` that says why."""
    check_ending(output)
    if output.resolve() == source.resolve():
        raise DataError(f"the output {output} is the input itself; give it another name")
    if output.exists() and not overwrite:
        raise DataError(f"{output} already exists; choose another --output, or overwrite it (--overwrite)")
    if not output.parent.is_dir():
        raise DataError(f"the directory of the output, {output.parent}, does not exist; create it first")


def _blocks(task: Task, reader: Reader, source: Path) -> Iterator[Block]:
    """The blocks of a source, with cells of rows that have no types made fit for scoring.

    Parts that are not numbers are left out, since they would not fit in one column. In CSV, ground truths are read as
    JSON if those of the task are not text; a row whose ground truth is not JSON is bad.
    """
    truths_are_json = ending_of(source) == ".csv" and not _has_text_truths(task)
    for block in reader.read(source):
        errors = {}
        for index, row in enumerate(() if isinstance(block.data, pa.Table) else block.data):
            if PARTS in row:
                row[PARTS] = read_parts(row[PARTS])
            if truths_are_json and isinstance(truth := row.get("ground_truth"), str):
                try:
                    row["ground_truth"] = json.loads(truth)
                except ValueError:
                    errors[index] = f"the ground_truth {describe_value(truth)} is not JSON, as those of the task are"
        block.drop(errors)
        yield block


def _has_text_truths(task: Task) -> bool:
    """Whether the task's ground truths are text, by one of its problems; True if it can make none."""
    try:
        return all(isinstance(item.ground_truth, str) for item in task.generate("train", 1))
    except TinyZeroError:  # its data is not at hand
        return True


def _prefetch(items: Iterable[OutputBatch]) -> Generator[OutputBatch, None, None]:
    """The items, with the next few prefetched in a thread."""
    source, end = iter(items), object()
    with ThreadPoolExecutor(1) as thread:
        coming: deque[Future[object]] = deque(thread.submit(next, source, end) for _ in range(_PREFETCHED))
        while (item := coming.popleft().result()) is not end:
            coming.append(thread.submit(next, source, end))
            yield item  # type: ignore[misc]


@contextmanager
def _writing(task: Task, source: Path, output: Path) -> Iterator[Callable[[Block, ScoreColumns], None]]:
    """Yields a function that writes rows with their scores; `output` appears once the block ends without an error."""
    provenance, has_parts = provenance_of(task), bool(task.info.parts or task.wrappers)
    is_parquet, under_way = output.suffix == ".parquet", deque[Future[None]]()
    with (
        replacing(output) as temporary,
        ParquetWriter(temporary, plain=("completion",)) if is_parquet else JsonLinesWriter(temporary) as file,
        ThreadPoolExecutor(1) as thread,
    ):

        def write(block: Block, scores: ScoreColumns) -> None:
            scored = _scored(block, scores, provenance, has_parts)
            if is_parquet:
                # Without the old metadata: what pandas or `datasets` wrote about the columns is no longer true.
                rows = scored.data.replace_schema_metadata({METADATA_KEY: json.dumps(provenance._asdict())})
            else:
                if isinstance(block.data, pa.Table):
                    check_json_types(source, block.data.schema)
                rows = scored.rows()
            under_way.append(thread.submit(file.write, rows))
            if len(under_way) > _PREFETCHED:
                under_way.popleft().result()

        yield write
        for waiting in under_way:
            waiting.result()


def _scored(block: Block, scores: ScoreColumns, provenance: Provenance, has_parts: bool) -> Block:
    """The rows with their scores, and the provenance of these."""
    columns = {
        "score": (scores.values, pa.float64()),
        "correct": (scores.correct, pa.bool_()),
        "reason": (scores.reasons, pa.string()),
        "answer": (scores.answers, pa.string()),
        **{name: (text, pa.string()) for name, text in provenance._asdict().items()},
    }
    if has_parts:
        parts = [scores.parts.get(index, {}) for index in range(len(scores))]
        columns[PARTS] = (parts, pa.map_(pa.string(), pa.float64()))
    return block.without(PARTS).with_columns(columns)
