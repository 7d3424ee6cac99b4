"""Hypothesis strategies for completions: gold, near misses, malformed and hostile ones, and those of a grammar.

Each gives a `TestCompletion`: the text, the ground truth to score it against, and how it was made. The texts come from
`completions.py`. This is the only module that needs hypothesis.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, TypeVar

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.tasks.task import Task
from tinyzero_sdk.testing import completions
from tinyzero_sdk.testing.gold import Gold, TestCompletion
from tinyzero_sdk.testing.grammar import Choose, Grammar

try:
    from hypothesis import HealthCheck, Phase, configuration, find, settings
    from hypothesis import strategies as st
    from hypothesis.errors import NoSuchExample
    from hypothesis.strategies import SearchStrategy
except ImportError as error:
    raise TinyZeroError("the conformance kit needs hypothesis: pip install 'tinyzero-sdk[testing]'") from error


T = TypeVar("T")


@contextlib.contextmanager
def nothing_stored() -> Iterator[None]:
    """Give hypothesis a temporary folder, so that it leaves none in the user's directory.

    A folder that the user chose, or that a pytest session has, is used instead.
    """
    known = getattr(configuration, "__hypothesis_home_directory", None)
    if known is not None or os.environ.get("HYPOTHESIS_STORAGE_DIRECTORY"):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="tinyzero-") as folder:
        configuration.set_hypothesis_home_dir(folder)
        try:
            yield
        finally:
            configuration.set_hypothesis_home_dir(None)


def find_completion(
    strategy: SearchStrategy[T],
    condition: Callable[[T], bool],
    *,
    examples: int,
    seed: int,
    shrink: bool,
) -> T | None:
    """The completion, or group of them, that hypothesis finds among `examples`; the same ones are drawn each time."""
    quiet = settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=False,
        phases=(Phase.generate, *([Phase.shrink] if shrink else [])),
        suppress_health_check=list(HealthCheck),
    )
    try:
        with nothing_stored():
            example: T = find(strategy, condition, settings=quiet, random=Random(seed))
    except NoSuchExample:
        return None
    return example


@st.composite
def made_by(draw: Callable[[Any], Any], make: Callable[[Choose], T]) -> T:
    """What `make` returns, with hypothesis making the choices.

    Example:
        >>> made_by(lambda choose: TestCompletion("ab"[choose(2)], ground_truth=1)).filter(bool) is not None
        True
    """
    return make(lambda count: draw(st.integers(0, count - 1)) if count > 1 else 0)


def _from_gold(golds: Sequence[Gold], make: Callable[[Gold, Choose], TestCompletion]) -> SearchStrategy[TestCompletion]:
    return made_by(lambda choose: make(golds[choose(len(golds))], choose))


def gold(golds: Sequence[Gold]) -> SearchStrategy[TestCompletion]:
    return _from_gold(golds, lambda gold, choose: gold.sample(gold.completion, "gold"))


def near_miss(golds: Sequence[Gold]) -> SearchStrategy[TestCompletion]:
    """Gold completions whose answer is changed in one to three places."""
    others = [gold.answer for gold in golds]

    def make(gold: Gold, choose: Choose) -> TestCompletion:
        changed = completions.near_miss(gold.answer, others, choose)
        return gold.sample(gold.with_answer(changed), f"gold's answer {gold.answer!r} changed")

    return _from_gold(golds, make)


def one_edit(golds: Sequence[Gold]) -> SearchStrategy[TestCompletion]:
    """Gold completions with one character of the answer changed."""

    def make(gold: Gold, choose: Choose) -> TestCompletion:
        edited = completions.one_edit(gold.answer, choose)
        return gold.sample(gold.with_answer(edited), f"one edit of gold's answer {gold.answer!r}")

    return _from_gold(golds, make)


def malformed(golds: Sequence[Gold]) -> SearchStrategy[TestCompletion]:
    """Completions with missing, doubled or broken tags, other marks of an answer, or a truncated end."""
    return _from_gold(golds, lambda gold, choose: gold.sample(completions.malformed(gold, choose)))


def hostile(golds: Sequence[Gold], *, huge: bool = False) -> SearchStrategy[TestCompletion]:
    """Nesting, towers of powers, unpaired surrogates, NUL, direction marks, other scripts' digits, code and more.

    Args:
        golds: where the hostile text is put.
        huge: a megabyte of it.
    """

    def make(gold: Gold, choose: Choose) -> TestCompletion:
        text = completions.huge_text(choose) if huge else completions.hostile_text(choose)
        return gold.sample(completions.place(text, gold, choose))

    return _from_gold(golds, make)


def group(golds: Sequence[Gold]) -> SearchStrategy[list[TestCompletion]]:
    """One to six completions of one problem: gold, near misses, malformed, hostile, and repeated ones."""
    others = [gold.answer for gold in golds]

    def make(choose: Choose) -> list[TestCompletion]:
        gold = golds[choose(len(golds))]
        kinds: list[Callable[[], str]] = [
            lambda: gold.completion,
            lambda: gold.with_answer(completions.near_miss(gold.answer, others, choose)),
            lambda: completions.malformed(gold, choose),
            lambda: completions.place(completions.hostile_text(choose), gold, choose),
        ]
        texts: list[str] = []
        for _ in range(1 + choose(6)):
            kind = choose(len(kinds) + len(texts))
            texts.append(kinds[kind]() if kind < len(kinds) else texts[kind - len(kinds)])
        return [gold.sample(text) for text in texts]

    return made_by(make)


def grammatical(task: Task, golds: Sequence[Gold]) -> SearchStrategy[TestCompletion]:
    """Answers from the task's `grammar`, in the form of its gold completions.

    Raises:
        TinyZeroError: the task has no grammar.
    """
    rules = [task.grammar(gold.item) for gold in golds]
    grammars = [Grammar(rule) for rule in rules if rule]
    if not golds or len(grammars) < len(golds):
        raise TinyZeroError(f"task {task.name!r} has no grammar; add the hook `grammar` (docs/reference/hooks.md)")

    def make(choose: Choose) -> TestCompletion:
        place = choose(len(golds))
        return golds[place].sample(golds[place].with_answer(grammars[place].draw(choose)), "from the grammar")

    return made_by(make)
