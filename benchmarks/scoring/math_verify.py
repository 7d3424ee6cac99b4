"""math-verify as a reward: `verify(parse(gold), parse(answer))`, from the published package, if installed.

It does not know the answer tags, so it gets the answer that our task extracts. It compares values, so in countdown it
cannot know which numbers were given.
"""

import importlib.metadata
import logging
from collections.abc import Callable
from functools import cache
from typing import Any

from tinyzero_sdk import load_task

Reward = Callable[[str, Any], float]

_GOLD: dict[str, Callable[[Any], Any]] = {
    "countdown": lambda truth: truth["target"],
    "multiply": lambda truth: truth["product"] if isinstance(truth, dict) else truth,
    "gsm8k": lambda truth: truth,
}


def rewards() -> tuple[str, dict[str, Reward]]:
    """The package's name and version, and its rewards by the names of our tasks: none without the package."""
    try:
        import math_verify  # noqa: F401
    except ImportError:
        return "math-verify", {}
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it logs every timeout
    return f"math-verify {importlib.metadata.version('math-verify')}", {name: _reward(name) for name in _GOLD}


def _reward(name: str) -> Reward:
    from math_verify import parse, verify

    extract_answer, gold_of, parse_gold = load_task(name).extract_answer, _GOLD[name], cache(parse)

    def reward(completion: str, ground_truth: Any) -> float:
        answer = extract_answer(completion)
        return 0.0 if answer is None else float(verify(parse_gold(str(gold_of(ground_truth))), parse(answer)))

    return reward
