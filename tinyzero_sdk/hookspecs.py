# mypy: disable-error-code="empty-body"
"""The contract of a task: what it must say (five hooks), what it may say, and what the host says.

A task is a module whose functions carry `@tinyzero_sdk.hookimpl`. An implementation may take fewer
arguments than its hook, never others; that is how the contract can grow without breaking a task.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pluggy

from tinyzero_sdk.records import Completion, Item, Json, Score, Split, TaskInfo
from tinyzero_sdk.records_arrow import ItemColumns

PROJECT = "tinyzero"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

REQUIRED = ("generate_dataset", "make_prompt", "extract_answer", "score", "difficulty")
Message = dict[str, str]
"""One chat message: `{"role": "system" | "user" | "assistant", "content": text}`."""


@hookspec(firstresult=True)
def generate_dataset(split: Split, size: int, seed: int, start: int, options: Any) -> "Iterable[Item] | ItemColumns":
    """Candidates start … start + size - 1, lazily; each depends on (split, seed, its index) alone.

    Every candidate must be solvable. The host keeps those whose key is of `split`, drops repeats, and asks for more.
    """


@hookspec(firstresult=True)
def make_prompt(item: Item, template: str, options: Any) -> "str | list[Message]":
    """The prompt, as text or chat messages; templates are named `base`, `chat` and `compact`.

    Never write a model's chat markup by hand: the caller applies the tokenizer's own chat template.
    """


@hookspec(firstresult=True)
def extract_answer(completion: str) -> str | None:
    """The answer in a completion (special tokens already removed), or None if there is none."""


@hookspec(firstresult=True)
def score(answer: str, ground_truth: Json, options: Any) -> "Score | float":
    """The verdict: pure, deterministic, without I/O, and never running the answer as code.

    A float x means `Score(x, correct=x >= the greatest reward)`. Not called where there is no answer.
    """


@hookspec(firstresult=True)
def difficulty(item: Item) -> float:
    """How hard the item is: a finite number of the item alone, not of the configuration."""


@hookspec(firstresult=True)
def difficulties(items: ItemColumns) -> "Any":
    """Optional: `difficulty` for a whole batch at once, [n] floats, equal to it item by item."""


@hookspec(firstresult=True)
def solve(item: Item, options: Any) -> str | None:
    """Optional: a gold completion, which must score full."""


@hookspec(firstresult=True)
def demonstrate(item: Item, seed: int, options: Any) -> str | None:
    """Optional: a fallible worked attempt at the item, as text for a warm start."""


@hookspec(firstresult=True)
def oracle(answer: str, ground_truth: Json, options: Any) -> bool | None:
    """Optional: whether the answer is right, by a second method that may be slow; None = cannot tell."""


@hookspec(firstresult=True)
def grammar(item: Item) -> "Mapping[str, Sequence[str]]":
    """Optional: rules of answers to the item, right and wrong ones, from which the fuzzer starts its search."""


@hookspec(firstresult=True)
def is_valid(ground_truth: Json) -> bool:
    """Optional: whether this could be the ground truth of an item; lets the search for holes make up problems."""


@hookspec(firstresult=True)
def item_key(item: Item) -> str:
    """Optional: the item's canonical key, shared by items that are the same problem (default: of the ground truth)."""


@hookspec(firstresult=True)
def has_own_splits(options: Any) -> bool:
    """Optional: whether `generate_dataset` keeps the splits apart itself, as a published data set does."""


@hookspec(firstresult=True)
def info() -> TaskInfo:
    """Optional: description, ability, range of the reward, and waived checks."""


@hookspec(firstresult=True)
def options() -> type:
    """Optional: a frozen dataclass type with the task's settings; any hook may take `options`, an instance of it."""


@hookspec(firstresult=True)
def score_completion(completion: Completion, ground_truth: Json, options: Any) -> Score:
    """The host's hook: extract, score, guard. Shaping wrappers wrap it, since they need length and truncation."""
