"""Test completions drawn at random: gold, near misses, malformed and hostile ones, and those of a grammar.

Each function takes what completions are made from and returns a `Draw`; the texts come from `completions.py`.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import zip_longest

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.tasks.task import Task
from tinyzero_sdk.testing import completions
from tinyzero_sdk.testing.gold import Gold, TestCompletion
from tinyzero_sdk.testing.grammar import Choose, Grammar
from tinyzero_sdk.testing.ground_truth_mutation import numbers_in

_MOST_SIMPLE = 64  # for one problem
_DRAWN_FOR = 32  # problems

Draw = Callable[[Choose], TestCompletion]
"""A completion by choices: at random, or those of hypothesis."""


def _from_gold(golds: Sequence[Gold], make: Callable[[Gold, Choose], TestCompletion]) -> Draw:
    return lambda choose: make(golds[choose(len(golds))], choose)


def one_of(*draws: Draw) -> Draw:
    return lambda choose: draws[choose(len(draws))](choose)


def gold(golds: Sequence[Gold]) -> Draw:
    return _from_gold(golds, lambda gold, choose: gold.sample(gold.completion, "gold"))


def near_miss(golds: Sequence[Gold]) -> Draw:
    """Gold completions whose answer is changed in one to three places."""
    others = [gold.answer for gold in golds]

    def make(gold: Gold, choose: Choose) -> TestCompletion:
        changed = completions.near_miss(gold.answer, others, choose)
        return gold.sample(gold.with_answer(changed), f"gold's answer {gold.answer!r} changed")

    return _from_gold(golds, make)


def malformed(golds: Sequence[Gold]) -> Draw:
    """Completions with missing, doubled or broken tags, other marks of an answer, or a truncated end."""
    return _from_gold(golds, lambda gold, choose: gold.sample(completions.malformed(gold, choose)))


def hostile(golds: Sequence[Gold], *, huge: bool = False) -> Draw:
    """Hostile text in the answer of gold, around it or instead; `huge` = a megabyte of it."""

    def make(gold: Gold, choose: Choose) -> TestCompletion:
        text = completions.huge_text(choose) if huge else completions.hostile_text(choose)
        return gold.sample(completions.place(text, gold, choose))

    return _from_gold(golds, make)


def grammatical(task: Task, golds: Sequence[Gold]) -> Draw:
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

    return make


def near_gold(task: Task, golds: Sequence[Gold]) -> Draw:
    """Answers that reach the code behind a parser: gold's numbers rearranged, near misses, those of the grammar."""
    others = [gold.answer for gold in golds[:100]]
    grammar_of = cache(lambda place: Grammar(rules) if (rules := task.grammar(golds[place].item)) else None)

    def make(choose: Choose) -> TestCompletion:
        place, kind = choose(len(golds)), choose(8)
        gold = golds[place]
        if kind < 4:
            return gold.sample(gold.with_answer(completions.rearrange(gold.answer, choose)))
        grammar = None if kind == 4 else grammar_of(place)
        answer = completions.near_miss(gold.answer, others, choose) if grammar is None else grammar.draw(choose)
        if kind == 5:
            answer = "".join(completions.join_numbers(completions.tokenize(answer), completions.Stock(choose)))
        return gold.sample(gold.with_answer(answer))

    return make


def simple(task: Task, golds: Sequence[Gold], choose: Choose) -> list[TestCompletion]:
    """The `simple_answers` of each problem, and for some the shortest of a few from the grammar: the first of each, the
    second of each, and so on."""
    answers = [completions.simple_answers(gold.answer, numbers_in(gold.item.ground_truth)) for gold in golds]
    for gold, known in zip(golds[:_DRAWN_FOR], answers, strict=False):
        if rules := task.grammar(gold.item):
            grammar = Grammar(rules)
            known += sorted({grammar.draw(choose) for _ in range(128)}, key=lambda text: (len(text), text))[:40]
    rows = [*zip_longest(*answers)][:_MOST_SIMPLE]
    return [gold.sample(gold.with_answer(text)) for row in rows for gold, text in zip(golds, row, strict=True) if text]


def group(golds: Sequence[Gold], choose: Choose) -> list[TestCompletion]:
    """One to six completions of one problem: gold, near misses, malformed, hostile, and repeated ones."""
    gold = golds[choose(len(golds))]
    others = [gold.answer for gold in golds]
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
