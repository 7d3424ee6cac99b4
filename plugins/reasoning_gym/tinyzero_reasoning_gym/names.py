"""The names of reasoning-gym's datasets, read from its source files: importing it to ask would take a second."""

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

# A module registers its dataset under a constant or, rarely, under a text.
_CONSTANT = re.compile(r'^(\w+) = "(\w+)"', re.MULTILINE)
_REGISTERED = re.compile(r'^register_dataset\(\s*(?:"(\w+)"|(\w+)),', re.MULTILINE)


@cache
def find_names() -> tuple[str, ...]:
    """The names in alphabetical order; none where reasoning-gym is not installed."""
    spec = find_spec("reasoning_gym")
    if spec is None or spec.origin is None:
        return ()
    return tuple(sorted(name for file in Path(spec.origin).parent.rglob("*.py") for name in _names_in(file)))


def _names_in(file: Path) -> list[str]:
    text = file.read_text(encoding="utf-8")
    registered = _REGISTERED.findall(text)
    constants = dict(_CONSTANT.findall(text)) if registered else {}
    return [literal or constants[constant] for literal, constant in registered if literal or constant in constants]
