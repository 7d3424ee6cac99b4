"""A task of the tests' own: add two digits. The trainer's tests name no installed plugin."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tinyzero_sdk import Item, Score, hookimpl
from tinyzero_sdk.seeds import derive_seed
from tinyzero_sdk.text import last_tagged


@dataclass(frozen=True)
class Options:
    limit: int = 40
    """Numbers go up to this."""

    fail: bool = False
    """Whether the scorer raises."""


@hookimpl
def options() -> type:
    return Options


@hookimpl
def generate_dataset(split: str, size: int, seed: int, start: int, options: Options) -> Iterator[Item]:
    for index in range(start, start + size):
        random = Random(derive_seed("toy", split, seed, index))
        numbers = [random.randint(0, options.limit), random.randint(0, options.limit)]
        yield Item({"sum": sum(numbers)}, {"numbers": numbers})


@hookimpl
def item_key(item: Item) -> str:
    return str(item.data["numbers"])


@hookimpl
def make_prompt(item: Item, template: str) -> str | list[dict[str, str]]:
    left, right = item.data["numbers"]
    if template == "chat":
        return [{"role": "user", "content": f"{left}+{right}"}]
    return f"{left}+{right}="


@hookimpl
def extract_answer(completion: str) -> str | None:
    return last_tagged(completion)


@hookimpl
def score(answer: str, ground_truth: dict[str, int], options: Options) -> Score:
    if options.fail:
        raise RuntimeError("a broken scorer")
    # Last digit right earns half: a random model is right now and then, so that training has something to go on.
    if not answer.isascii() or not answer.isdigit() or len(answer) > 9:
        return Score(0.0, False, "malformed")
    right = int(answer) == ground_truth["sum"]
    near = int(answer) % 10 == ground_truth["sum"] % 10
    return Score(1.0 if right else 0.5 if near else 0.0, right, "ok" if right else "wrong")


@hookimpl
def difficulty(item: Item) -> float:
    return float(max(item.data["numbers"]) // 10)


@hookimpl
def demonstrate(item: Item, seed: int) -> str:
    error = Random(seed).choice([0, 0, 1, 10])
    return f"<answer>{item.ground_truth['sum'] + error}</answer>"
