"""A task for measuring speed: every prompt has the same number of tokens, and half of all completions are right.

Not a benchmark: `step.py` and others train on it. With the tiny tokenizer a letter is a token.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from string import ascii_lowercase

from tinyzero_sdk import Item, Score, hookimpl
from tinyzero_sdk.seeds import derive_seed


@dataclass(frozen=True)
class Options:
    prompt_tokens: int = 140
    """Letters of a prompt."""


@hookimpl
def options() -> type:
    return Options


@hookimpl
def generate_dataset(split: str, size: int, seed: int, start: int, options: Options) -> Iterator[Item]:
    for index in range(start, start + size):
        random = Random(derive_seed("fixed", split, seed, index))
        yield Item(0, {"text": "".join(random.choices(ascii_lowercase, k=options.prompt_tokens))})


@hookimpl
def make_prompt(item: Item, template: str) -> str:
    text: str = item.data["text"]
    return text


@hookimpl
def item_key(item: Item) -> str:
    text: str = item.data["text"]
    return text


@hookimpl
def extract_answer(completion: str) -> str:
    return completion


@hookimpl
def score(answer: str, ground_truth: int) -> Score:
    right = is_right(answer)
    return Score(float(right), right, "ok" if right else "wrong")


@hookimpl
def difficulty(item: Item) -> float:
    return float(len(item.data["text"]))


def is_right(completion: str) -> bool:
    """A deterministic coin toss."""
    return zlib.crc32(completion.encode(errors="replace")) % 2 == 1
