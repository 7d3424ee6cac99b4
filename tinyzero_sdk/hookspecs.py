# mypy: disable-error-code="empty-body"
"""The hooks of a task: five are required, the others optional; `score_completion` is implemented by the SDK.

A task is a module whose functions are marked `@tinyzero_sdk.hookimpl`. An implementation may take fewer arguments than
its hook, but no others, so that hooks can gain arguments without breaking tasks.
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

    Every candidate must be solvable. The SDK keeps those whose key is in `split`, drops repeats, and requests more.
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
    """The score: pure, deterministic, without I/O, and never running the answer as code.

    It may be `async def` where it has to wait: then it may do I/O, and what it returns is kept on disk.
    A float x means `Score(x, correct=x == the greatest reward)`. Not called where there is no answer.
    """


@hookspec(firstresult=True)
def difficulty(item: Item) -> float:
    """Difficulty of the item: a finite number that depends on the item alone, not on the options."""


@hookspec(firstresult=True)
def score_group(
    answers: list[str], ground_truth: Json, scores: list[Score], options: Any
) -> "Sequence[float] | Sequence[Mapping[str, float]]":
    """Optional: the rewards of one problem's answers, in their order, where these are compared with one another.

    `scores` are what `score` gave. The result is a number for each answer in place of its reward; where `info` declares
    parts, a mapping with those that change. Completions without an answer, or on which `score` failed, are left out.
    """


@hookspec(firstresult=True)
def difficulties(items: ItemColumns) -> "Any":
    """Optional: `difficulty` of a whole batch, [n] floats, equal to it for each item."""


@hookspec(firstresult=True)
def solve(item: Item, options: Any) -> str | None:
    """Optional: a gold completion, which must get the greatest reward."""


@hookspec(firstresult=True)
def demonstrate(item: Item, seed: int, options: Any) -> str | None:
    """Optional: a worked attempt at the item, possibly wrong, as an example for supervised fine-tuning."""


@hookspec(firstresult=True)
def oracle(answer: str, ground_truth: Json, options: Any) -> bool | None:
    """Optional: whether the answer is right, by an independent method that may be slow; None = unknown."""


@hookspec(firstresult=True)
def grammar(item: Item) -> "Mapping[str, Sequence[str]]":
    """Optional: grammar of answers to the item, right and wrong ones, from which the fuzzer starts its search."""


@hookspec(firstresult=True)
def is_valid(ground_truth: Json) -> bool:
    """Optional: whether answers can be judged by it; others are errors, and the fuzzer can synthesize problems."""


@hookspec(firstresult=True)
def item_key(item: Item) -> str:
    """Optional: the item's canonical key, equal for equal problems (default: from the ground truth)."""


@hookspec(firstresult=True)
def has_own_splits(options: Any) -> bool:
    """Optional: whether `generate_dataset` has its own splits, as a published dataset does."""


@hookspec(firstresult=True)
def read_row(row: Mapping[str, Json]) -> Item | None:
    """Optional: the item in a row of a published dataset; None if the row is not of such a dataset."""


@hookspec(firstresult=True)
def info() -> TaskInfo:
    """Optional: description, ability, range of the reward, and waived checks."""


@hookspec(firstresult=True)
def options() -> type:
    """Optional: a frozen dataclass type with the task's settings; any hook may take `options`, an instance of it."""


@hookspec(firstresult=True)
def score_completion(completion: Completion, ground_truth: Json, options: Any) -> Score:
    """Implemented by the SDK: extract, score, check. Score wrappers wrap it, since they may need the completion."""
