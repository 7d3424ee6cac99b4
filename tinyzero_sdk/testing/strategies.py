"""Hypothesis strategies for completions: gold, near misses, malformed and hostile ones, and those of a grammar.

Each gives a `Sample`: the text, the ground truth it is judged against, and what was done. The texts themselves are
made in `completions.py`. This is the one module that needs hypothesis.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.records import Item
from tinyzero_sdk.tasks.task import Task
from tinyzero_sdk.testing import completions as samples
from tinyzero_sdk.testing.completions import Sample
from tinyzero_sdk.testing.gold import Gold
from tinyzero_sdk.testing.grammar import Choose, Grammar

try:
    from hypothesis import configuration
    from hypothesis import strategies as st
    from hypothesis.strategies import SearchStrategy
except ImportError as error:
    raise TinyZeroError("the conformance kit needs hypothesis: pip install 'tinyzero-sdk[testing]'") from error


@contextlib.contextmanager
def nothing_stored() -> Iterator[None]:
    """Keep hypothesis from leaving its folder where the user is: it gets one of our own, which goes away.

    Where somebody chose a folder, or a session of pytest has one, that is used.
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


@st.composite
def made_by(draw: Callable[[Any], Any], make: Callable[[Choose], Sample]) -> Sample:
    """What `make` makes, with hypothesis making the choices.

    Example:
        >>> made_by(lambda choose: Sample("ab"[choose(2)], ground_truth=1)).filter(lambda sample: True) is not None
        True
    """
    return make(lambda count: draw(st.integers(0, count - 1)) if count > 1 else 0)


def gold(golds: Sequence[Gold]) -> SearchStrategy[Sample]:
    """Gold completions as they are."""
    return made_by(lambda choose: _as_gold(golds[choose(len(golds))]))


def _as_gold(chosen: Gold) -> Sample:
    return Sample(chosen.completion, chosen.item.ground_truth, "gold")


def near_miss(golds: Sequence[Gold]) -> SearchStrategy[Sample]:
    """Gold completions whose answer is changed in one to three places."""
    others = [gold.answer for gold in golds]

    def make(choose: Choose) -> Sample:
        gold = golds[choose(len(golds))]
        text = gold.with_answer(samples.near_miss(gold.answer, others, choose))
        return Sample(text, gold.item.ground_truth, f"gold's answer {gold.answer!r} changed")

    return made_by(make)


def one_edit(golds: Sequence[Gold]) -> SearchStrategy[Sample]:
    """Gold completions with one character of the answer changed."""

    def make(choose: Choose) -> Sample:
        gold = golds[choose(len(golds))]
        edited = samples.one_edit(gold.answer, choose)
        return Sample(gold.with_answer(edited), gold.item.ground_truth, f"one edit of gold's answer {gold.answer!r}")

    return made_by(make)


def malformed(golds: Sequence[Gold]) -> SearchStrategy[Sample]:
    """Completions with missing, doubled or broken tags, other marks of an answer, or an end that is cut off."""

    def make(choose: Choose) -> Sample:
        gold = golds[choose(len(golds))]
        return Sample(samples.malformed(gold, choose), gold.item.ground_truth)

    return made_by(make)


def hostile(golds: Sequence[Gold], *, huge: bool = False) -> SearchStrategy[Sample]:
    """Nesting, towers of powers, unpaired surrogates, NUL, marks of direction, other scripts' digits, code and more.

    Args:
        golds: where the hostile text is put.
        huge: a megabyte of it.
    """

    def make(choose: Choose) -> Sample:
        text = samples.huge_text(choose) if huge else samples.hostile_text(choose)
        gold = golds[choose(len(golds))]
        return Sample(samples.place(text, gold, choose), gold.item.ground_truth)

    return made_by(make)


def grammatical(task: Task, golds: Sequence[Gold]) -> SearchStrategy[Sample]:
    """Answers by the task's `grammar`, in the form of its gold completions.

    Raises:
        TinyZeroError: the task has no grammar.
    """
    grammars = [rules and Grammar(rules) for rules in (task.grammar(gold.item) for gold in golds)]
    if not golds or not all(grammars):
        raise TinyZeroError(f"task {task.name!r} has no grammar; add the hook `grammar` (docs/hooks.md)")

    def make(choose: Choose) -> Sample:
        which = choose(len(golds))
        grammar = grammars[which]
        assert grammar
        return Sample(golds[which].with_answer(grammar.draw(choose)), golds[which].item.ground_truth, "by the grammar")

    return made_by(make)


def stand_ins(items: Sequence[Item]) -> list[Gold]:
    """Frames for tasks without `solve`: an answer of 0 between tags."""
    return [Gold(item, "<answer>", "0", "</answer>") for item in items]
