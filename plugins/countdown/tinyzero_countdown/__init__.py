"""Countdown: reach a target with given numbers. Here are the hooks; each leads to the file that does the work.

No file of the package may have the name of a hook: importing it would put the module in the function's place.
"""

from collections.abc import Mapping
from operator import index
from typing import TYPE_CHECKING

from tinyzero_countdown import demonstrations, prompts, scoring
from tinyzero_countdown.answer_grammar import answer_rules
from tinyzero_countdown.options import CountdownOptions
from tinyzero_countdown.second_opinion import is_right
from tinyzero_sdk import Item, ItemColumns, RewardPart, Score, TaskInfo, hookimpl
from tinyzero_sdk.hookspecs import Message
from tinyzero_sdk.records import Json, Split
from tinyzero_sdk.text import last_tagged

if TYPE_CHECKING:
    import numpy as np

# numpy and pyarrow are imported where puzzles are made: who only scores answers does not wait for them.


@hookimpl
def info() -> TaskInfo:
    form = RewardPart(weight=0.0, description="an expression, whatever its value")
    return TaskInfo(
        "reach a target with given numbers, each used once", parts={"correct": RewardPart(), "format": form}
    )


@hookimpl
def options() -> type[CountdownOptions]:
    return CountdownOptions


@hookimpl
def generate_dataset(split: Split, size: int, seed: int, start: int, options: CountdownOptions) -> ItemColumns:
    from tinyzero_countdown.generator import generate

    return generate(split, size, seed, start, options)


@hookimpl
def item_key(item: Item) -> str:
    numbers = " ".join(map(str, sorted(item.ground_truth["numbers"])))
    return f"{numbers}={item.ground_truth['target']}"


@hookimpl
def difficulty(item: Item) -> float:
    import numpy as np

    from tinyzero_countdown.hardness import difficulties

    truth = item.ground_truth
    return float(difficulties(np.array([truth["numbers"]]), np.array([truth["target"]]))[0])


@hookimpl
def difficulties(items: ItemColumns) -> "np.ndarray":
    from tinyzero_countdown.hardness import column_difficulties

    return column_difficulties(items)


@hookimpl
def read_row(row: Mapping[str, Json]) -> Item | None:
    numbers, target = row.get("nums"), row.get("target")
    if not isinstance(numbers, list) or not isinstance(target, int):
        return None
    return Item({"target": target, "numbers": numbers}, {"nums": numbers, "target": target})


@hookimpl
def make_prompt(item: Item, template: str) -> str | list[Message]:
    return prompts.make_prompt(item, template)


@hookimpl
def extract_answer(completion: str) -> str | None:
    return last_tagged(completion)


@hookimpl
def score(answer: str, ground_truth: Mapping[str, Json]) -> Score:
    return scoring.score_answer(answer, ground_truth)


@hookimpl
def oracle(answer: str, ground_truth: Mapping[str, Json]) -> bool | None:
    return is_right(answer, ground_truth)


@hookimpl
def grammar(item: Item) -> dict[str, list[str]]:
    truth = item.ground_truth
    return answer_rules(truth["numbers"], truth["target"], last_tagged(solve(item) or ""))


@hookimpl
def is_valid(ground_truth: Json) -> bool:
    try:
        numbers, target = ground_truth["numbers"], ground_truth["target"]
        for number in numbers:  # faster than `min` and a set of types, for so few
            if type(number) is not int or number < 0:
                break
        else:
            if type(target) is int:  # nearly always
                return len(numbers) > 0 and not isinstance(numbers, dict)
        whole = [index(value) for value in (target, *numbers) if type(value) is not bool]
        return 1 < len(whole) == len(numbers) + 1 and min(whole[1:]) >= 0  # a target may be below zero, no number is
    except (KeyError, TypeError):
        return False


@hookimpl
def solve(item: Item) -> str | None:
    from tinyzero_countdown.solutions import gold_completion

    return gold_completion(item.ground_truth["numbers"], item.ground_truth["target"])


@hookimpl
def demonstrate(item: Item, seed: int, options: CountdownOptions) -> str:
    truth = item.ground_truth
    return demonstrations.demonstrate(truth["numbers"], truth["target"], seed, options.guess_rate)
