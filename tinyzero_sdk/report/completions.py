"""The completions of a run, or of scored files: an index of their short columns in memory, their texts on disk.

A file is Parquet as runs write it, or any scored file; rows without a score are left out, a missing column is empty.
Filters read the index; a search for a text also reads all texts.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tinyzero_sdk.console import plural
from tinyzero_sdk.data.arrow import to_texts
from tinyzero_sdk.data.arrow_files import read_batches, within_limit
from tinyzero_sdk.data.table import Block
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.scoring.scored_table import TEXT, read_scored_blocks, read_scored_table, sources, typed
from tinyzero_sdk.scoring.statistics import interval_of_mean_rate, interval_of_rate, named_ranges, pass_at_k

INDEX = pa.schema(
    dict.fromkeys(("task", "problem", "split", "decoding", "reason"), TEXT)
    | {"answer": pa.string()}
    | dict.fromkeys(("step", "sample", "num_tokens"), pa.int32())
    | dict.fromkeys(("difficulty", "score", "advantage"), pa.float32())
    | dict.fromkeys(("correct", "finished"), pa.bool_())
)
TEXTS = pa.schema(
    dict.fromkeys(("prompt", "completion", "ground_truth"), pa.string())
    | {"parts": pa.map_(pa.string(), pa.float64()), "token_ends": pa.list_(pa.int32())}
    | dict.fromkeys(("logprobs", "entropies"), pa.list_(pa.float64()))
)
SEARCHED = ("prompt", "completion")
CHOICES = ("reason", "task", "split", "decoding")
RANGES = ("step", "difficulty", "score")


@dataclass(frozen=True, eq=False)
class CompletionFile:
    """One file, as it was when it was read."""

    path: Path
    index: pa.Table
    metadata: pq.FileMetaData | None = None
    """The metadata of a Parquet file all of whose rows are scored: reading it takes longer than a row group."""

    ignored: Mapping[str, int] = field(default_factory=dict)  # rows that are left out, by what they lack

    def search(self, text: str) -> np.ndarray:
        """[n] whether prompt, completion or answer have a text, in any case."""
        hits = _contain([self.index["answer"]], text)
        if self.metadata is None:
            return hits | _contain(self.texts(range(len(self.index)), SEARCHED).columns, text)
        present = [name for name in SEARCHED if name in self.metadata.schema.to_arrow_schema().names]
        repeated, done = [name for name in present if name == "prompt"], 0  # all samples of a problem have one
        batches = read_batches(self.path, present, metadata=self.metadata, repeated=repeated)
        try:
            for batch, _, _ in within_limit(self.path, batches):
                hits[done : done + len(batch)] |= _contain(batch.columns, text)
                done += len(batch)
        except pa.ArrowException as error:
            raise DataError(f"cannot read {self.path}: {error}") from error
        return hits

    def texts(self, rows: Sequence[int], columns: Sequence[str] = TEXTS.names) -> pa.Table:
        """The long columns of these rows, in this order; of Parquet only the row groups with these rows are read."""
        try:
            if self.metadata is None:
                block = _scored_rows(self.path, *version_of(self.path)).take(rows)
            else:
                sizes = [self.metadata.row_group(group).num_rows for group in range(self.metadata.num_row_groups)]
                starts = np.cumsum([0, *sizes])
                groups = np.unique(np.searchsorted(starts, rows, side="right") - 1)
                indices = np.concatenate([np.arange(starts[group], starts[group + 1]) for group in groups])
                order = np.argsort(rows, kind="stable")
                wanted, done, found = np.searchsorted(indices, np.asarray(rows)[order]), 0, []
                outer = {path.split(".")[0] for path in sources(columns)}
                present = sorted(outer & {*self.metadata.schema.to_arrow_schema().names})
                batches = read_batches(self.path, present, groups=groups.tolist(), metadata=self.metadata)
                for batch, _, _ in within_limit(self.path, batches, int(starts[groups[0]])):
                    own = slice(*np.searchsorted(wanted, (done, done + len(batch))))
                    found.append(batch.take(pa.array(wanted[own] - done)))
                    done += len(batch)
                table = pa.Table.from_batches(found).take(np.argsort(order))
                table.validate(full=True)  # of texts that are not UTF-8
                block = Block([*rows], table, [], 1.0)
            return pa.table({name: typed(block, TEXTS.field(name)) for name in columns})
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"cannot read {self.path}: {error}") from error


@dataclass(frozen=True)
class Completions:
    """All completions of a run or of a scored file."""

    files: tuple[CompletionFile, ...]
    index: pa.Table  # [n] `INDEX`, file after file
    left_out: tuple[str, ...] = ()  # files that cannot be read, and rows without a score: how many, of which file

    def __len__(self) -> int:
        return len(self.index)

    def select(self, filters: Mapping[str, Any]) -> np.ndarray:
        """The indices of the rows that pass all filters, sorted.

        Args:
            filters: a list of values for each of `CHOICES`, least and greatest value for each of `RANGES` (None for no
                bound), `problem`, `cut_off`, `text` (in prompt, completion or answer, in any case), and to sort by,
                `sort` and `descending`.
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
        if filters.get("text"):
            mask &= _search(self.files, str(filters["text"]).lower())
        indices = np.flatnonzero(mask)
        if (sort := filters.get("sort")) in INDEX.names:
            column = self.index[sort].combine_chunks().take(pa.array(indices))
            column = column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
            order = "descending" if filters.get("descending") else "ascending"
            keys = pa.table({"key": column, "index": indices})
            indices = indices[pc.sort_indices(keys, [("key", order), ("index", "ascending")]).to_numpy()]
        return indices

    def rows(self, indices: np.ndarray) -> list[dict[str, Any]]:
        """The index's columns of these rows, each with its `id`."""
        rows = self.index.take(pa.array(indices)).to_pylist()
        return [{**row, "id": name} for row, name in zip(rows, self.ids(indices), strict=True)]

    def ids(self, indices: np.ndarray) -> list[str]:
        """A name of each row that lasts as long as its file."""
        starts = self._starts()
        numbers = np.searchsorted(starts, indices, side="right") - 1
        own = (indices - starts[numbers]).tolist()
        return [f"{self.files[number].path.stem}:{row}" for number, row in zip(numbers.tolist(), own, strict=True)]

    def texts_at(self, indices: np.ndarray, columns: Sequence[str] = TEXTS.names) -> pa.Table:
        """The long columns of the rows at these indices, which are sorted."""
        ends = [*self._starts()[1:], len(self)]
        cuts = np.split(indices, np.searchsorted(indices, ends[:-1]))
        tables = [
            file.texts((own - start).tolist(), columns)
            for file, own, start in zip(self.files, cuts, self._starts(), strict=True)
            if len(own)
        ]
        return pa.concat_tables(tables)

    def texts(self, ids: Sequence[str]) -> list[dict[str, Any] | None]:
        """Index and long columns of the rows with these ids; None where there is none (any more)."""
        files = {file.path.stem: file for file in self.files}
        rows: list[dict[str, Any] | None] = []
        for name in ids:
            stem, _, own = name.rpartition(":")
            file = files.get(stem)
            if file is None or not own.isdecimal() or int(own) >= len(file.index):
                rows.append(None)
                continue
            row = file.index.slice(int(own), 1).to_pylist()[0] | file.texts([int(own)]).to_pylist()[0]
            rows.append({**row, "parts": dict(row["parts"] or ()), "id": name})
        return rows

    def facets(self) -> dict[str, Any]:
        """What there is to choose from: the values of each of `CHOICES`, and the range of each of `RANGES`."""
        ranges = {name: self.index[name] for name in RANGES}
        return {name: sorted(self.index[name].unique().drop_null().to_pylist()) for name in CHOICES} | {
            name: list(pc.min_max(column).as_py().values()) for name, column in ranges.items()
        }

    def evaluations(self) -> list[dict[str, Any]]:
        """Accuracy, reasons and levels of each evaluation: the completions of a step that are not for training."""
        keys = ("step", "split", "decoding", "task")
        is_evaluation = ~self._equal("split", ["train"])
        which = np.zeros(len(self), np.int64)
        for codes in map(self._codes, keys):
            which = which * (codes.max(initial=0) + 2) + codes + 1
        chosen = np.flatnonzero(is_evaluation)
        chosen = chosen[np.argsort(which[chosen], kind="stable")]
        starts = np.unique(which[chosen], return_index=True)[1]
        problems, finished, correct = self.problems(), self._numbers("finished"), self._numbers("correct") == 1
        names, level = self._levels(is_evaluation)
        evaluations = []
        for indices in np.split(chosen, starts[1:]) if len(chosen) else ():
            rows = self.index.select([*keys, "reason"]).take(pa.array(indices))
            reasons = pc.value_counts(rows["reason"].combine_chunks()).to_pylist()
            first = rows.slice(0, 1).to_pylist()[0]
            of_level = {names[code]: indices[level[indices] == code] for code in np.unique(level[indices]) if code >= 0}
            evaluations.append(
                {name: first[name] for name in keys}
                | _accuracy(correct[indices], problems[indices])
                | {
                    "reasons": {entry["values"] or "unknown": entry["counts"] for entry in reasons},
                    "cut_off": int((finished[indices] == 0).sum()),
                    "levels": {name: _accuracy(correct[rows], problems[rows]) for name, rows in of_level.items()},
                }
            )
        return evaluations

    def _levels(self, mask: np.ndarray) -> tuple[list[str], np.ndarray]:
        """Names of the ranges of difficulty, formed of a task's problems as in `tinyzero compare`; [n] which, or -1."""
        problems, difficulty, tasks = self.problems(), self._numbers("difficulty"), self._codes("task")
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

    def problems(self) -> np.ndarray:
        """[n] a number for each problem; a row that has none stands for one of its own."""
        codes = self._codes("problem")
        return np.where(codes < 0, -1 - np.arange(len(self)), codes)

    def _codes(self, name: str) -> np.ndarray:
        """[n] a number for each different value of a column; -1 for none."""
        column = self.index[name].combine_chunks()
        values = column.indices if pa.types.is_dictionary(column.type) else column
        return values.fill_null(-1).to_numpy()

    def _numbers(self, name: str) -> np.ndarray:
        return self.index[name].combine_chunks().cast(pa.float32()).to_numpy(zero_copy_only=False)

    def _starts(self) -> np.ndarray:
        """[files] the index of the first row of each."""
        return np.cumsum([0, *(len(file.index) for file in self.files)])[:-1]


@lru_cache(maxsize=16)
def _search(files: Sequence[CompletionFile], text: str) -> np.ndarray:
    """[n] the rows of all files that have a text."""
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        return np.concatenate([np.empty(0, bool), *pool.map(lambda file: file.search(text), files)])


def _contain(columns: Sequence[pa.Array | pa.ChunkedArray], text: str) -> np.ndarray:
    """[n] whether any of the columns has a text, in any case."""
    contained = np.zeros(len(columns[0]), bool)
    for column in columns:
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        values = column.dictionary if pa.types.is_dictionary(column.type) else column
        hits = np.asarray(pc.match_substring(to_texts(values), text, ignore_case=True).fill_null(False))
        if values is not column:
            codes = column.indices.fill_null(len(hits)).to_numpy()
            hits = np.append(hits, False)[codes]
        contained |= hits
    return contained


def read_completions(paths: Sequence[Path]) -> Completions:
    """The completions of these files, without rows that have no score, and files that cannot be read (yet): a DataError
    where there is only one.
    """
    files, left_out = list[CompletionFile](), list[str]()
    for path in paths:
        try:
            files.append(file := _read_file(path, *version_of(path)))
            left_out += [f"{plural(rows, 'row')} of {path.name} {what}" for what, rows in file.ignored.items()]
        except (DataError, OSError, pa.ArrowException, UnicodeError) as error:  # a run in progress replaces its files
            if len(paths) == 1:
                raise error if isinstance(error, DataError) else DataError(f"cannot read {path}: {error}") from error
            left_out.append(f"{path.name}, which cannot be read")
    tables = [file.index for file in files] or [INDEX.empty_table()]
    index = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    return Completions(tuple(files), index, left_out=tuple(left_out))


def version_of(path: Path) -> tuple[int, int]:
    """What changes when a file is written: its time and its size."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=4096)
def _read_file(path: Path, modified: int, size: int) -> CompletionFile:
    table = read_scored_table(path, INDEX)
    metadata = pq.read_metadata(path) if path.suffix == ".parquet" else None
    if metadata and metadata.num_rows > len(table.numbers):
        metadata = None
    return CompletionFile(path, table.columns, metadata, table.ignored)


@lru_cache(maxsize=8)
def _scored_rows(path: Path, modified: int, size: int) -> Block:
    return reduce(Block.joined, read_scored_blocks(path))


def _accuracy(correct: np.ndarray, problems: np.ndarray) -> dict[str, Any]:
    """Accuracy with its 95% interval, the completions of a problem taken as alike, and pass@k where all have k."""
    _, inverse, size = np.unique(problems, return_inverse=True, return_counts=True)
    solved = np.bincount(inverse, weights=correct)
    low, high = interval_of_rate(solved, size)
    counts = {"completions": len(correct), "problems": len(size)}
    accuracy: dict[str, Any] = {"accuracy": float(correct.mean()), "low": low, "high": high, **counts}
    if (k := int(size.min())) > 1:
        passed = pass_at_k(solved, size, k)
        accuracy |= {"pass_at": k, "passed": float(passed.mean())}
        accuracy["passed_interval"] = interval_of_mean_rate(passed, size)
    return accuracy
