"""Ground truths with other numbers, whatever their form: any JSON.

Whether a task has such a problem is unknown here: callers let the task solve it.
"""

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from tinyzero_sdk.records import Json
from tinyzero_sdk.testing.grammar import Choose

Path = tuple[Any, ...]
"""Keys and indices from the root of a ground truth to a value."""


def numbers_in(truth: Json) -> list[str]:
    """The numbers in a ground truth, as they are written."""
    return re.findall(r"[0-9]+(?:\.[0-9]+)?", json.dumps(truth))[:100]


def integers(value: Json, path: Path = ()) -> Iterator[tuple[Path, int]]:
    """The integers in a ground truth, each with its path; a bare number is not one of them."""
    if isinstance(value, int) and not isinstance(value, bool):
        if path:
            yield path, value
        return
    for key, entry in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from integers(entry, (*path, key))


def entries(truth: Json) -> Iterator[tuple[Path, int]]:
    """Those of them that are in a list with others."""
    for path, number in integers(truth):
        holder = _get(truth, path[:-1])
        if isinstance(holder, list) and len(holder) > 1:
            yield path, number


def with_number(truth: Json, path: Path, number: int) -> Json:
    truth = deepcopy(truth)
    _get(truth, path[:-1])[path[-1]] = number
    return truth


def without(truth: Json, path: Path) -> Json:
    truth = deepcopy(truth)
    del _get(truth, path[:-1])[path[-1]]
    return truth


def coincides(truth: Json) -> bool:
    """Whether two fields hold the same number, such as a target that is among the numbers."""
    fields = (
        [{number for _, number in integers([value])} for value in truth.values()] if isinstance(truth, dict) else []
    )
    return sum(map(len, fields)) > len(set().union(*fields))


def nudge(truth: Json, choose: Choose) -> Json:
    """A ground truth with one or two of its numbers changed, or an entry of a list gone.

    Example:
        >>> nudge({"target": 24, "numbers": [3, 8, 1]}, lambda count: 1)
        {'target': 24, 'numbers': [1, 8, 1]}
    """
    for _ in range(1 + choose(2)):
        places = list(integers(truth))
        if not places:
            return truth
        path, value = places[choose(len(places))]
        if any(path == entry for entry, _ in entries(truth)) and choose(7) == 0:
            truth = without(truth, path)
            continue
        near = (1, 1, 2, value + 1, value - 1, value // 2, 10 * value, 99, 1000)
        chosen = near[choose(len(near))] if choose(2) else places[choose(len(places))][1]
        truth = with_number(truth, path, max(chosen, 1) if value > 0 else chosen)
    return truth


def fit(truth: Json, answer: str, value: int, choose: Choose) -> Json | None:
    """The ground truth with `value` in the place of a number that the answer does not name; None where it names all."""
    named = set(re.findall(r"[0-9]+", answer))
    paths = [path for path, number in integers(truth) if str(number) not in named]
    return with_number(truth, paths[choose(len(paths))], value) if paths else None


def _get(value: Json, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value
