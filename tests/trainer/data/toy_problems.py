"""A source of synthetic problems for tests of the training stream: no task, no tokenizer."""

from collections.abc import Iterator
from itertools import islice
from random import Random
from types import SimpleNamespace

from tinyzero_sdk import Item
from tinyzero_sdk.seeds import derive_seed
from tinyzero_trainer.data.prompts import PromptSource
from tinyzero_trainer.types import Prompt


class ToyProblems:
    """Fake of a PromptSource: `size` problems in a seeded order, the n-th of difficulty n // of_each."""

    def __init__(self, name: str, size: int, of_each: int = 1) -> None:
        self.name, self.size = name, size
        self.task = SimpleNamespace(difficulty=lambda item: float(item.data // of_each), data_version=None)

    def epoch(self, seed: int, number: int, start: int = 0) -> Iterator[Item]:
        order = list(range(self.size))
        Random(derive_seed(self.name, seed, number)).shuffle(order)
        return (Item(None, index) for index in order[start:])

    def prompt(self, item: Item, bucket: int = 0) -> Prompt:
        return Prompt(item, str(item.data), [1], self.name, bucket)

    stream = PromptSource.stream


def take(stream: Iterator[Prompt], count: int) -> list[tuple[str, int, int]]:
    """Task, problem and bucket of the next ones."""
    return [(prompt.task, prompt.item.data, prompt.bucket) for prompt in islice(stream, count)]
