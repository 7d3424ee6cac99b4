"""A task with the problems in the rows of files: their prompts and ground truths as they stand, scored by the task.

Rows are read when a problem is asked for; all that stays in memory is a hash of each row's key, and its split.
"""

import contextlib
import copyreg
import hashlib
import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tinyzero_sdk.console import plural, warn
from tinyzero_sdk.data.arrow import Row
from tinyzero_sdk.data.rows import (
    HELD_OUT,
    ROW_COLUMNS,
    as_messages,
    extra_info,
    find_ground_truth,
    is_held_out,
    missing,
    read_prompt,
)
from tinyzero_sdk.data.sources import Rows, find_files
from tinyzero_sdk.errors import BrokenTaskError, DataError, describe_error
from tinyzero_sdk.hookspecs import Message
from tinyzero_sdk.records import Item, Json, Split
from tinyzero_sdk.seeds import derive_seed, key_hash, random_bits
from tinyzero_sdk.tasks.splits import DEFAULT_TEST_FRACTION, check_test_fraction
from tinyzero_sdk.tasks.task import Task

_BLOCK = 256
_TRIAL_SCORES = 1000  # rows of a split whose ground truths are scored where the task has no `is_valid`: slow for some
_TOKENIZED = 16 << 20  # bytes of prompts, some ten seconds of a tokenizer's time
OTHER_TASK = -1
_FORMAT = frozenset((*ROW_COLUMNS, "ground_truth"))


@dataclass(frozen=True, slots=True)
class RowItem(Item):
    """A problem, with what its row says of it."""

    place: str = ""
    key: str = ""
    prompt: str | list[Message] | None = None
    difficulty: float | None = None


class FileTask(Task):
    """A task with the problems of files instead of its own; it pickles as the task itself, which scores."""

    def __init__(
        self, task: Task, rows: Rows, first_test: int | None, sources: frozenset[str | None] = frozenset()
    ) -> None:
        """
        Args:
            task: scores the completions.
            rows: those for training, then those held out.
            first_test: where the latter begin; None = the rows' own splits decide, else the hash of the key.
            sources: the values of `data_source` of the task's rows; empty = all rows are the task's.

        Raises:
            DataError: a row is no problem of the task, or both splits hold the same problem.
        """
        vars(self).update(vars(task))
        self._rows, self.makes_prompts = rows, False
        self._has_own_key = not task.plugin_manager.has_plugin("default item_key")
        self._keys, self._prompt_bytes = np.zeros(len(rows), np.uint64), np.zeros(len(rows), np.int64)
        self._messages = np.ones(len(rows), np.uint16)
        self.split = np.full(len(rows), OTHER_TASK, np.int8)  # 0 = training, 1 = held out
        self._scan(first_test, sources)
        self.has_own_splits = first_test is not None or bool((self.split == 1).any())
        self.data_version = rows.digest
        self._refuse_overlap()

    def __reduce__(self) -> Any:
        return copyreg.dispatch_table[Task](self)

    def _scan(self, first_test: int | None, sources: frozenset[str | None]) -> None:
        """Check all rows, and note their keys and splits."""
        rows = self._rows
        for index, row in enumerate(rows):
            source = named if isinstance(named := row.get("data_source"), str) else None
            if sources and source not in sources and (not source or source.rpartition("/")[2] not in sources):
                continue
            try:
                item = self._item(row)
                prompt = self._read_prompt(item, row)
                self._prompt_bytes[index] = sum(len(message["content"].encode()) for message in prompt)
                self._messages[index] = min(len(prompt), 2**16 - 1)
                if min(index, abs(index - (first_test or 0))) < _TRIAL_SCORES:
                    self._try_score(item.ground_truth)
                key, own = self._key(row, item), is_held_out(row)
            except (DataError, BrokenTaskError) as error:
                raise DataError(f"{rows.place(index)}: {error}") from error
            self._keys[index] = key_hash(key)
            self.split[index] = own if first_test is None else own or index >= first_test

    def dataset(
        self,
        split: Split,
        size: int | None = None,
        *,
        seed: int = 0,
        test_fraction: float = DEFAULT_TEST_FRACTION,
        start: int = 0,
    ) -> Iterator[Item]:
        """The problems of a split in an order that depends on the seed, or `size` of them; each once."""
        check_test_fraction(self, test_fraction)
        indices = self._indices(split, test_fraction)
        order = np.argsort(random_bits(derive_seed("file", seed), indices, 1)[:, 0], kind="stable")
        return self._items(indices[order][start : None if size is None else start + size])

    def may_exceed(self, split: Split, test_fraction: float, tokens: int, around: int) -> Iterator[Item]:
        """The problems whose prompts may have more tokens, the longest first; of very many no more than `_TOKENIZED`.

        A token has at least one byte. `around` are the bytes that a chat template adds to a message.
        """
        indices = self._indices(split, test_fraction)
        sizes = self._prompt_bytes[indices] + around * self._messages[indices].astype(np.int64)
        order = np.argsort(-sizes, kind="stable")
        before = np.cumsum(sizes[order]) - sizes[order]
        return self._items(indices[order][(sizes[order] > tokens) & (before < _TOKENIZED)])

    def _indices(self, split: Split, test_fraction: float) -> np.ndarray:
        """The rows of a split, but of those with equal keys only the first."""
        if self.has_own_splits:
            is_chosen = self.split == (split == "test")
        else:
            is_test = self._keys < np.uint64(math.ceil(test_fraction * 2.0**64))  # as `split_of_key`
            is_chosen = (is_test == (split == "test")) & (self.split != OTHER_TASK)
        indices = np.flatnonzero(is_chosen)
        return indices[np.sort(np.unique(self._keys[indices], return_index=True)[1])]

    def check_not_empty(self, split: Split, test_fraction: float) -> None:
        """Raise a DataError if the split has no problem."""
        if not len(self._indices(split, test_fraction)):
            files, key = " and ".join(map(str, self._rows.paths)), "data.path"
            if split == "test":
                key = "data.test_path" if self.has_own_splits else "data.test_path, or raise data.test_fraction"
            raise DataError(
                f"{files}: none of {plural(len(self._rows), 'row')} is a problem of task {self.name!r} for "
                f"{'evaluation' if split == 'test' else 'training'}; name another file with {key}"
            )

    def make_prompt(self, item: Item, template: str = "base") -> str | list[Message]:
        prompt = item.prompt if isinstance(item, RowItem) else None
        return super().make_prompt(item, template) if prompt is None else prompt

    def difficulty(self, item: Item) -> float:
        """The difficulty that the row gives, else the task; NaN where neither can tell."""
        if isinstance(item, RowItem) and item.difficulty is not None:
            return item.difficulty
        try:
            return super().difficulty(item)
        except BrokenTaskError:  # the row lacks a column that the task's own problems have
            return math.nan

    def item_key(self, item: Item) -> str:
        return item.key if isinstance(item, RowItem) else super().item_key(item)

    def _items(self, indices: np.ndarray) -> Iterator[Item]:
        for start in range(0, len(indices), _BLOCK):
            block = indices[start : start + _BLOCK]
            for index, row in zip(block.tolist(), self._rows.take(block), strict=True):
                yield self._read(row, self._rows.place(index))

    def _read(self, row: Row, place: str) -> RowItem:
        item, difficulty = self._item(row), extra_info(row).get("difficulty")
        return RowItem(
            item.ground_truth,
            item.data,
            place,
            self._key(row, item),
            None if row.get("prompt") is None else read_prompt(row["prompt"]),
            difficulty if isinstance(difficulty, int | float) and abs(difficulty) <= sys.float_info.max else None,
        )

    def _item(self, row: Row) -> Item:
        item: Item | None
        try:
            own = {name: value for name, value in row.items() if name not in _FORMAT}
            item = Item(find_ground_truth(row), own)
        except DataError:
            item = self.read_row(row)
            if item is None:
                raise
        return replace(item, ground_truth=self.read_truth(item.ground_truth))

    def _key(self, row: Row, item: Item) -> str:
        """The key that the row or the task gives the problem, or else its prompt and ground truth."""
        key = extra_info(row).get("key")
        if isinstance(key, str) and key:
            return key
        if self._has_own_key:
            with contextlib.suppress(Exception):  # the row lacks a column that the task's own problems have
                key = self._hooks["item_key"](item)
                if isinstance(key, str):
                    return key
        prompt = row.get("prompt")
        text = json.dumps([prompt and read_prompt(prompt), item.ground_truth], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def _read_prompt(self, item: Item, row: Row) -> list[Message]:
        """A row's prompt; of a task that makes it, by the template `base`."""
        if row.get("prompt") is not None:
            return as_messages(read_prompt(row["prompt"]))
        try:
            prompt = as_messages(super().make_prompt(item))
        except BrokenTaskError as error:
            raise DataError(
                f"no prompt, and task {self.name!r} cannot make one of the columns {', '.join(row)}; "
                f"{missing('prompt', row)}"
            ) from error
        self.makes_prompts = True
        return prompt

    def _try_score(self, truth: Json) -> None:
        """Refuse a ground truth on which the scorer fails, of a task that does not say which it takes."""
        if self.plugin_manager.hook.is_valid.get_hookimpls() or self.info.unsafe_scorer:
            return
        try:
            self.score("0", truth)
        except Exception as error:  # the border to a task
            reason = describe_error(error)
            raise DataError(f"task {self.name!r} has no such ground truth: {str(truth)[:80]} ({reason})") from error

    def _refuse_overlap(self) -> None:
        train, test = np.flatnonzero(self.split == 0), np.flatnonzero(self.split == 1)
        shared, first, second = np.intersect1d(self._keys[train], self._keys[test], return_indices=True)
        if len(shared):
            there, here = self._rows.place(int(train[first[0]])), self._rows.place(int(test[second[0]]))
            raise DataError(
                f"{plural(len(shared), 'problem')} for training and held out as well, such as {there} and "
                f"{here}; remove them from one"
            )


def load_file_tasks(
    tasks: Mapping[str, Task],
    path: str | None,
    test_path: str | None = None,
    test_fraction: float = DEFAULT_TEST_FRACTION,
    columns: Mapping[str, str] | None = None,
) -> dict[str, FileTask]:
    """The tasks with the problems of files: the rows that name a task as their `data_source`.

    If no row names the only task, all are its.

    Args:
        tasks: by what the run calls them.
        path: rows for training, as `open_rows` takes it; the held-out ones too, where `test_path` is None.
        test_path: held-out rows.
        test_fraction: of the rows to hold out, where neither the files nor the rows say which.
        columns: as of `Rows`.

    Raises:
        DataError: a file or a row cannot be used, or a split has no problem; one line that names it.
    """
    splits = find_files(path) if path else {}
    train = splits.get("train") or splits.get("", [])
    if splits and not train:
        raise DataError(f"{path} has no train split; it has {', '.join(splits)}")
    if test_path:
        splits = find_files(test_path)
    test = next((splits[name] for name in HELD_OUT if name in splits), splits.get("", []) if test_path else [])
    if test_path and not test:
        raise DataError(
            f"{test_path} has no split that is held out ({', '.join(HELD_OUT)}); it has {', '.join(splits)}"
        )
    rows = Rows([*train, *test], columns)
    first_test = int(rows.starts[len(train)]) if test else None
    unnamed = [None] if len(tasks) == 1 else []
    file_tasks = {name: FileTask(task, rows, first_test, frozenset((name, *unnamed))) for name, task in tasks.items()}
    unused = np.flatnonzero(np.all([task.split == OTHER_TASK for task in file_tasks.values()], axis=0))
    if len(tasks) == 1 and len(unused) == len(rows):  # no row names the task, so all are meant
        file_tasks = {name: FileTask(task, rows, first_test) for name, task in tasks.items()}
    elif len(unused) and len(tasks) > 1:
        source = rows[int(unused[0])].get("data_source")
        raise DataError(
            f"{rows.place(int(unused[0]))}: the data_source {source!r} is none of the tasks {', '.join(tasks)} "
            f"({len(unused):,} such rows)"
        )
    elif len(unused):
        warn(f"{len(unused):,} of {len(rows):,} rows name another task than {', '.join(tasks)}, and are left out")
    for task in file_tasks.values():
        if path:
            task.check_not_empty("train", test_fraction)
        task.check_not_empty("test", test_fraction)
    return file_tasks
