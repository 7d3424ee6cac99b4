"""Difficulties are found for all problems of a step at once, where the task can, and are those of each by itself."""

from types import SimpleNamespace

import pytest

from tinyzero_sdk import Item, ItemColumns, Score, load_task
from tinyzero_trainer.controller import step_metrics
from tinyzero_trainer.types import Generation, Prompt, Rollout


def sample(prompt: Prompt, *, correct: bool) -> Rollout:
    return Rollout(prompt, Generation([1], None, True), "", Score(float(correct), correct))


def test_each_problem_is_looked_at_once(toy_task: str) -> None:
    task, asked = load_task(toy_task), []
    prompts = [
        Prompt(Item({"sum": 3}, {"numbers": [1, 2]}), "", [1]),
        Prompt(Item({"sum": 31}, {"numbers": [1, 30]}), "", [1]),
    ]
    difficulty = task.difficulty
    task.difficulty = lambda item: (asked.append(item), difficulty(item))[1]
    samples = [sample(prompts[row % 2], correct=row < 3) for row in range(8)]
    assert step_metrics._by_difficulty(task, samples, "acc") == {"acc/0": 0.5, "acc/3": 0.25}
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("truths", "columns"),
    [([{"a": 1}, {"a": 2}], True), ([{"a": 1}, {"b": 2}], False), ([1, "x"], False), ([1, 2.5], False)],
    ids=["alike", "other fields", "other types", "other numbers"],
)
def test_columns_are_taken_only_where_they_hold_the_items_as_they_are(truths: list, columns: bool) -> None:
    items, given = [Item(truth, {"n": 1}) for truth in truths], []
    task = SimpleNamespace(difficulties=lambda items: (given.append(items), [1, 2])[1])
    samples = [sample(Prompt(item, "", [1]), correct=True) for item in items]
    assert step_metrics._by_difficulty(task, samples, "acc") == {"acc/1": 1.0, "acc/2": 1.0}
    assert isinstance(given[0], ItemColumns) == columns
    assert list(given[0]) == items
