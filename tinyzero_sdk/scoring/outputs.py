"""Read a file of model outputs as batches for the scoring pool, with the rows that cannot be scored.

Also the provenance of rows (which task and version made and scored them), and its check against the installed task.
"""

import json
import math
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tinyzero_sdk.data.arrow import fits_json, to_list, to_table
from tinyzero_sdk.data.files import Block
from tinyzero_sdk.data.rows import NO_COMPLETION, NO_GROUND_TRUTH, completion_of, ground_truth_of
from tinyzero_sdk.errors import DataError, VersionMismatchError
from tinyzero_sdk.records import Json
from tinyzero_sdk.rewards.wrappers import columns_needed
from tinyzero_sdk.scoring.batches import Column, PackedText, ScoreBatch
from tinyzero_sdk.tasks.registry import list_tasks
from tinyzero_sdk.tasks.task import Task

Texts: TypeAlias = pa.Array | list[str]
Truths: TypeAlias = pa.Array | list[Json]
Cells: TypeAlias = pa.Array | list[Json]


LENGTH_COLUMNS = ("token_count", "tokens")
"""The first of these columns in a file gives the number of tokens, as a number or as a list of tokens."""


class Provenance(NamedTuple):
    """What produced a score: four columns of a scored file."""

    task: str
    task_version: str
    """Version of its distribution, or hash of its file."""

    task_options: str
    task_wrappers: str
    """Names of the score wrappers, innermost first, as a JSON list."""

    def options(self) -> dict[str, Json]:
        """The task's options by name."""
        try:
            options = json.loads(self.task_options or "{}")
        except ValueError:  # not what we wrote
            options = self.task_options
        return options if isinstance(options, dict) else {"": options}


SCORE_COLUMNS = ("score", "correct", "reason", "answer")

PARTS = "parts"  # column with `Score.parts`, where the task or its wrappers have any


def read_parts(cell: Json) -> dict[str, float]:
    """A cell of that column, a mapping or its pairs, without what is no number; empty where it is something else."""
    try:
        parts = dict(cell or {})
    except (TypeError, ValueError):
        return {}
    return {name: value for name, value in parts.items() if isinstance(name, str) and type(value) in (int, float)}


RESULT_COLUMNS = (*SCORE_COLUMNS, *Provenance._fields)  # the columns that scoring adds, or replaces


UNKNOWN_FLAG = 2  # in place of a flag that is 0 or 1


def provenance_of(task: Task) -> Provenance:
    options = json.dumps(task.settings, sort_keys=True, default=str)
    return Provenance(task.name, task.version, options, json.dumps(list(task.wrappers)))


class RowSource(NamedTuple):
    """Where a row comes from; None where unknown."""

    data_source: str | None
    """Task that generated the problem, or the name of a dataset."""

    data_version: str | None
    """Version of that task (`extra_info.task_version`), in our own files only."""

    scored_by: Provenance | None


ProvenanceCheck = Callable[[RowSource], str | None]
"""Returns the problem with rows of this source, or None."""

_SOURCE_COLUMNS = ("data_source", "extra_info.task_version", *Provenance._fields)


@dataclass(slots=True)
class OutputBatch:
    """The n scorable rows of a block: a batch for the pool."""

    block: Block
    texts: Texts
    """[n] completions."""

    truths: Truths
    """[n] ground truths."""

    details: list[tuple[int | None, bool]] | None
    """[n] number of tokens, and whether the completion is finished, where the task's wrappers may need them."""

    weight: int
    """Approximate bytes in memory."""

    groups: Sequence[int] = ()
    """Numbers of completions of each problem, in order, for a task that compares them."""

    def __len__(self) -> int:
        return len(self.block.numbers)

    def pack(self, start: int, stop: int) -> ScoreBatch:
        """Completions `start` to `stop` - 1, for a worker."""
        if isinstance(self.truths, pa.Array) and not _is_text(self.truths.type):
            self.truths = to_list(self.truths)  # once for the whole batch
        details = None if self.details is None else self.details[start:stop]
        return ScoreBatch(_pack(self.texts, start, stop), _pack(self.truths, start, stop), details)


def _pack(values: Texts | Truths, start: int, stop: int) -> Column:
    if isinstance(values, list):
        return values[start:stop]
    kind = np.int64 if pa.types.is_large_string(values.type) else np.int32
    _, places, data = values.buffers()
    offsets = np.frombuffer(places, kind)[values.offset + start : values.offset + stop + 1].astype(np.int64)
    text = data.slice(int(offsets[0]), int(offsets[-1] - offsets[0])).to_pybytes() if data else b""
    return PackedText(text, array("q", (offsets - offsets[0]).tobytes()))


def read_outputs(
    blocks: Iterable[Block],
    source: Path,
    check: ProvenanceCheck,
    *,
    schema: pa.Schema | None = None,
    wrappers: Sequence[str] = (),
) -> Generator[OutputBatch, None, None]:
    """The scorable rows of a file in batches, each with the bad rows of its block.

    Args:
        blocks: from a reader.
        source: the file, for messages.
        check: called once for each different source of rows.
        schema: turns blocks of rows into tables; rows that do not fit are bad.
        wrappers: score wrappers; with any, the completions' lengths and ends are read too.

    Raises:
        VersionMismatchError: the check finds a problem.
        DataError: the file lacks the columns, or those that a wrapper needs.
    """
    seen: set[RowSource] = set()
    needed = columns_needed(wrappers)
    for block in blocks:
        batch = _from_rows(block, schema) if block.table is None else _from_table(block, source)
        for number, row_source in _row_sources(block):
            if row_source not in seen:
                seen.add(row_source)
                problem = check(row_source)
                if problem is not None:
                    raise VersionMismatchError(f"{source}:{number}: {problem}")
        if wrappers:
            batch.details = _details(block)
            if len(batch):
                _check_needed(block, source, needed)
                needed = {}  # a single later row that lacks it is a row that cannot be scored
        yield batch


def _from_rows(block: Block, schema: pa.Schema | None) -> OutputBatch:
    texts: list[str] = []
    truths: list[Json] = []
    problems: dict[int, str] = {}
    for place, row in enumerate(block.rows):
        try:
            text, truth = completion_of(row).text, ground_truth_of(row)
        except DataError as error:
            problems[place] = str(error)
        else:
            texts.append(text)
            truths.append(truth)
    block.drop(problems)
    if schema is not None:
        table, misfits = to_table(block.rows, schema)
        block.drop(misfits)
        block.table = table
        texts = [text for place, text in enumerate(texts) if place not in misfits]
        truths = [truth for place, truth in enumerate(truths) if place not in misfits]
    return OutputBatch(block, texts, truths, None, 2 * sum(map(len, texts)))


def _from_table(block: Block, source: Path) -> OutputBatch:
    table = block.table
    assert table is not None
    names = [name for name in ("completion", "ground_truth", "reward_model") if name in table.column_names]
    if "completion" not in names or len(names) == 1:
        raise DataError(
            f"{source} has the columns {', '.join(table.column_names)}; expected `completion`, "
            "and `ground_truth` or `reward_model`"
        )
    texts, truths = _as_text(table["completion"].combine_chunks()), _truth_column(table)
    if texts is None or truths is None:  # unusual types: a row at a time
        cells = table.select(names).to_pylist()
        batch = _from_rows(Block(block.numbers, cells, None, block.bad, block.progress), None)
        kept = set(batch.block.numbers)
        block.drop({place: "" for place, number in enumerate(block.numbers) if number not in kept})
        block.bad = batch.block.bad
        return OutputBatch(block, batch.texts, batch.truths, None, table.nbytes)
    missing = np.flatnonzero(np.asarray(pc.or_(pc.is_null(texts), pc.is_null(truths)))).tolist()
    if missing:
        block.drop({place: NO_GROUND_TRUTH if texts[place].is_valid else NO_COMPLETION for place in missing})
        keep = pc.and_(pc.is_valid(texts), pc.is_valid(truths))
        texts, truths = texts.filter(keep), truths.filter(keep)
    return OutputBatch(block, texts, truths, None, table.nbytes)


def _truth_column(table: pa.Table) -> pa.Array | None:
    """[n] ground truths from one column, or None where they are in two columns, or not JSON."""
    columns = []
    if "ground_truth" in table.column_names:
        columns.append(table["ground_truth"].combine_chunks())
    if "reward_model" in table.column_names:
        models = table["reward_model"].combine_chunks()
        if pa.types.is_struct(models.type) and models.type.get_field_index("ground_truth") >= 0:
            columns.append(pc.struct_field(models, "ground_truth"))
    if len(columns) == 2 and columns[0].null_count:
        columns = columns[1:] if columns[0].null_count == len(table) else []
    if not columns or not fits_json(columns[0].type):
        return None
    text = _as_text(columns[0])
    return columns[0] if text is None else text


def _as_text(values: pa.Array) -> pa.Array | None:
    if pa.types.is_dictionary(values.type) and _is_text(values.type.value_type):
        return values.dictionary_decode()
    if pa.types.is_string_view(values.type):
        return values.cast(pa.large_string())
    return values if _is_text(values.type) else None


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def column(block: Block, path: str) -> pa.Array | list[Json] | None:
    """A column (`name`) or a field of one (`name.field`) of a block, or None."""
    name, _, inner = path.partition(".")
    if block.table is None:
        cells = [row.get(name) for row in block.rows]
        return [cell.get(inner) if isinstance(cell, dict) else None for cell in cells] if inner else cells
    if name not in block.table.column_names:
        return None
    values = block.table[name].combine_chunks()
    if not inner:
        return values
    if not pa.types.is_struct(values.type) or values.type.get_field_index(inner) < 0:
        return None
    return pc.struct_field(values, inner)


def score_columns(source: Path, block: Block, names: Sequence[str] = SCORE_COLUMNS) -> dict[str, Cells]:
    """The columns of a scored file's block that hold its scores.

    Raises:
        DataError: the file is not a scored one.
    """
    columns = {name: column(block, name) for name in names}
    missing = [name for name, values in columns.items() if values is None]
    if block.table is None and not any(name in row for row in block.rows for name in names):
        missing = list(names) if block.rows else []
    if missing:
        raise DataError(f"{source} has no {', '.join(missing)}; expected a file that `tinyzero score` wrote")
    return {name: values for name, values in columns.items() if values is not None}


def has_values(values: pa.Array | list[Json] | None) -> bool:
    if values is None:
        return False
    if isinstance(values, list):
        return any(value is not None for value in values)
    return values.null_count < len(values)


def as_flags(values: pa.Array | list[Json] | None, size: int) -> np.ndarray:
    """[n] uint8: 0, 1 or `UNKNOWN_FLAG`."""
    if values is None:
        return np.full(size, UNKNOWN_FLAG, np.uint8)
    cells: Any = to_list(values) if isinstance(values, pa.Array) else values
    return np.array([int(cell) if isinstance(cell, bool) else UNKNOWN_FLAG for cell in cells], np.uint8)


def as_numbers(values: pa.Array | list[Json] | None, size: int) -> np.ndarray:
    """[n] float64: numbers, or lengths of lists; NaN for everything else."""
    array: Any = values
    if isinstance(values, pa.Array):
        if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
            array = pc.list_value_length(array)
        if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
            return np.asarray(pc.cast(array, pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)
    if isinstance(values, list):
        lengths = [len(value) if isinstance(value, list) else value for value in values]
        return np.array([_number(entry) for entry in lengths], np.float64)
    return np.full(size, np.nan)


def _number(value: Json) -> float:
    """A number as a float; NaN for what is none, or too great for one."""
    if type(value) not in (int, float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _row_sources(block: Block) -> Iterator[tuple[int, RowSource]]:
    """The different sources of the rows of a block, each with its first row number."""
    columns = [column(block, path) for path in _SOURCE_COLUMNS]
    columns = [
        None if isinstance(values, pa.Array) and pa.types.is_nested(values.type) else values for values in columns
    ]
    if all(isinstance(values, pa.Array) and len(values.unique()) == 1 for values in columns if values is not None):
        columns = [None if values is None else values[:1] for values in columns]  # as is usual
    size = max((len(values) for values in columns if values is not None), default=min(1, len(block.numbers)))
    lists = [
        [None] * size if values is None else [cell if isinstance(cell, str) else None for cell in _cells(values)]
        for values in columns
    ]
    firsts: dict[tuple[str | None, ...], int] = {}
    for place, cells in enumerate(zip(*lists, strict=True)):
        firsts.setdefault(cells, block.numbers[place])
    for (data_source, data_version, *provenance), number in firsts.items():
        scored_by = Provenance(*[cell or "" for cell in provenance]) if provenance[0] and provenance[1] else None
        yield number, RowSource(data_source, data_version, scored_by)


def _details(block: Block) -> list[tuple[int | None, bool]] | None:
    """Lengths and ends of the completions, for wrappers that depend on them."""
    counts, ends = _token_counts(block), column(block, "finished")
    if counts is None and ends is None:
        return None
    size = len(block.numbers)
    numbers, flags = ([None] * size if values is None else _cells(values) for values in (counts, ends))
    return [(number, flag is not False) for number, flag in zip(numbers, flags, strict=True)]


def _token_counts(block: Block) -> list[int | None] | None:
    """[n] numbers of tokens from the first of `LENGTH_COLUMNS` that has any, or None."""
    for name in LENGTH_COLUMNS:
        values = column(block, name)
        cells = [] if values is None else _cells(values)
        counts = [len(cell) if isinstance(cell, list) else cell for cell in cells]
        if any(type(count) is int for count in counts):
            return [count if type(count) is int else None for count in counts]
    return None


def _check_needed(block: Block, source: Path, needed: Mapping[str, str]) -> None:
    """Refuse a file that lacks a column that a wrapper needs."""
    for name, wrapper in needed.items():
        values = _token_counts(block) if name == "token_count" else column(block, name)
        if values is None or all(cell is None for cell in _cells(values)):
            raise DataError(
                f"{source} has no {name}, which the score wrapper {wrapper!r} needs; add that column, or omit the "
                "wrapper"
            )


def _cells(values: pa.Array | Sequence[Any]) -> Sequence[Any]:
    return to_list(values) if isinstance(values, pa.Array) else values


def scoring_check(task: Task) -> ProvenanceCheck:
    """Refuses rows that another task or another version generated or scored.

    Files of other tools have no version; in these only a `data_source` that names another installed task is refused.
    """
    others = {entry.name for entry in list_tasks()} - {task.name}
    here = f"{task.name} {task.version}"

    def check(row_source: RowSource) -> str | None:
        made_by = None
        if row_source.data_version:
            made_by = f"{row_source.data_source} {row_source.data_version}"
        elif row_source.data_source in others:
            made_by = f"{row_source.data_source}"
        if made_by is not None and made_by != here:
            return f"the problem was generated by task {made_by}, but {here} would score it{FIX}"
        if row_source.scored_by is not None and row_source.scored_by[:2] != (task.name, task.version):
            before = " ".join(row_source.scored_by[:2])
            return f"the row was scored by task {before} before, but {here} would score it now{FIX}"
        return None

    return check


FIX = "; install that version, name that task, or accept the difference with --allow-version-mismatch"


def accept_any(row_source: RowSource) -> str | None:
    return None
