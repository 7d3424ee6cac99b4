"""The problems a search works on: those the task makes, and others like them that the task itself can solve.

A changed ground truth counts only if the task's own `solve` answers it, and both the reward and the oracle call
that right: so no finding rests on a problem that the task never meant.
"""

import json
import random
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.fuzz.findings import size_of
from tinyzero_sdk.fuzz.frames import Frame
from tinyzero_sdk.fuzz.grammar import Grammar
from tinyzero_sdk.fuzz.judge import Judge
from tinyzero_sdk.fuzz.mutators import Stock
from tinyzero_sdk.records import Item, Json
from tinyzero_sdk.testing.gold import find_gold

COMMON_FRAMES = (Frame("<answer>", "</answer>"), Frame("\\boxed{", "}"), Frame("#### ", ""), Frame("", ""))
"""For tasks without gold completions."""

_COMMON_NUMBERS = ("0", "1", "2", "10", "100", "1000")
_MOST_ANSWERS = 64


class Puzzle:
    """One problem, with the answers to it from which others are made."""

    def __init__(self, judge: Judge, item: Item, rng: random.Random) -> None:
        """Raises TinyZeroError where the task's own hooks fail on the item."""
        task = judge.task
        self.item = item
        self.truth = item.ground_truth
        self.steps = 0  # how often it was varied
        gold = find_gold(task, item)
        self.gold = gold.answer if gold else None
        self.frame = Frame(gold.before, gold.after) if gold else rng.choice(COMMON_FRAMES)
        self.short = _shorten(judge, self.frame, gold.answer) if gold else self.frame
        self._task = task
        numbers = numbers_in(self.truth)
        self.answers = [gold.answer] if gold else numbers[:4] or ["1"]
        self.stock = Stock(rng, [*numbers, *numbers, *_COMMON_NUMBERS], self.answers)

    @cached_property
    def grammar(self) -> Grammar | None:
        """The task's rules of answers to it."""
        rules = self._task.grammar(self.item)
        return Grammar(rules) if rules else None

    @property
    def size(self) -> tuple[int, int, int, str]:
        """Which of two problems is smaller."""
        return size_of(self.short.around(self.gold or ""), self.truth)

    def keep(self, answer: str) -> None:
        """An answer worth changing further; where there are many, it takes the place of one (never gold's)."""
        if len(self.answers) < _MOST_ANSWERS:
            self.answers.append(answer)
        else:
            self.answers[1 + self.stock.below(_MOST_ANSWERS - 1)] = answer


def _shorten(judge: Judge, frame: Frame, answer: str) -> Frame:
    """The last line of the frame alone, where the task finds the answer in it as well."""
    short = Frame(frame.before.rpartition("\n")[2], frame.after)
    return short if judge.task.extract_answer(short.around(answer)) == answer else frame


def make_variant(judge: Judge, puzzle: Puzzle, rng: random.Random) -> Puzzle | None:
    """A puzzle with a slightly different ground truth, if the task solves it and nobody objects."""
    variant = check_variant(judge, puzzle.item, vary(puzzle.truth, rng), rng)
    if variant is not None:
        variant.steps = puzzle.steps + 1
    return variant


def check_variant(judge: Judge, item: Item, truth: Json, rng: random.Random) -> Puzzle | None:
    """The puzzle of this ground truth, if it is one by the rule of this file."""
    judge.preparing()
    try:
        puzzle = Puzzle(judge, Item(truth, item.data), rng)
        if puzzle.gold is None or not judge.task.oracle(puzzle.gold, truth):
            return None
        return puzzle if judge.task.score_completion(puzzle.frame.around(puzzle.gold), truth).correct else None
    except TinyZeroError:
        return None


def vary(truth: Json, rng: random.Random) -> Json:
    """A ground truth with one or two of its numbers changed, or an entry of a list gone."""
    truth = json.loads(json.dumps(truth))
    for _ in range(1 + (rng.random() < 0.5)):
        places = list(_places(truth))
        if not places:
            return truth
        holder, key = rng.choice(places)
        value = holder[key]
        if isinstance(holder, list) and len(holder) > 1 and rng.random() < 0.15:
            del holder[key]
        elif isinstance(value, int):
            other_holder, other_key = rng.choice(places)
            other = other_holder[other_key]
            near = (1, 1, 2, value + 1, value - 1, value // 2, 10 * value, 99, 1000)
            chosen = other if isinstance(other, int) and rng.random() < 0.5 else rng.choice(near)
            holder[key] = max(chosen, 1) if value > 0 else chosen
    return truth


def fit(truth: Json, answer: str, value: int, rng: random.Random) -> Json | None:
    """The ground truth with `value` in the place of a number that the answer does not name; None where it names all."""
    truth = json.loads(json.dumps(truth))
    named = set(re.findall(r"[0-9]+", answer))
    places = [(holder, key) for holder, key in _places(truth) if str(holder[key]) not in named]
    if not places:
        return None
    holder, key = rng.choice(places)
    holder[key] = value
    return truth


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Where whole numbers stand in a ground truth: (container, key)."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        if isinstance(entry, int) and not isinstance(entry, bool):
            yield value, key
        else:
            yield from _places(entry)


def numbers_in(truth: Json) -> list[str]:
    """The numbers that a ground truth names, as they stand there."""
    return re.findall(r"[0-9]+(?:\.[0-9]+)?", json.dumps(truth))[:100]
