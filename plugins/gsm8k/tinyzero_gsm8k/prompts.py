"""What a model is asked, in three forms."""

from collections.abc import Callable

from tinyzero_sdk import Item
from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.hookspecs import Message

RULE = "The answer is a number alone between <answer> and </answer>, such as <answer>42</answer>."


def make_prompt(item: Item, template: str) -> str | list[Message]:
    """The prompt of an item.

    Args:
        item: a problem.
        template: `base`, text for a model that was never tuned on chats and goes on where the prompt stops;
            `chat`, messages; `compact`, the question alone.

    Raises:
        SettingsError: there is no such template.

    Example:
        >>> make_prompt(Item("3", {"question": "What is 1 + 2?"}), "compact")
        'What is 1 + 2?\\n'
    """
    if template not in _TEMPLATES:
        raise SettingsError(f"gsm8k has no prompt template {template!r}; it has {', '.join(_TEMPLATES)}")
    return _TEMPLATES[template](item.data["question"])


def _base(question: str) -> str:
    return (
        "A conversation between User and Assistant. The Assistant first thinks step by step between <think> "
        f"and </think>. {RULE}\nUser: {question}\nAssistant: <think>"
    )


def _chat(question: str) -> list[Message]:
    return [{"role": "user", "content": f"{question}\n\nThink step by step. {RULE}"}]


_TEMPLATES: dict[str, Callable[[str], str | list[Message]]] = {
    "base": _base,
    "chat": _chat,
    "compact": "{}\n".format,
}
