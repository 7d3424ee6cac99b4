"""Multiplication of n-digit numbers. Here are the hooks; each leads to the file that does the work.

No file of the package may have the name of a hook: importing it would put the module in the function's place.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Le

from tinyzero_multiply import problems, prompts, scoring
from tinyzero_multiply.answer_grammar import answer_rules
from tinyzero_multiply.long_multiplication import work_out
from tinyzero_multiply.scoring import read_truth
from tinyzero_multiply.second_opinion import is_right
from tinyzero_sdk import Item, ItemColumns, RewardPart, Score, TaskInfo, hookimpl
from tinyzero_sdk.hookspecs import Message
from tinyzero_sdk.records import Json, Split
from tinyzero_sdk.text import last_tagged

if TYPE_CHECKING:
    import numpy as np

Digits = Annotated[int, Ge(1), Le(9)]  # the product of two such numbers fits 64 bits


@dataclass(frozen=True)
class MultiplyOptions:
    """What is multiplied."""

    digits: tuple[Digits, Digits] = (3, 3)
    """Digits of the first and of the second factor, 1 to 9 each."""


@hookimpl
def info() -> TaskInfo:
    parts = {"correct": RewardPart(), "format": RewardPart(0.0, description="a whole number, whatever its value")}
    return TaskInfo("multiply two numbers of given lengths", parts=parts)


@hookimpl
def options() -> type[MultiplyOptions]:
    return MultiplyOptions


@hookimpl
def generate_dataset(split: Split, size: int, seed: int, start: int, options: MultiplyOptions) -> ItemColumns:
    return problems.generate(split, size, seed, start, options.digits)


@hookimpl
def make_prompt(item: Item, template: str) -> str | list[Message]:
    return prompts.make_prompt(*_factors(item), template)


@hookimpl
def extract_answer(completion: str) -> str | None:
    return last_tagged(completion)


@hookimpl
def score(answer: str, ground_truth: Json) -> Score:
    return scoring.score_answer(answer, ground_truth)


@hookimpl
def oracle(answer: str, ground_truth: Json) -> bool:
    return is_right(answer, ground_truth)


@hookimpl
def difficulty(item: Item) -> float:
    return problems.difficulty_of(*_factors(item))


@hookimpl
def difficulties(items: ItemColumns) -> "np.ndarray":
    return problems.column_difficulties(items)


@hookimpl
def item_key(item: Item) -> str:
    """The unordered pair: 12 × 34 and 34 × 12 are the same problem."""
    return "*".join(map(str, sorted(_factors(item))))


@hookimpl
def solve(item: Item) -> str:
    return work_out(*_factors(item))


@hookimpl
def demonstrate(item: Item, seed: int) -> str:
    return work_out(*_factors(item), random.Random(seed))


@hookimpl
def grammar(item: Item) -> dict[str, list[str]]:
    return answer_rules(*_factors(item))


@hookimpl
def is_valid(ground_truth: Json) -> bool:
    try:
        if type(ground_truth) is dict:  # nearly always, and in a third of the time
            num1, num2, product = ground_truth["num1"], ground_truth["num2"], ground_truth["product"]
            if type(num1) is type(num2) is type(product) is int:
                return num1 * num2 == product and num1 >= 0 <= num2
        truth = read_truth(ground_truth)
    except (KeyError, TypeError, ValueError):
        return False
    return truth.product >= 0 and all(factor >= 0 for factor in truth.factors or ())


def _factors(item: Item) -> tuple[int, int]:
    """The two factors; in rows of TinyZero's own preprocessing they stand in columns of their own."""
    source = item.ground_truth if isinstance(item.ground_truth, Mapping) else item.data
    return source["num1"], source["num2"]
