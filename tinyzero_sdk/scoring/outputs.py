"""Read a file of model outputs as batches for the scoring pool, with the rows that cannot be scored.

Here is also which rows are completions of one problem, and batches that keep these together.
"""

from array import array
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from tinyzero_sdk.data.arrow import fits_json, is_text, to_list, to_table
from tinyzero_sdk.data.column_hash import hash_array, hash_values
from tinyzero_sdk.data.rows import missing, plain
from tinyzero_sdk.data.table import ALIASES, Block
from tinyzero_sdk.errors import DataError, VersionMismatchError
from tinyzero_sdk.records import Json
from tinyzero_sdk.rewards.wrappers import columns_needed
from tinyzero_sdk.scoring.pool import PackedText, ScoreBatch
from tinyzero_sdk.scoring.provenance import Provenance, ProvenanceCheck, RowSource, row_sources

SCORE_COLUMNS = ("score", "correct", "reason", "answer")

RESULT_COLUMNS = (*SCORE_COLUMNS, *Provenance._fields)  # the columns that scoring adds, or replaces

PARTS = "parts"  # column with `Score.parts`, where the task or its wrappers have any


def read_parts(cell: Json) -> dict[str, float]:
    """A cell of that column, without what is no number; empty where it is no object."""
    pairs = cell.items() if isinstance(cell, dict) else ()
    return {name: value for name, value in pairs if type(value) in (int, float)}


@dataclass(slots=True)
class OutputBatch:
    """The n scorable rows of a block: a batch for the pool."""

    block: Block
    texts: pa.Array  # [n] completions
    truths: list[Json]  # [n] ground truths
    details: list[tuple[int | None, bool]] | None = None
    """[n] number of tokens, and whether the completion is finished, where the task's wrappers may need them."""

    groups: Sequence[int] = ()  # numbers of completions of each problem, in order, for a task that compares them

    def __len__(self) -> int:
        return len(self.block)

    @property
    def weight(self) -> int:
        """Approximate bytes in memory."""
        return max(2 * self.texts.nbytes, getattr(self.block.data, "nbytes", 0))

    def pack(self, start: int, stop: int) -> ScoreBatch:
        """Completions `start` to `stop` - 1, for a worker."""
        kind = np.int64 if pa.types.is_large_string(self.texts.type) else np.int32
        _, offsets_buffer, data = self.texts.buffers()
        first = self.texts.offset + start
        offsets = np.frombuffer(offsets_buffer, kind)[first : first + stop - start + 1].astype(np.int64)
        text = data.slice(int(offsets[0]), int(offsets[-1] - offsets[0])).to_pybytes() if data else b""
        texts = PackedText(text, array("q", (offsets - offsets[0]).tobytes()))
        details = None if self.details is None else self.details[start:stop]
        return ScoreBatch(texts, self.truths[start:stop], details)


def read_outputs(
    blocks: Iterable[Block],
    source: Path,
    check: ProvenanceCheck,
    *,
    schema: pa.Schema | None = None,
    wrappers: Sequence[str] = (),
) -> Generator[OutputBatch, None, None]:
    """The scorable rows of a reader's blocks in batches, each with the bad rows of its block.

    With a schema JSON rows become typed columns. With wrappers the completions' lengths and ends are read too.

    Raises:
        VersionMismatchError: the check refuses a row.
        DataError: the file lacks the columns, or those that a wrapper needs.
    """
    seen: set[RowSource] = set()
    needed = columns_needed(wrappers) if wrappers else {}
    for block in blocks:
        batch = _scorable(block, source)
        if schema is not None:
            block.data = to_table(block.data, schema)
        for number, row_source in row_sources(block):
            if row_source not in seen:
                seen.add(row_source)
                error = check(row_source)
                if error is not None:
                    raise VersionMismatchError(f"{source}:{number}: {error}")
        if wrappers:
            counts, flags = block.floats("num_tokens"), block.flags("finished")
            known = np.isfinite(counts).tolist()
            pairs = zip(counts.tolist(), known, (flags != 0).tolist(), strict=True)
            batch.details = [(int(count) if is_known else None, finished) for count, is_known, finished in pairs]
            if len(batch):
                _check_needed(block, source, needed)
                needed = {}  # a single later row that lacks it is a row that cannot be scored
        yield batch


def _scorable(block: Block, source: Path) -> OutputBatch:
    """The rows with a completion and a ground truth; the others become bad ones of the block."""
    if isinstance(block.data, pa.Table):
        names = block.data.column_names
        for name, known in (("completion", {"completion"}), ("ground_truth", {"ground_truth", "reward_model"})):
            if not known & {*names}:
                raise DataError(f"{source} has the columns {', '.join(names)}: {missing(name, names)}")
    texts, truths, errors = block.column("completion"), block.first_cells("ground_truth"), dict[int, str]()
    are_plain = not isinstance(block.data, pa.Table) or all(
        fits_json(block.column(path).type) for path in ALIASES["ground_truth"]
    )
    if not (are_plain and is_text(texts.type)) or texts.null_count or None in truths:
        for index, (text, truth) in enumerate(zip(to_list(texts), truths, strict=True)):
            try:
                _check_completion(text, block.names)
                if truth is None:
                    raise DataError(missing("ground_truth", block.names))
                if not are_plain:
                    plain(truth)
            except DataError as error:
                errors[index] = str(error)
    if errors:
        kept = [index for index in range(len(truths)) if index not in errors]
        texts, truths = texts.take(pa.array(kept, pa.int64())), [truths[index] for index in kept]
        block.drop(errors)
    return OutputBatch(block, texts if is_text(texts.type) else pa.array(to_list(texts), pa.string()), truths)


def _check_completion(text: Json, names: Collection[str]) -> None:
    if text is None:
        raise DataError(missing("completion", names))
    if not isinstance(text, str):
        raise DataError(f"the completion is of type {type(text).__name__}; expected a string")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise DataError("a lone surrogate (half a character) in the completion")


def _check_needed(block: Block, source: Path, needed: Mapping[str, str]) -> None:
    """Refuse a file that lacks a column that a wrapper needs."""
    for name, wrapper in needed.items():
        values = block.first("num_tokens" if name == "token_count" else name)
        if values.null_count == len(values):
            raise DataError(
                f"{source} has no {name}, which the score wrapper {wrapper!r} needs; add that column, or omit the "
                "wrapper"
            )


PROBLEM_COLUMNS = (*ALIASES["problem"], "ground_truth")
"""What identifies a problem: the first of these that rows have; the ground truths only if they are lists or objects."""


def problem_column(block: Block, path: str) -> pa.Array:
    """[n] what identifies the problem of each row, null where nothing does; "row" is no column."""
    if path == "row":
        return pa.nulls(len(block))
    return block.first(path) if path == "ground_truth" else block.column(path)


def identifying_columns(block: Block, paths: Sequence[str] = PROBLEM_COLUMNS) -> list[str]:
    """Those of the columns that can identify problems, by the rows of a block."""
    columns = [path for path in paths if path != "ground_truth" and block.column(path).null_count < len(block)]
    cells = block.first_cells("ground_truth") if "ground_truth" in paths else []
    return [*columns, "ground_truth"] if cells and all(isinstance(cell, dict | list) for cell in cells) else columns


def find_problem_column(block: Block, group_by: str | None = None) -> str:
    """What identifies a problem, by the first rows: a column, or `row` where nothing does, and each counts alone.

    A `group_by` that no row has is a DataError.
    """
    if group_by:
        if block.column(group_by).null_count == len(block):
            raise DataError(f"no row at the start of the file has {group_by!r}, which should identify prompts")
        return group_by
    return next(iter(identifying_columns(block)), "row")


def problem_keys(batch: OutputBatch, path: str) -> tuple[np.ndarray, np.ndarray]:
    """[n] uint64, equal for completions of one problem, and whether the row has any."""
    if path == "row":
        return np.zeros(len(batch), np.uint64), np.zeros(len(batch), bool)
    if path == "ground_truth":
        return hash_values(batch.truths), np.ones(len(batch), bool)
    values = batch.block.column(path)
    return hash_array(values), values.is_valid().to_numpy(zero_copy_only=False)


def whole_groups(
    batches: Iterable[OutputBatch], source: Path, group_by: str | None
) -> Generator[OutputBatch, None, None]:
    """The rows in the same order, in batches with `groups` that never end among the completions of a problem.

    A DataError says that a row has no problem, or that the completions of one are not adjacent.
    """
    path, seen = "", set[int]()
    rest: OutputBatch | None = None

    def note(key: int, batch: OutputBatch, index: int) -> None:
        if key in seen:
            raise DataError(
                f"{source}:{batch.block.numbers[index]} is a completion of a problem that earlier rows have too, with "
                f"other problems between them, and the task compares those of a problem; sort the rows by {path}"
            )
        seen.add(key)

    for batch in batches:
        if not len(batch):
            yield batch  # bad rows alone
            continue
        path = path or find_problem_column(batch.block, group_by)
        joined = batch if rest is None else _joined(rest, batch)
        keys, known = problem_keys(joined, path)
        if not known.all():
            number, has = joined.block.numbers[known.argmin()], "nothing" if path == "row" else f"no {path}"
            raise DataError(
                f"{source}:{number} has {has} to tell of which problem it is a completion, and the task compares those "
                "of a problem; add extra_info.key or prompt to each row, or name another column with --by"
            )
        keys ^= hash_values(joined.truths) >> np.uint64(1)  # another ground truth is another problem
        starts = np.flatnonzero(np.diff(keys, prepend=~keys[:1])).tolist()
        for start in starts[:-1]:
            note(int(keys[start]), joined, start)
        done, rest = _split(joined, starts[-1])
        yield replace(done, groups=np.diff(starts).tolist())
        last = int(keys[starts[-1]])
    if rest is not None:
        note(last, rest, 0)
        yield replace(rest, groups=[len(rest)])


def _split(batch: OutputBatch, index: int) -> tuple[OutputBatch, OutputBatch]:
    """The rows before an index, with the bad ones, and the others."""
    first, second = (
        OutputBatch(block, batch.texts[rows], batch.truths[rows], batch.details and batch.details[rows])
        for block, rows in zip(batch.block.split(index), (slice(index), slice(index, None)), strict=True)
    )
    return first, second


def _joined(first: OutputBatch, second: OutputBatch) -> OutputBatch:
    details = None if first.details is None or second.details is None else first.details + second.details
    texts = pa.concat_arrays([first.texts, second.texts.cast(first.texts.type)])
    return OutputBatch(first.block.joined(second.block), texts, first.truths + second.truths, details)
