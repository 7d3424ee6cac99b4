"""The row format of data files, which TinyZero and verl read: rows of plain JSON to and from `Item`.

`files.py` reads and writes whole files.
"""

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinyzero_sdk.errors import DataError, did_you_mean
from tinyzero_sdk.hookspecs import Message
from tinyzero_sdk.records import Item, Json, Split

if TYPE_CHECKING:
    from tinyzero_sdk.tasks.task import Task

ROW_COLUMNS = ("data_source", "prompt", "ability", "reward_model", "extra_info")
"""The columns every data file has; all others are the task's own."""

HELD_OUT = ("test", "validation", "valid", "val", "dev")
"""Names of splits that are never trained on; of a folder's, the first is the held-out one."""

ROLES = ("system", "developer", "user", "assistant", "tool")
_MESSAGES = re.compile(r"\s*(?:array\()?\[\s*\{\s*['\"](?:role|content)['\"]\s*:")  # as JSON, or as Python writes them

OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "completion": ("completions", "response", "responses", "generation", "generations", "output", "outputs"),
    "ground_truth": ("target", "answer", "solution", "final_answer"),
    "prompt": ("question", "problem", "query"),
}
"""What other data sets call our columns: users map them, and a folder of `datasets` is read by them."""

_EXPECTED = {
    "completion": "no completion; expected a string in the column `completion`",
    "ground_truth": "no ground truth; expected it in the column `ground_truth`, or in `reward_model`",
    "prompt": "expected text or chat messages in the column `prompt`",
}


def item_to_row(
    task: "Task",
    item: Item,
    *,
    index: int,
    split: Split,
    template: str = "base",
    prompt: list[Message] | None = None,
    difficulty: float | None = None,
    key: str | None = None,
) -> dict[str, Json]:
    """One problem as a row; the task gives the prompt, by the template, the difficulty and the key that are None.

    Raises:
        DataError: the item is not plain JSON, or its own columns hide one of `ROW_COLUMNS`.
    """
    check_own_columns(task.name, item.data)
    difficulty = task.difficulty(item) if difficulty is None else difficulty
    return {
        "data_source": task.name,
        "prompt": as_messages(task.make_prompt(item, template)) if prompt is None else prompt,
        "ability": task.info.ability,
        "reward_model": {"style": "rule", "ground_truth": plain(item.ground_truth)},
        "extra_info": {
            "index": index,
            "split": split,
            "difficulty": difficulty if math.isfinite(difficulty) else None,
            "key": task.item_key(item) if key is None else key,
            "task_version": task.version,
        },
        **plain(item.data),
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
    if truth is None:
        truth = read_object(row.get("reward_model")).get("ground_truth")
    if truth is None:
        raise DataError(missing("ground_truth", row))
    return truth


def missing(name: str, names: Collection[str]) -> str:
    """The message where one of our columns is missing: which of a row's `names` may be it."""
    other = next((other for other in OTHER_NAMES[name] if other in names), None)
    if other is None:
        return _EXPECTED[name]
    return f"{_EXPECTED[name]}; if `{other}` has it: data.columns.{name}={other} (score: --column {name}={other})"


def renamed(row: Mapping[str, Json], columns: Mapping[str, str]) -> dict[str, Json]:
    """The row with further names of its columns or their fields: theirs by ours."""
    cells = {}
    for ours, theirs in columns.items():
        name, _, inner = theirs.partition(".")
        cells[ours] = read_object(row.get(name)).get(inner) if inner else row.get(name)
    return {**row, **cells}


def check_columns(columns: Mapping[str, str], names: Collection[str], path: Path) -> None:
    """Refuse a mapping to columns that a file does not have."""
    for name in (theirs.partition(".")[0] for theirs in columns.values()):
        if name not in names:
            raise DataError(f"{path} has no column {name!r}; {did_you_mean(name, names)}it has {', '.join(names)}")


def read_object(cell: Json) -> Mapping[str, Json]:
    """A cell's object, which may be JSON text; empty where it holds another value.

    Example:
        >>> read_object('{"split": "test"}'), read_object(None), read_object("page 3")
        ({'split': 'test'}, {}, {})
    """
    if isinstance(cell, str) and cell.lstrip().startswith("{"):
        try:
            cell = json.loads(cell)
        except (ValueError, RecursionError):
            return {}
    return cell if isinstance(cell, Mapping) else {}


def extra_info(row: Mapping[str, Json]) -> Mapping[str, Json]:
    """What a row says of its problem; refuses an object as Python writes it, which may say that the row is held out."""
    cell = row.get("extra_info")
    info = read_object(cell)
    if not info and isinstance(cell, str) and cell.lstrip().startswith("{") and cell.strip() != "{}":
        raise DataError(f"extra_info is {cell[:60]!r}, which is not JSON; write an object, or one as JSON text")
    return info


def is_held_out(row: Mapping[str, Json]) -> bool:
    """Whether a row says that it is never to be trained on, in `extra_info.split` or in a column `split`."""
    return str(extra_info(row).get("split") or row.get("split")).lower() in HELD_OUT


def as_messages(prompt: str | list[Message]) -> list[Message]:
    """A prompt as chat messages; bare text is one message of the user."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def read_prompt(prompt: Json) -> str | list[Message]:
    """A prompt of a file as text or as messages, which may be JSON text.

    Raises:
        DataError: it is neither, is empty, or ends in the assistant's turn.
    """
    if isinstance(prompt, str) and not _MESSAGES.match(prompt):
        if not prompt:
            raise DataError("the prompt is empty")
        return prompt
    messages = read_messages(prompt)
    if messages[-1]["role"] == "assistant":
        raise DataError(
            "the prompt ends in a message of the assistant (a prefill), which a chat template closes, and the model "
            "would begin another turn; leave it out, or write the whole prompt as text"
        )
    return messages


def read_messages(value: Json) -> list[Message]:
    """Chat messages of a file, which may be JSON text, with what else they hold and a table has not filled with null.

    Raises:
        DataError: they are none.
    """
    if isinstance(value, str) and _MESSAGES.match(value):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise DataError(
                f"got {value[:60]!r}, messages as Python writes them; write a list, or one as JSON text"
            ) from None
    for message in value if isinstance(value, list) else ():
        if isinstance(message, Mapping) and (message.get("tool_calls") or message.get("function_call")):
            raise DataError("a message calls a tool, which is learned as text only; write the call into its content")
    if not isinstance(value, list) or not value or not all(map(_is_message, value)):
        raise DataError(f"got {value!r:.80}, expected text, or messages with role and content")
    for message in value:
        if message["role"] not in ROLES:
            raise DataError(f"a message has the role {message['role']!r:.40}, expected one of {', '.join(ROLES)}")
    return [{name: cell for name, cell in message.items() if cell is not None} for message in value]


def _is_message(value: Json) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def plain(value: Any) -> Json:
    """`value` as plain JSON: numpy arrays and tuples (and nodes of OmegaConf) become lists, numpy scalars numbers.

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
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        return [plain(entry) for entry in value]
    if isinstance(value, Decimal):
        return number(value)
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        listed = value.tolist()
        if type(listed) is not type(value):  # a datetime64 stays what it is
            return plain(listed)
    raise DataError(f"a value is of type {type(value).__name__}; expected plain JSON (text, numbers, lists, dicts)")


def number(value: Decimal) -> int | float:
    """A decimal as JSON has numbers."""
    return int(value) if value == value.to_integral_value() else float(value)
