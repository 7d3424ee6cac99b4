"""Multiplication of n-digit numbers: the hooks of the task `multiply`.

How an answer is read is in `integers.py`, the worked solution in `long_multiplication.py`.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le

from tinyzero_multiply.integers import read_integer, spells
from tinyzero_multiply.long_multiplication import work_out
from tinyzero_sdk import Item, Score, TaskInfo, hookimpl
from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.hookspecs import Message
from tinyzero_sdk.records import Split
from tinyzero_sdk.seeds import derive_seed, integers_from_bits, random_bits
from tinyzero_sdk.text import last_tagged

FORMAT_REWARD = 0.1
ANSWER_RULE = "The answer is one whole number between <answer> and </answer>, such as <answer>1234</answer>."

Digits = Annotated[int, Ge(1), Le(9)]  # the product of two such numbers fits 64 bits


@dataclass(frozen=True)
class MultiplyOptions:
    """What is multiplied, and what an answer earns."""

    digits: tuple[Digits, Digits] = (3, 3)
    """Digits of the first and of the second factor, 1 to 9 each."""

    reward: Literal["binary", "tinyzero"] = "binary"
    """`binary` = 1 or 0; `tinyzero` = also 0.1 for a whole number that is wrong."""


@hookimpl
def info() -> TaskInfo:
    return TaskInfo(description="multiply two numbers of given lengths")


@hookimpl
def options() -> type:
    return MultiplyOptions


@hookimpl
def generate_dataset(split: Split, size: int, seed: int, start: int, options: MultiplyOptions) -> Iterator[Item]:
    import numpy as np

    words = random_bits(derive_seed("multiply", split, seed), np.arange(start, start + size), 2)  # [size, 2]
    low, high = np.array([(10 ** (digits - 1), 10**digits - 1) for digits in options.digits]).T
    for num1, num2 in integers_from_bits(words, low, high).tolist():
        yield Item(ground_truth=num1 * num2, data={"num1": num1, "num2": num2})


@hookimpl
def make_prompt(item: Item, template: str) -> str | list[Message]:
    num1, num2 = item.data["num1"], item.data["num2"]
    question = f"What is {num1} × {num2}?"
    match template:
        case "base":
            return (
                "A conversation between User and Assistant. The Assistant first thinks step by step between <think> "
                f"and </think>. {ANSWER_RULE}\nUser: {question}\nAssistant: <think>"
            )
        case "chat":
            return [{"role": "user", "content": f"{question} Think step by step. {ANSWER_RULE}"}]
        case "compact":
            return f"{num1}*{num2}\n"
    raise SettingsError(f"multiply has no prompt template {template!r}; it has base, chat, compact")


@hookimpl
def extract_answer(completion: str) -> str | None:
    return last_tagged(completion)


@hookimpl
def score(answer: str, ground_truth: int, options: MultiplyOptions) -> Score:
    number = read_integer(answer)
    if number is None:
        return Score(0.0, correct=False, reason="malformed")
    if number == ground_truth:
        return Score(1.0, correct=True)
    return Score(FORMAT_REWARD if options.reward == "tinyzero" else 0.0, correct=False, reason="wrong")


@hookimpl
def difficulty(item: Item) -> float:
    """Products of single digits to be known by heart: pairs of digits of which neither is 0 or 1."""
    hard1, hard2 = (sum(digit > "1" for digit in str(item.data[name])) for name in ("num1", "num2"))
    return float(hard1 * hard2)


@hookimpl
def item_key(item: Item) -> str:
    """The unordered pair: 12 × 34 and 34 × 12 are the same problem."""
    return "*".join(map(str, sorted((item.data["num1"], item.data["num2"]))))


@hookimpl
def solve(item: Item) -> str:
    return work_out(item.data["num1"], item.data["num2"])


@hookimpl
def demonstrate(item: Item, seed: int) -> str:
    return work_out(item.data["num1"], item.data["num2"], random.Random(seed))


@hookimpl
def oracle(answer: str, ground_truth: int) -> bool:
    return spells(answer, ground_truth)
