"""Properties of wrong answers next to a right one, which need no oracle: no kind of change pays on most problems."""

from collections.abc import Callable

from tinyzero_sdk.testing import neighbours
from tinyzero_sdk.testing.gold import TestCompletion
from tinyzero_sdk.testing.property import Failure, NotChecked, Property
from tinyzero_sdk.testing.sandbox_child import Outcome, short
from tinyzero_sdk.testing.task_under_test import TaskUnderTest

_FIRST = 6  # a kind that pays on none of so many problems pays on few
_FEWEST = 3  # problems on which it pays
_MOST_NAMED = 4


def _must_not_pay(change: neighbours.Change) -> Callable[[TaskUnderTest], Failure | None]:
    """Looks for kinds of `change` after which an answer is correct on most problems, and no oracle says it is right."""

    def examine(subject: TaskUnderTest) -> Failure | None:
        if subject.task.info.judge is not None:
            raise NotChecked("a judge may find a neighbour of gold as good; see gold-beats-wrong")
        golds = subject.right_answers
        answers = [gold.answer for gold in golds]
        kinds: dict[str, list[TestCompletion]] = {}
        for place, gold in enumerate(golds):
            texts: dict[str, str] = {}
            for kind, text in change(gold.answer, [*answers[place + 1 :], *answers[:place]]):
                if not neighbours.same(text, gold.answer):
                    texts.setdefault(text, kind)
            for text, kind in texts.items():
                sample = gold.sample(gold.with_answer(text), f"gold's answer {short(gold.answer)}, {kind}")
                kinds.setdefault(kind, []).append(sample)
        paying = {}
        for kind, samples in kinds.items():
            paid: list[tuple[TestCompletion, Outcome]] = []
            for part in (samples[:_FIRST], samples[_FIRST:]):
                outcomes = subject.observe_all(part, oracle="all")
                subject.tried += len(part)
                pairs = zip(part, outcomes, strict=True)
                paid += [(sample, outcome) for sample, outcome in pairs if outcome.correct and not outcome.oracle]
                if not paid:
                    break
            if len(paid) > len(samples) / 2 and len(paid) >= min(_FEWEST, len(golds)):
                smallest = min(paid, key=lambda pair: len(pair[0].completion))
                paying[f"{kind} ({len(paid)} of {len(samples)} problems)"] = smallest
        if not paying:
            return None
        sample, outcome = next(iter(paying.values()))
        got = f"{outcome.describe()}: {', '.join([*paying][:_MOST_NAMED])}"
        return Failure(got, "not correct, unless `oracle` or a waiver with a reason says that it is right", sample)

    return examine


NUMBERS_COUNT = Property(
    name="numbers-count",
    text="Gold with another number is not correct: one more or less, off by 0.4 or 0.5 %, times 100, without its"
    " point, with another digit or sign.",
    reason="A tolerance, `int(float(text))` or `startswith` pays for what is nearly right on every problem.",
    examine=_must_not_pay(neighbours.change_numbers),
)

PARTS_COUNT = Property(
    name="parts-count",
    text="Gold with a line, an item, a word or a term dropped, doubled, replaced or added is not correct, nor is the"
    " right answer of another problem.",
    reason="A comparison of sets, with `zip` or `in`, or of one part alone, does not see what is missing or too much.",
    examine=_must_not_pay(neighbours.change_parts),
)

ORDER_COUNTS = Property(
    name="order-counts",
    text="Gold with its parts in another order is not correct: lines, items, words and terms, but for the terms of a"
    " sum or a product, what is in braces, and items with names.",
    reason="A scorer that sorts before it compares, or reads a date in two ways, pays for an order that is wrong.",
    examine=_must_not_pay(neighbours.change_order),
)

LETTERS_COUNT = Property(
    name="letters-count",
    text="Gold with a letter dropped, doubled, exchanged or replaced is not correct, nor in another case where gold"
    " mixes cases.",
    reason="A measure of likeness takes a word for its neighbour, and `lower()` a code for another one.",
    examine=_must_not_pay(neighbours.change_letters),
)
