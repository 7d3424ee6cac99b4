"""The row format of data files, which TinyZero and verl read: rows of plain JSON to and from `Item`.

`files.py` reads and writes whole files.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tinyzero_sdk.errors import DataError
from tinyzero_sdk.hookspecs import Message
from tinyzero_sdk.records import Item, Json, Split

if TYPE_CHECKING:
    from tinyzero_sdk.tasks.task import Task

ROW_COLUMNS = ("data_source", "prompt", "ability", "reward_model", "extra_info")
"""The columns every data file has; all others are the task's own."""

NO_COMPLETION = "no completion; expected a string in the column `completion`"
NO_GROUND_TRUTH = "no ground truth; expected it in the column `ground_truth`, or in `reward_model`"


def item_to_row(task: "Task", item: Item, *, index: int, split: Split, template: str = "base") -> dict[str, Json]:
    """One problem as a row.

    Raises:
        DataError: the item is not plain JSON, or its own columns hide one of `ROW_COLUMNS`.
    """
    return make_row(
        task,
        plain(item.ground_truth),
        plain(item.data),
        prompt=as_messages(task.make_prompt(item, template)),
        index=index,
        split=split,
        difficulty=task.difficulty(item),
        key=task.item_key(item),
    )


def make_row(
    task: "Task",
    ground_truth: Json,
    data: Mapping[str, Json],
    *,
    prompt: list[Message],
    index: int,
    split: Split,
    difficulty: float,
    key: str,
) -> dict[str, Json]:
    check_own_columns(task.name, data)
    return {
        "data_source": task.name,
        "prompt": prompt,
        "ability": task.info.ability,
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": {
            "index": index,
            "split": split,
            "difficulty": difficulty if math.isfinite(difficulty) else None,
            "key": key,
            "task_version": task.version,
        },
        **data,
    }


def check_own_columns(task_name: str, data: Mapping[str, Any]) -> None:
    """Refuse a task's own column that would hide one of `ROW_COLUMNS`."""
    taken = [name for name in data if name in ROW_COLUMNS]
    if taken:
        raise DataError(f"task {task_name} has its own column {taken[0]!r}, a name of the row format; rename it")


def row_to_item(row: Mapping[str, Any]) -> Item:
    """The problem in a row, also with numpy arrays inside, as TinyZero and verl write it.

    Raises:
        DataError: the row has no ground truth, or a value that JSON cannot hold.
    """
    own = {name: plain(value) for name, value in row.items() if name not in (*ROW_COLUMNS, "ground_truth")}
    return Item(ground_truth_of(row), own)


def ground_truth_of(row: Mapping[str, Any]) -> Json:
    """The ground truth in a row: of its column `ground_truth`, else of `reward_model`.

    Raises:
        DataError: there is none, or it is not plain JSON.
    """
    return plain(find_ground_truth(row))


def find_ground_truth(row: Mapping[str, Any]) -> Any:
    """The ground truth of a row that is plain JSON; a DataError if there is none."""
    truth = row.get("ground_truth")
    if truth is None and isinstance(row.get("reward_model"), Mapping):
        truth = row["reward_model"].get("ground_truth")
    if truth is None:
        raise DataError(NO_GROUND_TRUTH)
    return truth


def as_messages(prompt: str | list[Message]) -> list[Message]:
    """A prompt as chat messages; bare text is one message of the user."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def is_prompt(value: Json) -> bool:
    """Whether it is text or chat messages, and not empty."""
    return bool(value) and (isinstance(value, str) or (isinstance(value, list) and all(map(_is_message, value))))


def _is_message(value: Json) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def plain(value: Any) -> Json:
    """`value` as plain JSON: numpy arrays and tuples become lists, numpy scalars become numbers.

    Raises:
        DataError: JSON has no such value.

    Example:
        >>> import numpy as np
        >>> plain({"numbers": np.array([3, 4]), "target": np.int64(7)})
        {'numbers': [3, 4], 'target': 7}
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        listed = value.tolist()
        if type(listed) is not type(value):  # a datetime64 stays what it is
            return plain(listed)
    raise DataError(f"a value is of type {type(value).__name__}; expected plain JSON (text, numbers, lists, dicts)")
