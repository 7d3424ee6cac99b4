"""Gold completions, and the place in them where the answer stands, so that another can be put there."""

from collections.abc import Iterator
from dataclasses import dataclass

from tinyzero_sdk.errors import BrokenTaskError
from tinyzero_sdk.records import Item
from tinyzero_sdk.tasks.task import Task


@dataclass(frozen=True, slots=True)
class Gold:
    """A gold completion, cut at its answer."""

    item: Item
    """The problem it solves."""

    before: str
    """The text before the answer."""

    answer: str
    """What `extract_answer` finds in it."""

    after: str
    """The text after the answer."""

    @property
    def completion(self) -> str:
        """The whole text, as the task's `solve` gave it."""
        return self.before + self.answer + self.after

    def with_answer(self, answer: str) -> str:
        """The same text with another answer in the place of gold's."""
        return self.before + answer + self.after


def find_gold(task: Task, item: Item) -> Gold | None:
    """The item's gold completion, or None where the task has no `solve`.

    Raises:
        BrokenTaskError: the answer that the task extracts from it does not stand in it.
    """
    completion = task.solve(item)
    if completion is None:
        return None
    answer = task.extract_answer(completion)
    before, found, after = completion.rpartition(answer) if answer else ("", "", "")
    if not found:
        raise BrokenTaskError(
            f"task {task.name!r}: extract_answer found {answer!r} in the gold completion {completion!r}; "
            "expected a text that stands in it, so that the answer can be told from what is around it"
        )
    return Gold(item, before, found, after)


def golds(task: Task, count: int, *, seed: int = 0) -> Iterator[Gold]:
    """The gold completions of the first `count` training items."""
    for item in task.dataset("train", count, seed=seed):
        gold = find_gold(task, item)
        if gold is not None:
            yield gold
