"""Gold completions, cut at their answer so that another can replace it, and the test completions made of them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from tinyzero_sdk.errors import BrokenTaskError
from tinyzero_sdk.records import Item, Json
from tinyzero_sdk.tasks.task import Task

_CLOSED = {">": "<", "}": "}", "{": "}", "(": ")", "[": "]", "*": "*", "`": "`"}
LONG = 20_000  # longer texts are recognized by their hash, not kept


@dataclass(frozen=True, slots=True)
class TestCompletion:
    __test__: ClassVar[bool] = False  # pytest collects no tests from it

    completion: str
    ground_truth: Json
    note: str = ""
    """How it was made, where that is hard to see."""

    right: bool | None = None
    """Whether it solves the problem; None if unknown."""

    @property
    def key(self) -> tuple[object, str]:
        """What identifies the completion and its ground truth."""
        text = self.completion
        return text if len(text) <= LONG else (len(text), hash(text)), json.dumps(self.ground_truth, sort_keys=True)

    def __repr__(self) -> str:
        text = self.completion
        shown = ascii(text if len(text) <= 200 else f"{text[:100]} … {text[-100:]}")
        return f"TestCompletion({shown}, {self.ground_truth!r}, {self.note!r}, right={self.right})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Called by hypothesis, which otherwise prints a megabyte."""
        printer.text(repr(self))


@dataclass(frozen=True, slots=True)
class Gold:
    """A gold completion, cut at its answer."""

    item: Item
    before: str
    answer: str
    """What `extract_answer` finds in the completion."""

    after: str

    @property
    def completion(self) -> str:
        """The whole text, as the task's `solve` returned it."""
        return self.before + self.answer + self.after

    @property
    def is_closed(self) -> bool:
        """Whether marks stand on both sides of the answer, so that spaces within them belong to neither."""
        return bool(self.before and self.after) and _CLOSED.get(self.before[-1]) == self.after[0]

    def with_answer(self, answer: str) -> str:
        return self.before + answer + self.after

    def sample(self, completion: str, note: str = "", *, right: bool | None = None) -> TestCompletion:
        return TestCompletion(completion, self.item.ground_truth, note, right)


def find_gold(task: Task, item: Item) -> Gold | None:
    """The item's gold completion, or None if the task has no `solve`.

    Raises:
        BrokenTaskError: the gold completion does not contain the answer that the task extracts from it.
    """
    completion = task.solve(item)
    if completion is None:
        return None
    gold = cut_at_answer(task, item, completion)
    if gold is None:
        raise BrokenTaskError(
            f"task {task.name!r}: extract_answer found {task.extract_answer(completion)!r} in the gold completion "
            f"{completion!r}; expected a part of that text, so that the answer can be cut out of it; "
            "return the answer as the completion spells it, and normalize it in `score`"
        )
    return gold


def cut_at_answer(task: Task, item: Item, completion: str) -> Gold | None:
    """The completion, cut at the answer that the task extracts from it; None if it does not contain that."""
    answer = task._call("extract_answer", completion, function=task.extract_answer)  # one line for what it raises
    before, inside, after = completion.rpartition(answer) if answer else ("", "", "")
    return Gold(item, before, inside, after) if inside else None


def golds(task: Task, count: int, *, seed: int = 0) -> Iterator[Gold]:
    """The gold completions of the first `count` training items."""
    for item in task.dataset("train", count, seed=seed):
        gold = find_gold(task, item)
        if gold is not None:
            yield gold
