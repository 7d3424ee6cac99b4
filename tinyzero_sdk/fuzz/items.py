"""The problems of a search: those that the task generates, and variants of them that the task can solve.

A variant counts only if the hook `is_valid` accepts its ground truth, `solve` answers it, and both the scorer and the
oracle call that answer right: no finding rests on a problem outside the task.
"""

import random
from dataclasses import replace
from functools import cached_property

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.fuzz.differential import DifferentialOracle
from tinyzero_sdk.records import Item, Json
from tinyzero_sdk.testing.completions import Stock, simple_answers
from tinyzero_sdk.testing.gold import Gold, find_gold
from tinyzero_sdk.testing.grammar import Grammar
from tinyzero_sdk.testing.ground_truth_mutation import nudge, numbers_in

_COMMON_MARKS = (("<answer>", "</answer>"), ("\\boxed{", "}"), ("#### ", ""), ("", ""))  # without gold completions
_COMMON_NUMBERS = ("0", "1", "2", "10", "100", "1000")
_MOST_ANSWERS = 64
_MOST_SIMPLE = 48


class FuzzItem:
    """One problem, with the answers to it from which others are made."""

    def __init__(self, differential: DifferentialOracle, item: Item, rng: random.Random) -> None:
        """Raises TinyZeroError where the task's own hooks fail on the item."""
        task = differential.task
        self.original = item
        self.truth = item.ground_truth
        self.steps = 0  # how often it was varied
        gold = find_gold(task, item)
        self.gold = gold.answer if gold else None
        if gold is None:
            before, after = rng.choice(_COMMON_MARKS)
            self.presentation = self.short = Gold(item, before, "1", after)
        else:
            self.presentation, self.short = gold, replace(gold, before=gold.before.rpartition("\n")[2])
            if task.extract_answer(self.short.completion) != gold.answer:
                self.short = gold
        self._task = task
        numbers = numbers_in(self.truth)
        self.answers = [gold.answer] if gold else numbers[:4] or ["1"]
        self.simple = simple_answers(self.answers[0], numbers)[:_MOST_SIMPLE]
        """What is tried first; taken by the first batch."""
        self.stock = Stock(
            lambda count: int(rng.random() * count), [*numbers, *numbers, *_COMMON_NUMBERS], self.answers
        )

    @cached_property
    def grammar(self) -> Grammar | None:
        rules = self._task.grammar(self.original)
        return Grammar(rules) if rules else None

    def keep(self, answer: str) -> None:
        """Add an answer worth mutating further; when there are too many it replaces one, never the gold answer."""
        if len(self.answers) < _MOST_ANSWERS:
            self.answers.append(answer)
        else:
            self.answers[1 + self.stock.choose(_MOST_ANSWERS - 1)] = answer


def make_variant(differential: DifferentialOracle, item: FuzzItem, rng: random.Random) -> FuzzItem | None:
    """An item with a slightly different ground truth, if `check_variant` accepts it."""
    variant = check_variant(differential, item.original, nudge(item.truth, item.stock.choose), rng)
    if variant is not None:
        variant.steps = item.steps + 1
        variant.simple = []  # much like those of the item
    return variant


def check_variant(differential: DifferentialOracle, item: Item, truth: Json, rng: random.Random) -> FuzzItem | None:
    """The item of this ground truth, or None if it is not valid by the rule at the top of this file."""
    differential.preparing()
    try:
        if not differential.task.is_valid(truth):
            return None
        variant = FuzzItem(differential, Item(truth, item.data), rng)
        if variant.gold is None or not differential.task.oracle(variant.gold, truth):
            return None
        completion = variant.presentation.with_answer(variant.gold)
        return variant if differential.task.score_completion(completion, truth).correct else None
    except TinyZeroError:
        return None
