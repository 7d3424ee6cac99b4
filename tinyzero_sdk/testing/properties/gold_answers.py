"""Laws about right answers: what they score, and that their surroundings do not matter."""

import itertools
from collections.abc import Iterator

from tinyzero_sdk.testing.completions import Sample
from tinyzero_sdk.testing.gold import Gold
from tinyzero_sdk.testing.properties.data import test_items
from tinyzero_sdk.testing.properties.messages import tell
from tinyzero_sdk.testing.property import Failure, Law, Problem
from tinyzero_sdk.testing.task_under_test import Bench


def must_be_full(bench: Bench, sample: Sample) -> Problem | None:
    """The completion is right, and scores as gold does."""
    seen = bench.observe(sample)
    if bench.is_full(seen):
        return None
    return Problem(tell(seen), f"score {bench.task.info.score_range[1]:g}, correct")


def _golds(bench: Bench) -> Iterator[Sample]:
    for gold in bench.golds:
        yield Sample(gold.completion, gold.item.ground_truth, "gold, as `solve` gives it", right=True)


def _examine_solvable(bench: Bench) -> Failure | None:
    for item in [*bench.items, *test_items(bench)]:
        bench.tried += 1
        if bench.task.solve(item) is None:
            return Failure(f"solve gave None for {item}", "a gold completion for every item")
    return None


EVERY_ITEM_SOLVABLE = Law(
    name="every-item-solvable",
    text="`solve` gives a gold completion for every item of either split.",
    reason="A problem without a solution can only teach a model that answering does not pay; where numbers and target"
    " are drawn apart, most problems have none.",
    needs=("solve",),
    examine=_examine_solvable,
)

GOLD_SCORES_FULL = Law(
    name="gold-scores-full",
    text="Every gold completion is correct and gets the greatest reward.",
    reason="If the right answer does not score full, nothing that a model learns from the reward is to be trusted.",
    needs=("solve",),
    problem=must_be_full,
    listed=_golds,
)


_SPECIAL = ["<|im_end|>", "<|endoftext|>", "</s>", "\n", "\n\n", "\r\n", " ", "\n<|im_end|>", " </s>", "<|im_end|>\n"]
_SPACES = [(" ", " "), ("\n", "\n"), ("", "\n"), ("\n", ""), ("  ", ""), ("\t", "\t"), ("\r\n", "\r\n"), ("\n\n", " ")]
_CLOSED = {">": "<", "}": "}", "{": "}", "(": ")", "[": "]", "*": "*", "`": "`"}


def _variants(bench: Bench) -> Iterator[Sample]:
    for gold in bench.needed_frames:
        truth = gold.item.ground_truth
        for end in _SPECIAL:
            yield Sample(gold.completion + end, truth, f"gold with {end!r} after it", right=True)
        for start in ("\n", " ", "\n\n"):
            yield Sample(start + gold.completion, truth, f"gold with {start!r} before it", right=True)
        if _is_closed(gold):
            for left, right in _SPACES:
                text = gold.before + left + gold.answer + right + gold.after
                yield Sample(text, truth, f"gold with {left!r} and {right!r} around its answer", right=True)


def _is_closed(gold: Gold) -> bool:
    """Whether marks stand on both sides of the answer, so that space within them belongs to neither."""
    return bool(gold.before and gold.after) and _CLOSED.get(gold.before[-1]) == gold.after[0]


FORMATTING_IS_FREE = Law(
    name="formatting-is-free",
    text="Space around the answer or the completion, a line of its own, and special tokens at the end change nothing.",
    reason="A model is not to be punished for a line break: rewards that read the last line only, or no line breaks,"
    " have taught models to write everything in one line.",
    needs=("solve",),
    problem=must_be_full,
    listed=_variants,
)


_BEFORE = [
    "So, ", "Let me think.\n", "First I try 3 and 4.\n\n", "<think>12 + 30 = 42, or not?</think>\n",
    "<think>\nI check it twice.\n</think>\n\n", "**Solution**\n\n", "Here is my answer:\n",
]  # fmt: skip
_LONG = "I check it once more, to be sure of it. " * 490
"""Some 20,000 characters: a scorer that cuts completions off, or reads their end alone, loses the answer."""

_AFTER = ["\nDone.", " That is it.", "\n\nI am sure of it.", "\n\n(I checked it twice.)", "\nThank you!\n"]


def _surrounded(bench: Bench) -> Iterator[Sample]:
    for gold in bench.needed_frames:
        truth = gold.item.ground_truth
        for before, after in itertools.product(["", *_BEFORE], ["", *_AFTER]):
            if (before or after) and (not after or _is_closed(gold)):
                yield Sample(before + gold.completion + after, truth, "gold with other text around it", right=True)
    for gold in bench.needed_frames[:4]:
        truth = gold.item.ground_truth
        yield Sample(f"{_LONG}\n{gold.completion}", truth, "gold after 20,000 characters of other text", right=True)
        if _is_closed(gold):
            yield Sample(
                f"{gold.completion}\n{_LONG}", truth, "gold before 20,000 characters of other text", right=True
            )


ONLY_THE_ANSWER_COUNTS = Law(
    name="only-the-answer-counts",
    text="Text before the answer, thoughts, and text after it do not change the score.",
    reason="What a model writes beside its answer is its own affair; a reward that reads it can be moved by it.",
    needs=("solve",),
    problem=must_be_full,
    listed=_surrounded,
)

_TURNS = ["\n", " ", "\n\nNo, wait.\n", "\nSo: "]


def _must_follow_the_last(bench: Bench, sample: Sample) -> Problem | None:
    if sample.right:
        return must_be_full(bench, sample)
    seen = bench.observe(sample)
    return Problem(tell(seen), "not correct: the last answer is wrong") if seen.correct else None


def _two_answers(bench: Bench) -> Iterator[Sample]:
    for gold, wrong in bench.wrongs:
        for turn in _TURNS:
            texts = (gold.with_answer(wrong), gold.completion)
            yield Sample(turn.join(texts), gold.item.ground_truth, "a wrong answer, then gold", right=True)
            text = turn.join(reversed(texts))
            yield Sample(text, gold.item.ground_truth, "gold, then a wrong answer", right=False)


LAST_ANSWER_COUNTS = Law(
    name="last-answer-counts",
    text="Of several answers the last one is judged, and no other.",
    reason="A model that corrects itself stands by what it says last. A reward that takes the first answer pays for"
    " what was withdrawn; one that takes any pays for guessing.",
    needs=("solve",),
    problem=_must_follow_the_last,
    needs_label=True,
    listed=_two_answers,
)
