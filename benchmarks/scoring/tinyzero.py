"""Our reimplementations of TinyZero's rewards.

Without the originals' random printing and their search for the assistant's turn they are a little faster. The first
evaluates the answer: use it only on texts that this project generates.
"""

import re
from typing import Any

ANSWER = re.compile(r"<answer>(.*?)</answer>")


def countdown(completion: str, ground_truth: dict[str, Any]) -> float:
    """Last line, last tag, digits compared, characters filtered, eval."""
    found = list(ANSWER.finditer(completion.split("\n")[-1]))
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


def multiply(completion: str, ground_truth: Any) -> float:
    """Last tag on one line, int()."""
    found = list(ANSWER.finditer(completion))
    if not found:
        return 0.0
    try:
        number = int(found[-1].group(1).strip())
    except ValueError:
        return 0.0
    product = ground_truth["product"] if isinstance(ground_truth, dict) else ground_truth
    return 1.0 if number == int(product) else 0.1


def gsm8k(completion: str, ground_truth: Any) -> float:
    """What follows the first `####`, compared as a string."""
    found = re.search(r"#### (\-?[0-9\.\,]+)", completion)
    if found is None:
        return 0.0
    return 1.0 if found.group(1).replace(",", "") == str(ground_truth) else 0.0


REWARDS = {"countdown": countdown, "multiply": multiply, "gsm8k": gsm8k}
