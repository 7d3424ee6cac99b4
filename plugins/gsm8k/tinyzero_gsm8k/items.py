"""Problems as items: which ones a range of candidates holds, their keys, and their gold completions."""

from collections.abc import Iterator, Mapping

from tinyzero_gsm8k.options import Gsm8kOptions
from tinyzero_gsm8k.problems import COLUMNS, Problem, question_key, read_problem, shuffled, steps_of
from tinyzero_gsm8k.synthetic import synthetic_problem
from tinyzero_sdk import Item
from tinyzero_sdk.records import Json, Split
from tinyzero_sdk.seeds import derive_seed


def generate(split: Split, size: int, seed: int, start: int, options: Gsm8kOptions) -> Iterator[Item]:
    """Candidates start … start + size - 1; of published problems fewer, where they end."""
    if options.source == "synthetic":
        seeds = (derive_seed("gsm8k", split, seed, index) for index in range(start, start + size))
        return (_item(problem, "synthetic", signature) for problem, signature in map(synthetic_problem, seeds))
    from tinyzero_gsm8k.sources import problems_of  # brings pyarrow, and `datasets` where it is needed

    problems = shuffled(problems_of(split, options), seed)[start : start + size]
    return (_item(problem, "gsm8k") for problem in problems)


def _item(problem: Problem, source: str, signature: str = "") -> Item:
    data = {"question": problem.question, "answer": problem.solution, "source": source}
    return Item(problem.result, data | ({"signature": signature} if signature else {}))


def from_row(row: Mapping[str, Json]) -> Item | None:
    """The item in a row of GSM8K as it is published.

    Raises:
        DataError: the solution does not end in its result.
    """
    if not all(isinstance(row.get(column), str) for column in COLUMNS):
        return None
    return _item(read_problem(row), "gsm8k")


def key(item: Item) -> str:
    """What makes a problem another one: the template and numbers of a synthetic problem, whatever its names and idle
    facts; the question of any other, but for case and spacing."""
    return item.data.get("signature") or question_key(item.data["question"])


def gold_completion(item: Item) -> str:
    """The item's own solution, and its result between tags."""
    steps = "\n".join(steps_of(item.data["answer"]))
    return f"<think>{steps}</think>\n<answer>{item.ground_truth}</answer>"
