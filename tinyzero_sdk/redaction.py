"""Keys of services: what environment variables hold whose names say so. No file, log or message has their values."""

import os
import re

_VARIABLE = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS)$", re.IGNORECASE)
_SETTING = re.compile(
    r"(?:^|_)(?:(?:api|access|secret|private)_?key|(?:api|auth|access|bearer|hf|hub)_?token|secret|password|passwd)$",
    re.IGNORECASE,
)
_SHORTEST = 8  # a shorter value may stand anywhere by chance


def redact(text: str) -> str:
    """The text with `…` for each key of the environment."""
    for name, value in sorted(os.environ.items(), key=lambda variable: -len(variable[1])):  # one may hold another
        if len(value) >= _SHORTEST and value in text and _VARIABLE.search(name):
            text = text.replace(value, "…")
    return text


def is_secret(name: str, value: object) -> bool:
    """Whether a setting holds a key, by its name or because the environment has the same value.

    Example:
        >>> is_secret("api_key", "sk-1"), is_secret("api_key", ""), is_secret("stop_token", "</s>")
        (True, False, False)
    """
    text = value if isinstance(value, str) else repr(value)
    return (isinstance(value, str) and bool(value) and _SETTING.search(name) is not None) or redact(text) != text
