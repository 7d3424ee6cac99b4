"""The scorers that ours are compared with, by the names of our tasks.

TinyZero's rewards are our reimplementations: without the originals' random printing and their search for the
assistant's turn they are a little faster. reasoning-gym and math-verify are the published packages, if installed.
TinyZero's and reasoning-gym's evaluate answers to countdown: use them only on texts that this project generates.
"""

import importlib.metadata
import logging
import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from tinyzero_sdk import load_task

Reward = Callable[[str, Any], float]

_ANSWER = re.compile(r"<answer>(.*?)</answer>")


def tinyzero_countdown(completion: str, ground_truth: dict[str, Any]) -> float:
    """Last line, last tag, digits compared, characters filtered, eval."""
    found = list(_ANSWER.finditer(completion.split("\n")[-1]))
    if not found:
        return 0.0
    equation = found[-1].group(1).strip()
    if sorted(int(digits) for digits in re.findall(r"\d+", equation)) != sorted(ground_truth["numbers"]):
        return 0.1
    if not re.match(r"^[\d+\-*/().\s]+$", equation):
        return 0.1
    try:
        value = eval(equation, {"__builtins__": None}, {})
        return 1.0 if abs(value - ground_truth["target"]) < 1e-5 else 0.1
    except Exception:
        return 0.1


def tinyzero_multiply(completion: str, ground_truth: Any) -> float:
    """Last tag on one line, int()."""
    found = list(_ANSWER.finditer(completion))
    if not found:
        return 0.0
    try:
        number = int(found[-1].group(1).strip())
    except ValueError:
        return 0.0
    return 1.0 if number == int(_product(ground_truth)) else 0.1


def tinyzero_gsm8k(completion: str, ground_truth: Any) -> float:
    """What follows the first `####`, compared as a string."""
    found = re.search(r"#### (\-?[0-9\.\,]+)", completion)
    if found is None:
        return 0.0
    return 1.0 if found.group(1).replace(",", "") == str(ground_truth) else 0.0


def _product(ground_truth: Any) -> Any:
    return ground_truth["product"] if isinstance(ground_truth, dict) else ground_truth


TINYZERO: dict[str, Reward] = {
    "countdown": tinyzero_countdown,
    "multiply": tinyzero_multiply,
    "gsm8k": tinyzero_gsm8k,
}


def reasoning_gym() -> tuple[str, dict[str, Reward]]:
    """reasoning-gym's name and version, and its closest scorers.

    Without the package our reimplementation replaces that of countdown, and the other two are missing.
    """
    try:
        import reasoning_gym as package
        from reasoning_gym.utils import extract_answer
    except ImportError:
        return "reasoning-gym, reimplemented", {"countdown": reasoning_gym_countdown}

    def reward(name: str, entry: Callable[[Any], dict[str, Any]]) -> Reward:
        dataset = package.create_dataset(name, size=1, seed=0)
        return lambda completion, ground_truth: dataset.score_answer(extract_answer(completion), entry(ground_truth))

    return f"reasoning-gym {importlib.metadata.version('reasoning-gym')}", {
        "countdown": reward("countdown", lambda truth: {"metadata": truth}),
        "multiply": reward("products", lambda truth: {"answer": str(_product(truth))}),
        "gsm8k": reward("gsm_symbolic", lambda truth: {"answer": str(truth)}),
    }


def reasoning_gym_countdown(completion: str, ground_truth: dict[str, Any]) -> float:
    """Our reimplementation of reasoning-gym's countdown scorer, which passes the answer to sympy's parser."""
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


def math_verify() -> tuple[str, dict[str, Reward]]:
    """math-verify's name and version, and `verify(parse(gold), parse(answer))`; nothing without the package.

    It does not know the answer tags, so it gets the answer that our task extracts. It compares values, so in countdown
    it cannot know which numbers were given.
    """
    try:
        from math_verify import parse, verify
    except ImportError:
        return "math-verify", {}
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it logs every timeout

    def make_reward(name: str, gold_of: Callable[[Any], Any]) -> Reward:
        extract_answer, parse_gold = load_task(name).extract_answer, cache(parse)

        def reward(completion: str, ground_truth: Any) -> float:
            answer = extract_answer(completion)
            return 0.0 if answer is None else float(verify(parse_gold(str(gold_of(ground_truth))), parse(answer)))

        return reward

    gold = {"countdown": lambda truth: truth["target"], "multiply": _product, "gsm8k": lambda truth: truth}
    name = f"math-verify {importlib.metadata.version('math-verify')}"
    return name, {task: make_reward(task, gold_of) for task, gold_of in gold.items()}
