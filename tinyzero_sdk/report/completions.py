"""The completions of a run, or of scored files: an index of their short columns in memory, their texts on disk.

A file is Parquet as runs write it, or any scored file; rows without a score are left out, a missing column is empty.
Filters read the index; a search for text also reads the texts of the rows that all other filters leave, by row group.
"""

import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tinyzero_sdk.console import plural
from tinyzero_sdk.data.arrow import to_rows
from tinyzero_sdk.data.files import open_for_arrow
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.records import REASONS
from tinyzero_sdk.report.runs import name_of
from tinyzero_sdk.scoring.outputs import as_numbers
from tinyzero_sdk.scoring.scored_rows import SCORES, read_scored_blocks
from tinyzero_sdk.scoring.statistics import interval_of_mean_rate, interval_of_rate, named_ranges, pass_at_k

_TEXT = pa.dictionary(pa.int32(), pa.string())
INDEX = pa.schema(
    {
        "step": pa.int32(),
        "split": _TEXT,
        "decoding": _TEXT,
        "task": _TEXT,
        "problem": _TEXT,
        "sample": pa.int32(),
        "difficulty": pa.float32(),
        "answer": pa.string(),
        "reason": _TEXT,
        "score": pa.float32(),
        "correct": pa.bool_(),
        "finished": pa.bool_(),
        "num_tokens": pa.int32(),
        "advantage": pa.float32(),
    }
)
SOURCES = {  # where a column is in files of other commands: the first of these that the file has
    "task": ("task", "data_source"),
    "problem": ("problem", "extra_info.key", "extra_info.index", "prompt", "ground_truth"),
    "difficulty": ("difficulty", "extra_info.difficulty"),
    "num_tokens": ("num_tokens", "token_count", "tokens"),
    "ground_truth": ("ground_truth", "reward_model.ground_truth"),
}
TEXTS = ("prompt", "completion", "ground_truth", "parts", "token_ends", "logprobs", "entropies")
SEARCHED = ("prompt", "completion")
CHOICES = ("reason", "task", "split", "decoding")
RANGES = ("step", "difficulty", "score")
_HIT, _MISS = 2, 1
_MOST_SEARCHES = 16  # that are remembered
_SEARCH_ROWS = 16_384  # read at a time


@dataclass(frozen=True)
class CompletionFile:
    """One file, as it was when it was read."""

    path: Path
    index: pa.Table
    metadata: pq.FileMetaData | None = None
    """Of a Parquet file all of whose rows are scored: reading it takes longer than a row group."""

    ignored: Mapping[str, int] = field(default_factory=dict)
    """Rows that are left out, by what they lack."""

    @cached_property
    def groups(self) -> list[int]:
        """Rows of each row group."""
        file = self.metadata
        return [file.row_group(group).num_rows for group in range(file.num_row_groups)] if file else [len(self.index)]

    def search(self, group: int, text: str) -> np.ndarray:
        """[rows of a row group] whether prompt, completion or answer have a text, in any case."""
        start = sum(self.groups[:group])
        answers = self.index["answer"].slice(start, self.groups[group])
        if self.metadata is None:
            return _contain([*self.texts(range(start, start + len(answers)), SEARCHED).columns, answers], text)
        # All samples of a problem have one prompt.
        with pq.ParquetFile(open_for_arrow(self.path), metadata=self.metadata, read_dictionary=["prompt"]) as file:
            present = [name for name in SEARCHED if name in file.schema_arrow.names]
            found, done = [np.empty(0, bool)], 0
            for batch in file.iter_batches(_SEARCH_ROWS, row_groups=[group], columns=present, use_threads=False):
                found.append(_contain([*batch.columns, answers.slice(done, len(batch))], text))
                done += len(batch)
        return np.concatenate(found)

    def texts(self, rows: Sequence[int], columns: Sequence[str] = TEXTS) -> pa.Table:
        """The long columns of these rows, in this order; of Parquet only the row groups with these rows are read."""
        if self.metadata is None:
            every, _ = _scored_rows(self.path, *_version(self.path))
            return pa.table(
                {name: _array_or_nulls([_plain(name, _find(every[row], name)) for row in rows]) for name in columns}
            )
        with pq.ParquetFile(open_for_arrow(self.path), metadata=self.metadata) as file:
            ends = np.cumsum(self.groups)
            groups = np.unique(np.searchsorted(ends, rows, side="right"))
            sizes = np.diff(ends, prepend=0)
            places = np.concatenate([np.arange(ends[group] - sizes[group], ends[group]) for group in groups])
            wanted = sorted({path.split(".")[0] for name in columns for path in SOURCES.get(name, (name,))})
            present = [name for name in wanted if name in file.schema_arrow.names]
            try:
                table = file.read_row_groups(groups.tolist(), columns=present)
                table.validate(full=True)  # of texts that are not UTF-8
            except (pa.ArrowException, OSError) as error:
                raise DataError(f"cannot read {self.path}: {error}") from error
            table = table.take(np.searchsorted(places, rows))
        return pa.table({name: _column(table, name) for name in columns})


@dataclass(frozen=True)
class Completions:
    """All completions of a run or of a scored file."""

    files: tuple[CompletionFile, ...]
    index: pa.Table
    """[n] `INDEX`, file after file."""

    searched: dict[str, np.ndarray] = field(default_factory=dict)
    """[n] by text, for those last searched for: whether a row has it (`_HIT`), has not (`_MISS`), or is unread (0)."""

    left_out: tuple[str, ...] = ()
    """Files that cannot be read, and rows without a score: how many, of which file."""

    def __len__(self) -> int:
        return len(self.index)

    def select(self, filters: Mapping[str, Any]) -> np.ndarray:
        """The places of the rows that pass all filters, sorted; `filters` as for `select_within`."""
        return self.select_within(filters, math.inf)[0]

    def select_within(self, filters: Mapping[str, Any], seconds: float) -> tuple[np.ndarray, int]:
        """The places of the rows that pass all filters, sorted, and how many are still to be searched for a text.

        Another call goes on with these.

        Args:
            filters: a list of values for each of `CHOICES`, least and greatest value for each of `RANGES` (None for no
                bound), `problem`, `cut_off`, `text` (in prompt, completion or answer, in any case), and to sort by,
                `sort` and `descending`.
            seconds: after which no more texts are read.
        """
        mask = np.ones(len(self), bool)
        for name in CHOICES:
            if filters.get(name):
                mask &= self._equal(name, filters[name])
        if "problem" in filters:
            mask &= self._equal("problem", [filters["problem"]])
        for name in RANGES:
            low, high = filters.get(name) or (None, None)
            values = self._numbers(name)
            mask &= True if low is None else values >= low
            mask &= True if high is None else values <= high
        if filters.get("cut_off") is not None:
            mask &= self._numbers("finished") == (0 if filters["cut_off"] else 1)
        places, left = np.flatnonzero(mask), 0
        if filters.get("text"):
            places, left = self._search(places, str(filters["text"]).lower(), seconds)
        if (sort := filters.get("sort")) in INDEX.names:
            column = self.index[sort].combine_chunks().take(pa.array(places))
            column = column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
            order = "descending" if filters.get("descending") else "ascending"
            keys = pa.table({"key": column, "place": places})
            places = places[pc.sort_indices(keys, [("key", order), ("place", "ascending")]).to_numpy()]
        return places, left

    def rows(self, places: np.ndarray) -> list[dict[str, Any]]:
        """The index's columns of these rows, each with its `id`."""
        rows = self.index.take(pa.array(places)).to_pylist()
        return [{**row, "id": name} for row, name in zip(rows, self.ids(places), strict=True)]

    def ids(self, places: np.ndarray) -> list[str]:
        """A name of each row that lasts as long as its file."""
        starts = self._starts()
        numbers = np.searchsorted(starts, places, side="right") - 1
        own = (places - starts[numbers]).tolist()
        return [
            f"{name_of(self.files[number].path.stem)}:{row}" for number, row in zip(numbers.tolist(), own, strict=True)
        ]

    def texts_at(self, places: np.ndarray, columns: Sequence[str] = TEXTS) -> pa.Table:
        """The long columns of the rows at these places, which are sorted."""
        ends = [*self._starts()[1:], len(self)]
        cuts = np.split(places, np.searchsorted(places, ends[:-1]))
        tables = [
            file.texts((own - start).tolist(), columns)
            for file, own, start in zip(self.files, cuts, self._starts(), strict=True)
            if len(own)
        ]
        try:
            return pa.concat_tables(tables, promote_options="permissive")
        except pa.ArrowException:  # files of other tools: what is not as in the first one is left out
            schema = tables[0].schema
            return pa.concat_tables(
                pa.table([_cast_or_nulls(table[field.name], field.type) for field in schema], schema=schema)
                for table in tables
            )

    def texts(self, ids: Sequence[str]) -> list[dict[str, Any] | None]:
        """Index and long columns of the rows with these ids; None where there is none (any more)."""
        stems = {name_of(file.path.stem): number for number, file in enumerate(self.files)}
        found: list[dict[str, Any] | None] = []
        for name in ids:
            stem, _, own = name.rpartition(":")
            if stem not in stems or not own.isdecimal() or int(own) >= len(self.files[stems[stem]].index):
                found.append(None)
                continue
            file = self.files[stems[stem]]
            row = file.index.slice(int(own), 1).to_pylist()[0] | file.texts([int(own)]).to_pylist()[0]
            parts = {part: value for part, value in dict(row["parts"] or ()).items() if value is not None}
            found.append({**row, "parts": parts, "id": name})
        return found

    def facets(self) -> dict[str, Any]:
        """What there is to choose from: the values of each of `CHOICES`, and the range of each of `RANGES`."""
        ranges = {name: self.index[name] for name in RANGES}
        return {name: sorted(self.index[name].unique().drop_null().to_pylist()) for name in CHOICES} | {
            name: list(pc.min_max(column).as_py().values()) for name, column in ranges.items()
        }

    def evaluations(self) -> list[dict[str, Any]]:
        """Accuracy, reasons and levels of each evaluation: the completions of a step that are not for training."""
        keys = [name for name in ("step", "split", "decoding", "task") if self.index[name].null_count < len(self)]
        codes = {name: self._codes(name) for name in keys}
        mask = ~self._equal("split", ["train"])
        which = np.zeros(len(self), np.int64)
        for values in codes.values():
            which = which * (values.max(initial=0) + 2) + values + 1
        chosen = np.flatnonzero(mask)
        chosen = chosen[np.argsort(which[chosen], kind="stable")]
        starts = np.unique(which[chosen], return_index=True)[1]
        columns = self.index.select(["step", "split", "decoding", "task", "correct", "reason"]).take(pa.array(chosen))
        every_problem, finished = self._codes("problem"), self._numbers("finished")
        names, every_level = self._levels(codes.get("task", np.zeros(len(self))), mask)
        found = []
        for start, end in pairwise([*starts.tolist(), len(chosen)]):
            places, part = chosen[start:end], columns.slice(start, end - start)
            correct = np.asarray(part["correct"].fill_null(False))
            problems, level = every_problem[places], every_level[places]
            reasons = pc.value_counts(part["reason"].combine_chunks()).to_pylist()
            first = part.slice(0, 1).to_pylist()[0]
            found.append(
                {name: first[name] for name in ("step", "split", "decoding", "task")}
                | _accuracy(correct, problems)
                | {
                    "reasons": {entry["values"] or "unknown": entry["counts"] for entry in reasons},
                    "cut_off": int((finished[places] == 0).sum()),
                    "levels": {
                        names[one]: _accuracy(correct[level == one], problems[level == one])
                        for one in np.unique(level[level >= 0])
                    },
                }
            )
        return found

    def _levels(self, tasks: np.ndarray, mask: np.ndarray) -> tuple[list[str], np.ndarray]:
        """Names of the ranges of difficulty, formed of a task's problems as in `tinyzero compare`; [n] which, or -1."""
        problems, difficulty = self._codes("problem"), self._numbers("difficulty")
        names, levels = list[str](), np.full(len(self), -1)
        for task in np.unique(tasks[mask]):
            rows = np.flatnonzero(mask & (tasks == task))
            _, first, which = np.unique(problems[rows], return_index=True, return_inverse=True)
            for name, chosen in named_ranges(difficulty[rows][first]):
                levels[rows[chosen[which]]] = len(names)
                names.append(name)
        return names, levels

    def _equal(self, name: str, values: Sequence[str]) -> np.ndarray:
        column = self.index[name].combine_chunks()
        codes = [code for code, value in enumerate(column.dictionary.to_pylist()) if value in set(values)]
        return np.isin(self._codes(name), codes)

    def _codes(self, name: str) -> np.ndarray:
        """[n] a number for each different value of a column; -1 for none."""
        column = self.index[name].combine_chunks()
        values = column.indices if pa.types.is_dictionary(column.type) else column
        return values.fill_null(-1).to_numpy()

    def _numbers(self, name: str) -> np.ndarray:
        return self.index[name].combine_chunks().cast(pa.float32()).to_numpy(zero_copy_only=False)

    def _starts(self) -> np.ndarray:
        """[files] the place of the first row of each."""
        return np.cumsum([0, *(len(file.index) for file in self.files)])[:-1]

    def _search(self, places: np.ndarray, text: str, seconds: float) -> tuple[np.ndarray, int]:
        """Those of the places known to have a text, after that many seconds of search, and how many are unread."""
        known, until = self._known(text), time.monotonic() + seconds
        groups = [(file, group) for file in self.files for group in range(len(file.groups))]
        ends = np.cumsum([size for file in self.files for size in file.groups])
        unread = np.unique(np.searchsorted(ends, places[known[places] == 0], side="right")).tolist()

        def search(at: int) -> None:
            if time.monotonic() < until:
                file, group = groups[at]
                known[ends[at] - file.groups[group] : ends[at]] = np.where(file.search(group, text), _HIT, _MISS)

        with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
            list(pool.map(search, unread))
        return places[known[places] == _HIT], int((known[places] == 0).sum())

    def _known(self, text: str) -> np.ndarray:
        """The entry of `searched`; a new one knows what has no part of the text."""
        if text not in self.searched:
            known = np.zeros(len(self), np.int8)
            for other, found in list(self.searched.items()):
                if other in text:
                    known[found == _MISS] = _MISS
            for old in list(self.searched)[: 1 - _MOST_SEARCHES]:
                self.searched.pop(old, None)
            self.searched[text] = known
        return self.searched[text]


def _array_or_nulls(values: Sequence[Any]) -> pa.Array:
    """A column of JSON values; nulls where they are of no one type."""
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        return pa.nulls(len(values))


def _cast_or_nulls(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray | pa.Array:
    try:
        return column.cast(kind)
    except pa.ArrowException:
        return pa.nulls(len(column), kind)


def _contain(columns: Sequence[pa.Array | pa.ChunkedArray], text: str) -> np.ndarray:
    """[n] whether any of the columns has a text, in any case."""
    found = np.zeros(len(columns[0]), bool)
    for column in columns:
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        values = column.dictionary if pa.types.is_dictionary(column.type) else column
        hits = np.asarray(pc.match_substring(_texts(values), text, ignore_case=True).fill_null(False))
        if values is not column:
            codes = column.indices.fill_null(len(hits)).to_numpy()
            hits = np.append(hits, False)[codes]
        found |= hits
    return found


def read_completions(paths: Sequence[Path]) -> Completions:
    """The completions of these files; a file that cannot be read (yet) is left out, and so are rows without a score.

    Raises:
        DataError: there is only one, and it cannot be read or has no scores.
    """
    files, left_out = list[CompletionFile](), list[str]()
    for path in paths:
        try:
            files.append(file := _read_file(path, *_version(path)))
            left_out += [f"{plural(rows, 'row')} of {path.name} {what}" for what, rows in file.ignored.items()]
        except (DataError, OSError, pa.ArrowException, UnicodeError) as error:  # a run in progress replaces its files
            if len(paths) == 1:
                raise error if isinstance(error, DataError) else DataError(f"cannot read {path}: {error}") from error
            left_out.append(f"{path.name}, which cannot be read")
    tables = [file.index for file in files] or [INDEX.empty_table()]
    index = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    return Completions(tuple(files), index, left_out=tuple(left_out))


def _version(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=4096)
def _read_file(path: Path, modified: int, size: int) -> CompletionFile:
    metadata, columns = None, None
    ignored: Mapping[str, int] = {}
    if path.suffix == ".parquet":
        metadata = pq.read_metadata(open_for_arrow(path))
        names = metadata.schema.to_arrow_schema().names
        wanted = {source.split(".")[0] for name in INDEX.names for source in _sources(name, names)[:1]}
        table = pq.read_table(open_for_arrow(path), columns=sorted(wanted))
        if _all_scored(table):
            columns = {name: _column(table, name) for name in INDEX.names}
    if columns is None:
        metadata, (rows, ignored) = None, _scored_rows(path, modified, size)
        columns = {name: pa.chunked_array([_json_column(rows, name)]) for name in INDEX.names}
        step = re.fullmatch(r"step_(\d+)", path.stem)
        if step and path.parent.name == "rollouts":  # of a run made before completions were Parquet
            columns["step"] = pa.array([int(step[1])] * len(rows), pa.int32())
            columns["split"] = pa.array(["train"] * len(rows))
    index = pa.table([_cast(columns[field.name], field.type) for field in INDEX], schema=INDEX)
    index.validate(full=True)  # of texts that are not UTF-8
    return CompletionFile(path, index, metadata, ignored)


def _all_scored(table: pa.Table) -> bool:
    """As `read_scored_blocks` finds it of each row, but of whole columns."""
    if not (len(table) and {*SCORES} <= {*table.column_names}):
        return False
    score, correct, reason = (table[name].combine_chunks() for name in SCORES)
    is_number = pa.types.is_floating(score.type) or pa.types.is_integer(score.type)
    if not (is_number and pa.types.is_boolean(correct.type)) or any(one.null_count for one in (score, correct, reason)):
        return False
    return bool(pc.all(pc.is_finite(score)).as_py()) and {*reason.unique().to_pylist()} <= {*REASONS}


def _sources(name: str, present: Sequence[str]) -> list[str]:
    return [path for path in SOURCES.get(name, (name,)) if path.split(".")[0] in present]


def _column(table: pa.Table, name: str) -> pa.ChunkedArray | pa.Array:
    """A column by our name, from the first source that has it."""
    for path in _sources(name, table.column_names):
        head, _, inner = path.partition(".")
        column = table[head]
        if inner:
            if not pa.types.is_struct(column.type) or column.type.get_field_index(inner) < 0:
                continue
            column = pc.struct_field(column, inner)
        return column
    return pa.nulls(len(table))


def _cast(column: pa.ChunkedArray | pa.Array, kind: pa.DataType) -> pa.Array:
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if kind == _TEXT:
        column = column if pa.types.is_dictionary(column.type) else _texts(column)
        return column.cast(_TEXT) if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    if pa.types.is_list(column.type) and pa.types.is_integer(kind):
        column = pc.list_value_length(column)  # tokens
    return _texts(column) if pa.types.is_string(kind) else column.cast(kind, safe=False)


def _texts(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column as text; what is neither text nor a number as JSON."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_nested(column.type):
        return pa.array([None if value is None else json.dumps(value, default=str) for value in column.to_pylist()])
    return column.cast(pa.string())


@lru_cache(maxsize=8)
def _scored_rows(path: Path, modified: int, size: int) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The rows with a score, and how many are left out, by what they lack."""
    ignored = Counter[str]()
    blocks = read_scored_blocks(path, ignored=ignored)
    return [row for block in blocks for row in block.rows or (to_rows(block.table) if block.table else ())], ignored


def _find(row: Mapping[str, Any], name: str) -> Any:
    for path in SOURCES.get(name, (name,)):
        value: Any = row
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def _plain(name: str, value: Any) -> Any:
    """As a column can hold it: where the structure may differ from row to row, JSON."""
    if name == "parts":
        return value if isinstance(value, Mapping) else None
    is_text = name in ("prompt", "completion", "ground_truth", "answer", "problem")
    return json.dumps(value, ensure_ascii=False) if is_text and not isinstance(value, (str, type(None))) else value


def _json_column(rows: Sequence[Mapping[str, Any]], name: str) -> pa.Array:
    kind = INDEX.field(name).type
    values: Iterator[Any] = (_find(row, name) for row in rows)
    if kind in (_TEXT, pa.string()):
        return pa.array([None if value is None else str(_plain(name, value)) for value in values], pa.string())
    if kind == pa.bool_():
        return pa.array([value if isinstance(value, bool) else None for value in values], kind)
    numbers = as_numbers(list(values), len(rows))  # of a list of tokens its length
    return pa.array(numbers, mask=np.isnan(numbers)).cast(kind, safe=False)


def _accuracy(correct: np.ndarray, problems: np.ndarray) -> dict[str, Any]:
    """Accuracy with its 95% interval, the completions of a problem taken as alike, and pass@k where all have k."""
    _, inverse = np.unique(problems, return_inverse=True)
    size = np.bincount(inverse)
    solved = np.bincount(inverse, weights=correct)
    low, high = interval_of_rate(solved, size)
    rate = float(correct.mean())
    found: dict[str, Any] = {
        "accuracy": rate,
        "low": low,
        "high": high,
        "completions": len(correct),
        "problems": len(size),
    }
    if (k := int(size.min())) > 1:
        passed = pass_at_k(solved, size, k)
        found |= {"pass_at": k, "passed": float(passed.mean()), "passed_interval": interval_of_mean_rate(passed, size)}
    return found
