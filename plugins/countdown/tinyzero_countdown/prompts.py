"""What a model is asked, in three forms."""

from collections.abc import Callable
from typing import Any

from tinyzero_countdown.scoring import RULE
from tinyzero_sdk import Item, TinyZeroError
from tinyzero_sdk.hookspecs import Message

_SYSTEM = (
    "You solve arithmetic puzzles. Think step by step between <think> and </think>, then write one expression"
    " between <answer> and </answer>."
)


def make_prompt(item: Item, template: str) -> str | list[Message]:
    """The prompt of an item.

    Args:
        item: a puzzle.
        template: `base`, text for a model that was never tuned on chats and goes on where the prompt stops;
            `chat`, messages; `compact`, as few tokens as can be, for a tiny model warm-started on it.

    Raises:
        TinyZeroError: there is no such template.

    Example:
        >>> make_prompt(Item({"target": 15, "numbers": [17, 5, 3]}), "compact")
        '17 5 3=15\\n'
    """
    if template not in _TEMPLATES:
        raise TinyZeroError(f"countdown has no prompt template {template!r}; it has {', '.join(_TEMPLATES)}")
    return _TEMPLATES[template](item.ground_truth)


def _puzzle(puzzle: dict[str, Any]) -> str:
    return f"Numbers: {', '.join(map(str, puzzle['numbers']))}. Target: {puzzle['target']}. {RULE}"


def _base(puzzle: dict[str, Any]) -> str:
    return (
        "A conversation between User and Assistant. The Assistant first thinks step by step between <think> and"
        " </think>, then gives one expression between <answer> and </answer>, such as <answer>(1 + 2) / 3</answer>.\n"
        f"User: {_puzzle(puzzle)}\n"
        "Assistant: <think>"
    )


def _chat(puzzle: dict[str, Any]) -> list[Message]:
    question = f"{_puzzle(puzzle)} Answer with one expression, such as <answer>(1 + 2) / 3</answer>."
    return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": question}]


def _compact(puzzle: dict[str, Any]) -> str:
    return f"{' '.join(map(str, puzzle['numbers']))}={puzzle['target']}\n"


_TEMPLATES: dict[str, Callable[[dict[str, Any]], str | list[Message]]] = {
    "base": _base,
    "chat": _chat,
    "compact": _compact,
}
