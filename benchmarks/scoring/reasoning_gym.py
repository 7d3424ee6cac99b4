"""reasoning-gym's closest scorers: countdown, products, gsm_symbolic; from the published package, if installed.

The first passes the answer to sympy's parser, which calls eval: use it only on texts that this project generates.
Without the package our reimplementation replaces it, and the other two are missing.
"""

import importlib.metadata
import math
import re
from collections.abc import Callable
from typing import Any

Reward = Callable[[str, Any], float]


def rewards() -> tuple[str, dict[str, Reward]]:
    """The package's name and version, and its rewards by the names of our tasks."""
    try:
        import reasoning_gym
    except ImportError:
        return "reasoning-gym, reimplemented", {"countdown": countdown}
    published = (
        _reward(reasoning_gym.create_dataset(name, size=1, seed=0), entry)
        for name, entry in (
            ("countdown", lambda truth: {"metadata": truth}),
            ("products", lambda truth: {"answer": str(truth["product"] if isinstance(truth, dict) else truth)}),
            ("gsm_symbolic", lambda truth: {"answer": str(truth)}),
        )
    )
    name = f"reasoning-gym {importlib.metadata.version('reasoning-gym')}"
    return name, dict(zip(("countdown", "multiply", "gsm8k"), published, strict=True))


def _reward(dataset: Any, entry: Callable[[Any], dict[str, Any]]) -> Reward:
    from reasoning_gym.utils import extract_answer

    return lambda completion, ground_truth: dataset.score_answer(extract_answer(completion), entry(ground_truth))


def countdown(completion: str, ground_truth: dict[str, Any]) -> float:
    """Our reimplementation of its countdown scorer."""
    from sympy.parsing.sympy_parser import parse_expr

    found = re.findall(r"<answer>\s?(.*?)\s?</answer>", completion, re.DOTALL)
    if not found or not found[-1].strip():
        return 0.01
    try:
        value = float(parse_expr(found[-1]))
        if sorted(map(int, re.findall(r"\b\d+\b", found[-1]))) != sorted(ground_truth["numbers"]):
            return 0.05
        return 1.0 if math.isclose(value, ground_truth["target"], rel_tol=1e-5, abs_tol=1e-6) else 0.05
    except Exception:
        return 0.01
