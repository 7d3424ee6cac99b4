"""Grade-school word problems: the hooks of the task `gsm8k`. Each leads to the file that does the work.

No file of the package may have the name of a hook: importing it would put the module in the function's place.
"""

from collections.abc import Iterator, Mapping, Sequence

from tinyzero_gsm8k import prompts, scoring
from tinyzero_gsm8k.options import Gsm8kOptions
from tinyzero_gsm8k.second_opinion import is_right
from tinyzero_sdk import Item, Score, TaskInfo, hookimpl
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.hookspecs import Message
from tinyzero_sdk.records import Json, Split
from tinyzero_sdk.text import last_answer

# Problems are imported where they are made or read: who only scores answers does not wait for them.


@hookimpl
def info() -> TaskInfo:
    return TaskInfo(description="solve grade-school word problems: GSM8K, or synthetic ones (task.source=synthetic)")


@hookimpl
def options() -> type[Gsm8kOptions]:
    return Gsm8kOptions


@hookimpl
def has_own_splits(options: Gsm8kOptions) -> bool:
    from tinyzero_gsm8k.sources import is_divided

    return is_divided(options)


@hookimpl
def generate_dataset(split: Split, size: int, seed: int, start: int, options: Gsm8kOptions) -> Iterator[Item]:
    from tinyzero_gsm8k import items

    return items.generate(split, size, seed, start, options)


@hookimpl
def read_row(row: Mapping[str, Json]) -> Item | None:
    from tinyzero_gsm8k import items

    return items.from_row(row)


@hookimpl
def item_key(item: Item) -> str:
    from tinyzero_gsm8k import items

    return items.key(item)


@hookimpl
def difficulty(item: Item) -> float:
    """Steps of the solution: its lines before `####`."""
    from tinyzero_gsm8k.problems import steps_of

    return float(len(steps_of(item.data["answer"])))


@hookimpl
def make_prompt(item: Item, template: str) -> str | list[Message]:
    return prompts.make_prompt(item, template)


@hookimpl
def extract_answer(completion: str) -> str | None:
    return last_answer(completion)


@hookimpl
def score(answer: str, ground_truth: str | int | float) -> Score:
    return scoring.score_answer(answer, ground_truth)


@hookimpl
def oracle(answer: str, ground_truth: str | int | float) -> bool | None:
    return is_right(answer, ground_truth)


@hookimpl
def is_valid(ground_truth: Json) -> bool:
    try:
        scoring.read_truth(ground_truth)  # whatever number it is, it may be a result
    except (DataError, TypeError):
        return False
    return True


@hookimpl
def grammar(item: Item) -> dict[str, Sequence[str]]:
    from tinyzero_gsm8k.guesses import rules

    return rules(str(item.ground_truth))


@hookimpl
def solve(item: Item) -> str:
    from tinyzero_gsm8k import items

    return items.gold_completion(item)
