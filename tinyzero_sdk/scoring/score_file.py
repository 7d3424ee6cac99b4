"""Score a file of outputs: the Python call behind `tinyzero score`.

Reads and writes a block at a time, so a file may be larger than memory. Rows that cannot be scored are listed in the
report instead of written; a completion that the scorer fails on is kept, with its reason.
"""

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from tinyzero_sdk.data.arrow import Row, check_json_types, infer_schema, to_rows
from tinyzero_sdk.data.files import BadRow, Block, JsonLinesWriter, ParquetWriter, check_ending, ending_of, replacing
from tinyzero_sdk.errors import DataError, TinyZeroError
from tinyzero_sdk.records import ScoreColumns
from tinyzero_sdk.scoring.batches import unpacked
from tinyzero_sdk.scoring.groups import whole_groups
from tinyzero_sdk.scoring.outputs import (
    PARTS,
    RESULT_COLUMNS,
    OutputBatch,
    Provenance,
    ProvenanceCheck,
    accept_any,
    column,
    provenance_of,
    read_outputs,
    read_parts,
    scoring_check,
)
from tinyzero_sdk.scoring.pool import ScoringPool
from tinyzero_sdk.scoring.readers import OWN, Reader, find_reader
from tinyzero_sdk.scoring.summary import Summary, SummaryBuilder
from tinyzero_sdk.tasks.score_guard import describe_value
from tinyzero_sdk.tasks.task import Task

MAX_LISTED = 1000  # most bad rows that are listed; all are counted
METADATA_KEY = b"tinyzero.scored_by"  # key of the provenance, as JSON, in the metadata of a scored Parquet file
_PREFETCHED = 4  # blocks prefetched, and tables waiting to be written

T = TypeVar("T")


@dataclass
class ScoreReport:
    """The result of scoring a file."""

    rows: int = 0
    """Rows scored and written."""

    correct: int = 0
    score_sum: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)
    unknown: int = 0
    """Rows without a score, since the scorer of an asynchronous task failed; they are in no number."""

    bad_rows: int = 0
    """Rows that were not written: unreadable, or without a completion or ground truth."""

    bad: list[BadRow] = field(default_factory=list)
    first_error: str | None = None
    failed_truth: str | None = None
    """Row and ground truth that the scorer failed on first."""

    suspicion: str | None = None
    """Why the scorer may have failed on every completion: the ground truths look wrong."""

    seconds: float = 0.0
    provenance: Provenance | None = None
    summary: Summary | None = None

    @property
    def accuracy(self) -> float | None:
        """Fraction of the scored rows that are correct, or None."""
        return self.correct / (self.rows - self.unknown) if self.rows > self.unknown else None

    @property
    def accuracy_of_all(self) -> float | None:
        """The same of all rows, with bad ones and those without a score as wrong, or None."""
        return self.correct / (self.rows + self.bad_rows) if self.rows or self.bad_rows else None

    @property
    def mean_score(self) -> float | None:
        """Mean score, or None."""
        return self.score_sum / (self.rows - self.unknown) if self.rows > self.unknown else None

    @property
    def is_clean(self) -> bool:
        """Whether no row was bad and the scorer never failed."""
        return not (self.bad_rows or self.reasons["error"] or self.reasons["timeout"])

    def add(self, scores: ScoreColumns, bad: list[BadRow]) -> None:
        """Count the scores and bad rows of a block."""
        self.rows += len(scores)
        self.correct += sum(scores.correct)
        known = [value for value in scores.values if value is not None]
        self.unknown += len(scores) - len(known)
        self.score_sum += sum(known)
        self.reasons.update(scores.reasons)
        self.note_bad(bad)

    def note_bad(self, bad: list[BadRow]) -> None:
        """Count bad rows."""
        self.bad_rows += len(bad)
        self.bad += bad[: MAX_LISTED - len(self.bad)]


@dataclass(frozen=True)
class ScoringOptions:
    """How a file is scored."""

    workers: int = 1
    timeout: float = 5.0
    """Seconds to score one completion."""

    memory_limit_gb: float = 4.0
    """Address space of a worker, in GiB."""

    group_by: str | None = None
    """Column that identifies a prompt in the summary, and for a task that compares its completions; None = the usual
    ones."""

    pass_at: tuple[int, ...] = ()
    """Values of k for pass@k, majority@k and best@k in the summary; () = powers of two."""

    allow_version_mismatch: bool = False
    """Skip the check of provenance: `scoring_check`, or `rescoring_check`."""

    on_progress: Callable[[float], object] = lambda fraction: None
    """Called with the fraction of the file that is done."""

    overwrite: bool = True
    """Replace an output that exists."""

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
    started = time.perf_counter()
    reader = find_reader(format, source)
    options = options or ScoringOptions()
    if output is not None:
        check_output(source, output, overwrite=options.overwrite)
    check = accept_any if options.allow_version_mismatch else scoring_check(task)
    report = ScoreReport(provenance=provenance_of(task))
    schema = None if output is None else find_schema(task, reader, source, output, check)
    writer = nullcontext(lambda batch, scores: None) if output is None else writing(task, source, output)
    with (
        writer as write,
        scored_batches(task, reader, source, check, options, report, schema) as batches,
    ):
        for batch, scores in batches:
            write(batch, scores)
            options.on_progress(batch.block.progress)
    report.seconds = time.perf_counter() - started
    return report


@contextmanager
def scored_batches(
    task: Task,
    reader: Reader,
    source: Path,
    check: ProvenanceCheck,
    options: ScoringOptions,
    report: ScoreReport,
    schema: pa.Schema | None,
) -> Iterator[Iterator[tuple[OutputBatch, ScoreColumns]]]:
    """The batches of a file with their scores, in order, counted in `report`.

    Raises:
        DataError: the file cannot be read, or has no rows, or a task that compares completions cannot tell of which
            problem they are (see `whole_groups`).
        VersionMismatchError: the check finds a problem with a row.
    """
    with ExitStack() as stack:
        # The pool first: its workers start while we look at the file.
        limits = {"timeout": options.timeout, "memory_limit_gb": options.memory_limit_gb}
        pool = stack.enter_context(ScoringPool(task, workers=options.workers, **limits))
        batches = read_outputs(_blocks(task, reader, source), source, check, schema=schema, wrappers=task.wrappers)
        if task.compares_completions:
            batches = whole_groups(batches, source, options.group_by)
        if reader.gives_tables(source):  # Arrow works without the interpreter's lock; Python would only wait for it
            batches = stack.enter_context(closing(_prefetch(batches)))
        stream = stack.enter_context(closing(pool.stream(batches)))

        builder = SummaryBuilder(options.group_by, options.pass_at, greedy=options.greedy)
        sample: list[str] = []  # a ground truth that the scorer failed on

        def counted() -> Iterator[tuple[OutputBatch, ScoreColumns]]:
            for batch, scores in stream:
                if task.is_async and ("error" in scores.reasons or "timeout" in scores.reasons):
                    scores = scores.without_failures()
                if reader is not OWN and not report.rows:
                    _check_usable(task, batch, scores, pool.first_error)
                if "error" in scores.reasons and not sample:
                    sample.append(_failed_truth(batch, scores))
                report.add(scores, batch.block.bad)
                builder.add(batch, scores)
                yield batch, scores

        yield counted()
        if not report.rows and not report.bad_rows:
            raise DataError(f"{source} has no rows; there is nothing to score")
        report.first_error = pool.first_error
        report.failed_truth = next(iter(sample), None)
        if sample and report.first_error and not any(report.reasons[reason] for reason in ("ok", "wrong", "malformed")):
            report.suspicion = (
                f"task {task.name!r} failed on every answer; the ground truths may not have the form it needs: "
                f"{sample[0]} ({report.first_error.splitlines()[-1]}; --json has the traceback)"
            )
        report.summary = builder.result()


def _failed_truth(batch: OutputBatch, scores: ScoreColumns) -> str:
    """Place and value of the ground truth of the first completion that the scorer failed on."""
    place = scores.reasons.index("error")
    truth = unpacked(batch.pack(place, place + 1).ground_truths)[0]
    bare = column(batch.block, "ground_truth")
    is_bare = bare is not None and (bare[place] if isinstance(bare, list) else bare[place].as_py()) is not None
    name = "ground_truth" if is_bare else "reward_model.ground_truth"
    return f"{name} of row {batch.block.numbers[place]} is {describe_value(truth)}"


def _check_usable(task: Task, batch: OutputBatch, scores: ScoreColumns, error: str | None) -> None:
    """Stop where a task fails on the whole first batch of another tool's file.

    Raises:
        DataError: shows one of its ground truths.
    """
    if len(scores) and scores.reasons.count("error") == len(scores):
        truth = unpacked(batch.pack(0, 1).ground_truths)[0]
        cause = f": {error.splitlines()[-1]}" if error else ""
        raise DataError(
            f"task {task.name!r} failed on all of the first {len(scores)} rows; it may be unable to use ground truths "
            f"such as {describe_value(truth)}{cause}"
        )


def _prefetch(items: Iterable[T]) -> Generator[T, None, None]:
    """The items, with the next few prefetched in a thread."""
    source, end = iter(items), object()
    with ThreadPoolExecutor(1) as thread:
        coming: deque[Future[object]] = deque(thread.submit(next, source, end) for _ in range(_PREFETCHED))
        while (item := coming.popleft().result()) is not end:
            coming.append(thread.submit(next, source, end))
            yield item  # type: ignore[misc]


def _blocks(task: Task, reader: Reader, source: Path) -> Iterator[Block]:
    """The blocks of a source; in CSV, ground truths are JSON if those that the task makes are not text."""
    blocks = map(_with_parts, reader.read(source))
    if reader is not OWN or ending_of(source) != ".csv" or _has_text_truths(task):
        yield from blocks
        return
    for block in blocks:
        problems = {}
        for place, row in enumerate(block.rows):
            if isinstance(truth := row.get("ground_truth"), str):
                try:
                    row["ground_truth"] = json.loads(truth)
                except ValueError:
                    problems[place] = f"the ground_truth {describe_value(truth)} is not JSON, as those of the task are"
        block.drop(problems)
        yield block


def _with_parts(block: Block) -> Block:
    """The block, its column of parts without what is none, which would not fit one column."""
    if block.table is None:
        for row in block.rows:
            if PARTS in row:
                row[PARTS] = read_parts(row[PARTS])
    return block


def _has_text_truths(task: Task) -> bool:
    try:
        return all(isinstance(item.ground_truth, str) for item in task.generate("train", 1))
    except TinyZeroError:  # its data is not at hand
        return True


def check_output(source: Path, output: Path, *, overwrite: bool = True) -> None:
    """Refuse an output path that must be a mistake."""
    check_ending(output)
    if output.resolve() == source.resolve():
        raise DataError(f"the output {output} is the input itself; give it another name")
    if output.exists() and not overwrite:
        raise DataError(f"{output} already exists; choose another --output, or overwrite it (--overwrite)")
    if not output.parent.is_dir():
        raise DataError(f"the directory of the output, {output.parent}, does not exist; create it first")


def find_schema(task: Task, reader: Reader, source: Path, output: Path, check: ProvenanceCheck) -> pa.Schema | None:
    """The column types of JSON rows that become Parquet, which takes a separate pass; None for other files."""
    if output.suffix != ".parquet" or reader.gives_tables(source):
        return None
    return infer_schema(batch.block.rows for batch in read_outputs(_blocks(task, reader, source), source, check))


@contextmanager
def writing(task: Task, source: Path, output: Path) -> Iterator[Callable[[OutputBatch, ScoreColumns], None]]:
    """A function that writes scored batches to `output`, which appears at the end."""
    provenance, has_parts = provenance_of(task), bool(task.info.parts or task.wrappers)
    with replacing(output) as temporary:
        if output.suffix != ".parquet":
            with JsonLinesWriter(temporary) as lines:
                yield lambda batch, scores: lines.write(_scored_rows(source, batch, scores, provenance, has_parts))
            return
        with ParquetWriter(temporary, plain=("completion",)) as tables, ThreadPoolExecutor(1) as thread:
            under_way: deque[Future[None]] = deque()

            def write(batch: OutputBatch, scores: ScoreColumns) -> None:
                under_way.append(thread.submit(tables.write, _scored_table(batch, scores, provenance, has_parts)))
                if len(under_way) > _PREFETCHED:
                    under_way.popleft().result()

            yield write
            for waiting in under_way:
                waiting.result()


def _scored_rows(
    source: Path, batch: OutputBatch, scores: ScoreColumns, provenance: Provenance, has_parts: bool
) -> Iterator[Row]:
    table = batch.block.table
    if table is not None:
        check_json_types(source, table.schema)
    by = provenance._asdict()
    columns = (scores.values, scores.correct, scores.reasons, scores.answers)
    rows = batch.block.rows if table is None else to_rows(table)
    for place, (row, *results) in enumerate(zip(rows, *columns, strict=True)):
        row.pop(PARTS, None)
        parts = {PARTS: scores.parts.get(place, {})} if has_parts else {}
        yield row | dict(zip(RESULT_COLUMNS, results, strict=False)) | by | parts


def _scored_table(batch: OutputBatch, scores: ScoreColumns, provenance: Provenance, has_parts: bool) -> pa.Table:
    table = batch.block.table
    assert table is not None
    columns = [
        pa.array(scores.values, pa.float64()),
        pa.array(scores.correct, pa.bool_()),
        pa.array(scores.reasons, pa.string()),
        _text_array(scores.answers),
        *_repeated(provenance, len(scores)),
    ]
    names: tuple[str, ...] = RESULT_COLUMNS
    if has_parts:
        names = (*names, PARTS)
        of_each = [list(scores.parts.get(place, {}).items()) for place in range(len(scores))]
        columns.append(pa.array(of_each, pa.map_(pa.string(), pa.float64())))
    others = [name for name in table.column_names if name not in (*names, PARTS)]
    # Without the old metadata: what pandas or `datasets` wrote about the columns is no longer true.
    table = table.select(others).replace_schema_metadata({METADATA_KEY: json.dumps(provenance._asdict())})
    for name, cells in zip(names, columns, strict=True):
        table = table.append_column(name, cells)
    return table


@lru_cache(maxsize=8)  # blocks of a file are of one size but for the last
def _repeated(provenance: Provenance, size: int) -> list[pa.Array]:
    """A column for each entry of the provenance."""
    return [pa.repeat(pa.scalar(text, pa.string()), size) for text in provenance]


def _text_array(texts: list[str | None]) -> pa.Array:
    """The answers, with lone surrogates escaped, since Arrow refuses them."""
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        return pa.array(
            [None if text is None else text.encode("utf-8", "backslashreplace").decode() for text in texts], pa.string()
        )
