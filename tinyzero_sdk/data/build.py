"""Build whole datasets: the Python call behind `tinyzero data`.

Worker processes turn ranges of candidates into columns; the parent drops repeated keys in candidate order and writes.
`splits.iterate_split` yields the same problems one by one.
"""

import gc
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal, Self, cast

import numpy as np
import pyarrow as pa

from tinyzero_sdk.data.arrow import Row
from tinyzero_sdk.data.files import JsonLinesWriter, ParquetWriter, replacing
from tinyzero_sdk.data.rows import as_messages, check_own_columns, item_to_row, plain
from tinyzero_sdk.errors import BrokenTaskError, DataError, ExhaustedError, SettingsError, TinyZeroError
from tinyzero_sdk.hookspecs import Message
from tinyzero_sdk.records import Item, Json, Split
from tinyzero_sdk.tasks.splits import (
    DEFAULT_TEST_FRACTION,
    SplitFilter,
    check_test_fraction,
    read_candidates,
    split_fraction,
)
from tinyzero_sdk.tasks.task import Task
from tinyzero_sdk.workers.process import ClosesOnExit, SharedTimer, to_picklable_error
from tinyzero_sdk.workers.supervisor import Supervisor

_MIN_BLOCK, _MAX_BLOCK = 64, 16384  # candidates that a worker takes at a time


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """What the rows of a split depend on."""

    split: Split
    seed: int
    test_fraction: float
    template: str


@dataclass(frozen=True, slots=True)
class ProblemColumns:
    """The k distinct problems in a range of candidates; prompts are lists of messages.

    Ground truths and data are lists where the task returns items one by one.
    """

    keys: list[str]
    positions: list[int]
    """[k] candidate numbers, ascending."""

    end: int
    """Number of the first candidate after the range."""

    is_last: bool
    """There are no candidates from `end` on."""

    prompts: pa.ListArray
    difficulties: np.ndarray
    ground_truth: pa.Array | list[Json]
    data: pa.StructArray | list[dict[str, Json]]


@dataclass(frozen=True, slots=True)
class SplitReport:
    """A written file: its number of problems, and the least, median and greatest difficulty."""

    path: Path
    rows: int
    difficulty: tuple[float, float, float]


def write_dataset(
    task: Task,
    output: Path,
    *,
    sizes: Mapping[Split, int | None],
    seed: int = 0,
    test_fraction: float = DEFAULT_TEST_FRACTION,
    template: str = "base",
    format: Literal["parquet", "jsonl"] = "parquet",
    workers: int = 1,
    overwrite: bool = False,
    on_progress: Callable[[Split, int], object] = lambda split, rows: None,
) -> dict[Split, SplitReport]:
    """Write a file for each split: train.parquet and test.parquet, both or none.

    Args:
        output: a directory; made if missing.
        sizes: number of problems of each split; 0 = no file, None = all problems of a finite task.
        seed: different seeds give different problems, but never move one to the other split.
        test_fraction: fraction of all problems that belongs to the test split.
        workers: most processes; the files are identical for any number.
        on_progress: called with a split and its number of rows so far.

    Raises:
        DataError: a file exists or cannot be written, or the task has too few different problems.
        SettingsError: no problem is requested, or `test_fraction` would leave a split empty, or have no effect.
    """
    check_test_fraction(task, test_fraction)
    paths = {split: output / f"{split}.{format}" for split, size in sizes.items() if size != 0}
    _make_way(output, list(paths.values()), overwrite)
    reports: dict[Split, SplitReport] = {}
    with ExitStack() as stack:  # both files appear when it closes, once both are complete
        wanted = sum(math.inf if size is None else size for size in sizes.values())
        group = stack.enter_context(WorkerGroup(task, math.ceil(min(workers, wanted / _MIN_BLOCK))))
        for split, path in paths.items():
            temporary = stack.enter_context(replacing(path))
            request = BuildRequest(split, seed, test_fraction, template)
            with ParquetWriter(temporary) if format == "parquet" else JsonLinesWriter(temporary) as writer:
                difficulties = _fill(writer, group, request, sizes[split], on_progress)
            low, median, high = np.quantile(difficulties, [0, 0.5, 1]).tolist()
            reports[split] = SplitReport(path, len(difficulties), (low, median, high))
    return reports


def _fill(
    writer: ParquetWriter | JsonLinesWriter,
    group: "WorkerGroup",
    request: BuildRequest,
    size: int | None,
    on_progress: Callable[[Split, int], object],
) -> np.ndarray:
    difficulties: list[np.ndarray] = []
    done = 0
    for columns, rows in build(group, request, size):
        if isinstance(writer, ParquetWriter):
            writer.write(_table(group.task, request, columns, rows, done))
        else:
            writer.write(_rows(group.task, request, columns, rows, done))
        difficulties.append(columns.difficulties[rows])
        done += len(rows)
        on_progress(request.split, done)
    return np.concatenate(difficulties)


def _make_way(output: Path, paths: Sequence[Path], overwrite: bool) -> None:
    if not paths:
        raise SettingsError("both splits have size 0; request at least one problem")
    existing = [path for path in paths if path.exists()]
    if existing and not overwrite:
        raise DataError(f"{existing[0]} already exists; choose another directory, or overwrite it (--overwrite)")
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make the directory {output}: {error.strerror}") from error


def build(group: "WorkerGroup", request: BuildRequest, size: int | None) -> Iterator[tuple[ProblemColumns, np.ndarray]]:
    """The first `size` problems of a split: columns, and [r] the rows of them to use, ascending.

    Raises:
        ExhaustedError: the task has fewer different problems, where `size` is not None.
    """
    split_filter = SplitFilter(group.task, request.split, size=size, test_fraction=request.test_fraction)
    fraction = split_fraction(group.task, request.split, request.test_fraction)
    left, start = math.inf if size is None else size, 0
    # Small datasets use small blocks, since a task may need milliseconds for each candidate.
    block = math.ceil(max(_MIN_BLOCK, min(_MAX_BLOCK, left / fraction / 16)))
    news = block * fraction  # new problems expected in a block; fewer where a task runs out
    while left > 0:
        while group.has_room and group.waiting * news < left:
            group.submit(request, start, block)
            start += block
        columns = group.receive()
        admitted = split_filter.admit(columns.keys, columns.positions, columns.end, columns.is_last)
        rows = list[int]()
        try:
            rows.extend(islice(admitted, None if size is None else int(left)))
            left -= len(rows)
        except ExhaustedError:
            if size is not None:
                raise
            left = 0
        news = max(1, len(rows))
        if rows:
            yield columns, np.array(rows)
    while group.waiting:
        group.receive()  # submitted ahead, and not needed


class WorkerGroup(ClosesOnExit):
    """Worker processes that turn ranges of candidates into columns; one worker means this process."""

    def __init__(self, task: Task, workers: int) -> None:
        self.task = task
        supervisor = Supervisor(task)
        self._workers = [supervisor.start(serve_columns) for _ in range(workers if workers > 1 else 0)]
        self._jobs: deque[tuple[BuildRequest, int, int]] = deque()
        self._received = 0

    def __enter__(self) -> Self:
        for worker in self._workers:
            worker.wait_until_ready()
        return self

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    @property
    def waiting(self) -> int:
        return len(self._jobs)

    @property
    def has_room(self) -> bool:
        """Whether to submit another range: two for each worker, so that it never waits for the parent."""
        return len(self._jobs) < max(1, 2 * len(self._workers))

    def submit(self, request: BuildRequest, start: int, size: int) -> None:
        """Request the problems among the candidates start … start + size - 1."""
        self._jobs.append((request, start, size))
        if self._workers:
            worker = self._workers[(self._received + len(self._jobs) - 1) % len(self._workers)]
            worker.send(self._jobs[-1])

    def receive(self) -> ProblemColumns:
        """The columns of the range that was submitted first.

        Raises:
            TinyZeroError: the task failed on it.
        """
        job = self._jobs.popleft()
        if not self._workers:
            return _try_to_read(self.task, *job)
        worker = self._workers[self._received % len(self._workers)]
        self._received += 1
        for columns in worker.messages(None):
            return cast(ProblemColumns, columns)
        raise BrokenTaskError(f"a worker process died while task {self.task.name!r} generated problems")


def serve_columns(task: Task, connection: Connection, timer: SharedTimer) -> None:
    """The service of such a worker (see `workers.process.Service`): ranges in, columns out."""
    while True:
        job = connection.recv()
        try:
            connection.send(_try_to_read(task, *job))
        except TinyZeroError as error:
            connection.send(error)


def _try_to_read(task: Task, request: BuildRequest, start: int, size: int) -> ProblemColumns:
    was_enabled = gc.isenabled()
    gc.disable()  # the items of a range are freed without it, and it takes almost as long as making them
    try:
        return read_columns(task, request, start, size)
    except BaseException as error:  # the task's code may raise anything
        if isinstance(error, KeyboardInterrupt):
            raise
        raise to_picklable_error(error) from error
    finally:
        if was_enabled:
            gc.enable()


def read_columns(task: Task, request: BuildRequest, start: int, size: int) -> ProblemColumns:
    """The problems among the candidates start … start + size - 1, with their prompts."""
    candidates = read_candidates(
        task, request.split, start, size, seed=request.seed, test_fraction=request.test_fraction
    )
    items, columns = candidates.items, candidates.columns
    difficulties = np.asarray(task.difficulties(items if columns is None else columns), dtype=np.float64)
    if difficulties.shape != (len(items),) or not np.isfinite(difficulties).all():
        raise BrokenTaskError(f"task {task.name!r}: `difficulties` did not return a finite number for each item")
    return ProblemColumns(
        candidates.keys,
        candidates.positions,
        candidates.end,
        candidates.is_last,
        prompts=_prompt_array([as_messages(task.make_prompt(item, request.template)) for item in items]),
        difficulties=difficulties,
        ground_truth=[plain(item.ground_truth) for item in items] if columns is None else columns.ground_truth,
        data=[plain(item.data) for item in items] if columns is None else columns.data,
    )


def _prompt_array(prompts: Sequence[Sequence[Message]]) -> pa.ListArray:
    ends = np.cumsum([0, *map(len, prompts)])
    fields = {
        name: pa.array([message[name] for prompt in prompts for message in prompt], pa.string())
        for name in ("role", "content")
    }
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), _struct(fields))


def _table(task: Task, request: BuildRequest, columns: ProblemColumns, rows: np.ndarray, first_index: int) -> pa.Table:
    """The rows as `item_to_row` makes them."""
    size = len(rows)
    data = _take(columns.data, rows, "the task's own columns")
    own = {field.name: data.field(place) for place, field in enumerate(data.type)}
    check_own_columns(task.name, own)
    extra_info = {
        "index": pa.array(range(first_index, first_index + size), pa.int64()),
        "split": pa.repeat(request.split, size),
        "difficulty": pa.array(columns.difficulties[rows]),
        "key": pa.array([columns.keys[row] for row in rows], pa.string()),
        "task_version": pa.repeat(task.version, size),
    }
    truths = _take(columns.ground_truth, rows, "the ground truths")
    return pa.table(
        {
            "data_source": pa.repeat(task.name, size),
            "prompt": columns.prompts.take(rows),
            "ability": pa.repeat(task.info.ability, size),
            "reward_model": _struct({"style": pa.repeat("rule", size), "ground_truth": truths}),
            "extra_info": _struct(extra_info),
            **own,
        }
    )


def _struct(fields: Mapping[str, pa.Array]) -> pa.StructArray:
    return pa.StructArray.from_arrays(list(fields.values()), names=list(fields))


def _take(values: pa.Array | list[Json], rows: np.ndarray, what: str) -> pa.Array:
    if isinstance(values, pa.Array):
        return values.take(rows)
    wanted = [values[row] for row in rows]
    try:
        array = pa.array(wanted)
        faithful = array.to_pylist() == wanted
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{what} do not fit a Parquet column: {error}; write jsonl instead (--format jsonl)") from error
    if not faithful:
        raise DataError(f"{what} have different keys, which Parquet would fill with null; write jsonl (--format jsonl)")
    return array


def _rows(
    task: Task, request: BuildRequest, columns: ProblemColumns, rows: np.ndarray, first_index: int
) -> Iterator[Row]:
    prompts = columns.prompts.take(rows).to_pylist()
    truths, data = (
        values.take(rows).to_pylist() if isinstance(values, pa.Array) else [values[row] for row in rows]
        for values in (columns.ground_truth, columns.data)
    )
    for place, row in enumerate(rows):
        yield item_to_row(
            task,
            Item(truths[place], data[place]),
            prompt=prompts[place],
            index=first_index + place,
            split=request.split,
            difficulty=float(columns.difficulties[row]),
            key=columns.keys[row],
        )
