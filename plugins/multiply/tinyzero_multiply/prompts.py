"""What a model is asked, in three forms."""

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.hookspecs import Message

RULE = "The answer is one whole number between <answer> and </answer>, such as <answer>1234</answer>."
"""What `score` checks, as every prompt but the compact one says it."""


def make_prompt(num1: int, num2: int, template: str) -> str | list[Message]:
    """The prompt of a problem.

    Args:
        num1: first factor.
        num2: second factor.
        template: `base`, text for a model that was never tuned on chats and goes on where the prompt stops;
            `chat`, messages; `compact`, as few tokens as can be, for a tiny model warm-started on it.

    Raises:
        SettingsError: there is no such template.

    Example:
        >>> make_prompt(12, 34, "compact")
        '12*34\\n'
    """
    question = f"What is {num1} × {num2}?"
    match template:
        case "base":
            return (
                "A conversation between User and Assistant. The Assistant first thinks step by step between <think> "
                f"and </think>. {RULE}\nUser: {question}\nAssistant: <think>"
            )
        case "chat":
            return [{"role": "user", "content": f"{question} Think step by step. {RULE}"}]
        case "compact":
            return f"{num1}*{num2}\n"
    raise SettingsError(f"multiply has no prompt template {template!r}; it has base, chat, compact")
