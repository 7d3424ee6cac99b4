"""Properties of right answers: they score full, and what surrounds them does not matter."""

import itertools
from collections.abc import Iterator
from functools import partial

from tinyzero_sdk.testing.gold import TestCompletion
from tinyzero_sdk.testing.property import Failure, Property
from tinyzero_sdk.testing.sandbox_child import Outcome
from tinyzero_sdk.testing.task_under_test import TaskUnderTest


def must_be_full(subject: TaskUnderTest, sample: TestCompletion, outcome: Outcome) -> Failure | None:
    """The completion is right, and scores as gold does."""
    if subject.is_full(outcome):
        return None
    return Failure(outcome.describe(), f"score {subject.task.info.score_range[1]:g}, correct")


_of_gold = partial(Property, needs=("solve",), test=must_be_full)


def _examine_solvable(subject: TaskUnderTest) -> Failure | None:
    for item in [*subject.items, *subject.test_items]:
        subject.tried += 1
        if subject.task.solve(item) is None:
            return Failure(f"solve gave None for {item}", "a gold completion for every item")
    return None


EVERY_ITEM_SOLVABLE = Property(
    name="every-item-solvable",
    text="`solve` gives a gold completion for every item of both splits.",
    reason="A problem without a solution can only teach a model that answering does not pay. If numbers and target are"
    " sampled independently, most problems have none.",
    needs=("solve",),
    examine=_examine_solvable,
)

GOLD_SCORES_FULL = _of_gold(
    name="gold-scores-full",
    text="Every gold completion is correct and gets the greatest reward.",
    reason="If the right answer does not get the full score, nothing a model learns from the reward can be trusted.",
    completions=lambda subject: [
        gold.sample(gold.completion, "gold, as `solve` gives it", right=True) for gold in subject.golds
    ],
)


_SPECIAL = ["<|im_end|>", "<|endoftext|>", "</s>", "\n", "\n\n", "\r\n", " ", "\n<|im_end|>", " </s>", "<|im_end|>\n"]
_SPACES = [(" ", " "), ("\n", "\n"), ("", "\n"), ("\n", ""), ("  ", ""), ("\t", "\t"), ("\r\n", "\r\n"), ("\n\n", " ")]


def _variants(subject: TaskUnderTest) -> Iterator[TestCompletion]:
    for gold in subject.full_presentations:
        for end in _SPECIAL:
            yield gold.sample(gold.completion + end, f"gold with {end!r} after it", right=True)
        for start in ("\n", " ", "\n\n"):
            yield gold.sample(start + gold.completion, f"gold with {start!r} before it", right=True)
        if gold.is_closed:
            for left, right in _SPACES:
                note = f"gold with {left!r} and {right!r} around its answer"
                yield gold.sample(gold.with_answer(left + gold.answer + right), note, right=True)


FORMATTING_IS_FREE = _of_gold(
    name="formatting-is-free",
    text="Spaces around the answer or the completion, line breaks around the answer, and special tokens at the end do"
    " not change the score.",
    reason="A line break must not cost a model its reward: rewards that read only the last line, or fail at line"
    " breaks, have taught models to write everything in one line.",
    completions=_variants,
)


_BEFORE = [
    "So, ", "Let me think.\n", "First I try 3 and 4.\n\n", "<think>12 + 30 = 42, or not?</think>\n",
    "<think>\nI check it twice.\n</think>\n\n", "**Solution**\n\n", "Here is my answer:\n",
]  # fmt: skip
_LONG = "I check it once more, to be sure of it. " * 490
"""Some 20,000 characters: a scorer that truncates completions, or reads only their end, loses the answer."""

_AFTER = ["\nDone.", " That is it.", "\n\nI am sure of it.", "\n\n(I checked it twice.)", "\nThank you!\n"]


def _surrounded(subject: TaskUnderTest) -> Iterator[TestCompletion]:
    golds = subject.full_presentations
    for gold in golds:
        for before, after in itertools.product(["", *_BEFORE], ["", *_AFTER]):
            if (before or after) and (not after or gold.is_closed):
                yield gold.sample(before + gold.completion + after, "gold with other text around it", right=True)
    for gold in golds[:4]:
        text = "20,000 characters of other text"
        yield gold.sample(f"{_LONG}\n{gold.completion}", f"gold after {text}", right=True)
        if gold.is_closed:
            yield gold.sample(f"{gold.completion}\n{_LONG}", f"gold before {text}", right=True)


ONLY_THE_ANSWER_COUNTS = _of_gold(
    name="only-the-answer-counts",
    text="Text before the answer, thinking, and text after it do not change the score.",
    reason="What a model writes around its answer is its own affair; a reward that reads it can be swayed by it.",
    completions=_surrounded,
)


def _must_follow_the_last(subject: TaskUnderTest, sample: TestCompletion, outcome: Outcome) -> Failure | None:
    if sample.right:
        return must_be_full(subject, sample, outcome)
    return Failure(outcome.describe(), "not correct: the last answer is wrong") if outcome.correct else None


def _two_answers(subject: TaskUnderTest) -> Iterator[TestCompletion]:
    for gold, wrong in subject.wrongs:
        for turn in ("\n", " ", "\n\nNo, wait.\n", "\nSo: "):
            texts = (gold.with_answer(wrong), gold.completion)
            yield gold.sample(turn.join(texts), "a wrong answer, then gold", right=True)
            yield gold.sample(turn.join(reversed(texts)), "gold, then a wrong answer", right=False)


LAST_ANSWER_COUNTS = Property(
    name="last-answer-counts",
    text="Of several answers, only the last one counts.",
    reason="A model that corrects itself stands by what it says last. A reward that takes the first answer pays for"
    " what was withdrawn; one that takes any answer pays for guessing.",
    needs=("solve",),
    test=_must_follow_the_last,
    needs_label=True,
    completions=_two_answers,
)
