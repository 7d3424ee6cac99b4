"""The parts of a reward that a task declares: their check, and the weights that users set."""

import keyword
import math
from collections.abc import Mapping
from dataclasses import asdict, make_dataclass, replace
from typing import Any

from tinyzero_sdk.errors import BrokenTaskError, SettingsError
from tinyzero_sdk.records import TASK_PART, RewardPart, TaskInfo
from tinyzero_sdk.settings import build

_GREATEST = 1e15  # of a reward: its square still fits the trainer's 32-bit floats


def check_parts(info: TaskInfo) -> None:
    """
    Raises:
        BrokenTaskError: the declaration cannot be used.
    """
    if not isinstance(info.parts, Mapping):
        raise BrokenTaskError(f"info() has parts {info.parts!r}, expected a mapping from names to RewardPart")
    for name, part in info.parts.items():
        if not _is_name(name):
            raise BrokenTaskError(f"info() has a part {name!r}; expected a name such as format, and not {TASK_PART!r}")
        if not (isinstance(part, RewardPart) and _is_number(part.weight)):
            raise BrokenTaskError(f"info() has {part!r} as part {name}, expected a RewardPart with a finite weight")
        check_range(f"part {name} of range", part.range)
    if info.parts and not any(part.weight for part in info.parts.values()):
        raise BrokenTaskError("info() has parts whose weights are all 0, so that nothing is rewarded")


def check_range(what: str, bounds: Any) -> None:
    """
    Raises:
        BrokenTaskError: these are not the least and the greatest value of something that may be 0.
    """
    if isinstance(bounds, tuple | list) and len(bounds) == 2 and all(map(_is_number, bounds)):
        low, high = bounds
        if low <= 0 <= high and low < high and math.isfinite(high - low):
            return
    raise BrokenTaskError(f"info() has {what} {bounds}, expected two finite bounds around 0, the score of no answer")


def weighted(info: TaskInfo, weights: Any) -> TaskInfo:
    """The info with the weights that the options set, and the range of the sum.

    Raises:
        SettingsError: a part is unknown, or a weight is none.
    """
    if not isinstance(weights, Mapping):
        raise SettingsError(f"task.weights: got {weights!r}, expected a weight for each part, task.weights.NAME=…")
    defaults = [(name, float, part.weight) for name, part in info.parts.items()]
    chosen = asdict(build(make_dataclass("Weights", defaults, frozen=True), weights, prefix="task.weights."))
    parts = {name: replace(part, weight=chosen[name]) for name, part in info.parts.items()}
    ends = [sorted(part.weight * bound for bound in part.range) for part in parts.values()]
    low, high = (sum(end[side] for end in ends) for side in (0, 1))
    if not (low < high and low > -_GREATEST and high < _GREATEST):
        raise SettingsError(
            f"task.weights: got {chosen}, with which the reward is from {low:g} to {high:g}; expected finite weights, "
            f"not all of them 0, and rewards below {_GREATEST:g}"
        )
    return replace(info, parts=parts, score_range=(low, high))


def _is_name(name: Any) -> bool:
    is_word = isinstance(name, str) and name.isascii() and name.isidentifier() and not name.startswith("_")
    return is_word and not keyword.iskeyword(name) and name != TASK_PART


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
