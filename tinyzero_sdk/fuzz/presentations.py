"""Completions around answers: honest presentations, which score full; sprays, which must not; and hostile texts.

In a text with several answers the last one counts: a reward for any other rewards guessing.
"""

import random
from typing import NamedTuple

from tinyzero_sdk.testing.completions import hostile_text, huge_text, place
from tinyzero_sdk.testing.gold import Gold
from tinyzero_sdk.testing.grammar import Choose


class Attempt(NamedTuple):
    text: str
    intended: str | None = None
    """The answer that counts by construction; None where the text leaves it open."""

    how: str = ""
    """Name of its presentation; empty = the task's own, around a mutated answer."""

    plain: str = ""
    """The intended answer in the task's own presentation, if that is a different text."""


HONEST = {
    "gold": "{right}",
    "a line break after it": "{right}\n",
    "blank lines after it": "{right}\n\n  \n",
    "a space after it": "{right} ",
    "a Windows line break after it": "{right}\r\n",
    "a special token after it": "{right}<|im_end|>",
    "a line break and a special token after it": "{right}\n<|im_end|>\n",
    "an end token after it": "{right}</s>",
    "text after it": "{right}\nThat is my answer.",
    "text before it": "Let me see.\n{right}",
    "a wrong answer before it": "{wrong}\n{right}",
    "a wrong answer in its thinking": "<think>{wrong}</think>\n{right}",
    "many lines before it": "Let me try again.\n" * 300 + "{right}",
}
"""Ways to present a right answer, from gold presentations of both answers; each scores as the right one alone does."""

HONEST_IF_CLOSED = {"spaces around the answer": " {}  ", "the answer on a line of its own": "\n{}\n"}
"""The same, within the marks of a presentation that closes the answer."""

SPRAYS = {
    "a right answer before a wrong one": "{right}\n{wrong}",
    "a right answer and a wrong one in a line": "{right} {wrong}",
    "a right answer between wrong ones": "{wrong}\n{right}\n{wrong}",
    "a right answer in the thinking before a wrong one": "<think>{right}</think>\n{wrong}",
}
"""Ways to add a wrong last answer to a right one."""

_SAME_FAULT = {
    "blank lines after it": "a line break after it",
    "a Windows line break after it": "a line break after it",
    "a line break and a special token after it": "a line break after it",
    "text after it": "a line break after it",
    "a right answer and a wrong one in a line": "a right answer before a wrong one",
    "a right answer between wrong ones": "a right answer before a wrong one",
    "a wrong answer in its thinking": "a wrong answer before it",
}
"""Presentations that contain another one: if that fails, they add nothing."""


def presentation_traits(how: str) -> set[str]:
    """The traits of a presentation: its name, and that of the simpler one in it."""
    return {how, _SAME_FAULT.get(how, how)}


def present(how: str, gold: Gold, right: str, wrong: str) -> Attempt:
    intended = wrong if how in SPRAYS else right
    if how in HONEST_IF_CLOSED:
        text = gold.with_answer(HONEST_IF_CLOSED[how].format(right))
    else:
        text = (HONEST | SPRAYS)[how].format(right=gold.with_answer(right), wrong=gold.with_answer(wrong))
    return Attempt(text, intended, how, gold.with_answer(intended))


def honest(gold: Gold, right: str, wrong: str, rng: random.Random) -> Attempt:
    return present(rng.choice([*HONEST, *(HONEST_IF_CLOSED if gold.is_closed else ())]), gold, right, wrong)


def spray(gold: Gold, right: str, wrong: str, rng: random.Random) -> Attempt:
    """A right answer that does not count, since a wrong one comes last."""
    return present(rng.choice([*SPRAYS]), gold, right, wrong)


def hostile(gold: Gold, choose: Choose) -> Attempt:
    """Hostile text in the answer, around it or instead of the completion; rarely a megabyte."""
    return Attempt(place(huge_text(choose) if choose(50) == 0 else hostile_text(choose), gold, choose))
