"""Completions around answers: honest presentations, which must be paid; sprays, which must not; and hostile texts.

In a text with several answers the last one counts: whoever is paid for another can answer at random again and again.
"""

import random
from collections.abc import Callable
from typing import NamedTuple

from tinyzero_sdk.testing.completions import hostile_text, huge_text, place
from tinyzero_sdk.testing.gold import Gold
from tinyzero_sdk.testing.grammar import Choose


class Attempt(NamedTuple):
    """One completion to try."""

    text: str
    intended: str | None = None
    """The answer that counts, where the text was built so that there is no doubt; else None."""
    how: str = ""
    """Name of its frame; empty = the task's own, around a changed answer."""

    plain: str = ""
    """The intended answer alone, in the task's own frame, where that is another text."""


Maker = Callable[[Gold, str, str], str]

HONEST: dict[str, Maker] = {
    "gold": lambda gold, right, wrong: gold.with_answer(right),
    "a line break after it": lambda gold, right, wrong: gold.with_answer(right) + "\n",
    "blank lines after it": lambda gold, right, wrong: gold.with_answer(right) + "\n\n  \n",
    "a space after it": lambda gold, right, wrong: gold.with_answer(right) + " ",
    "a Windows line break after it": lambda gold, right, wrong: gold.with_answer(right) + "\r\n",
    "a special token after it": lambda gold, right, wrong: gold.with_answer(right) + "<|im_end|>",
    "a line break and a special token after it": lambda gold, right, wrong: gold.with_answer(right) + "\n<|im_end|>\n",
    "an end token after it": lambda gold, right, wrong: gold.with_answer(right) + "</s>",
    "text after it": lambda gold, right, wrong: gold.with_answer(right) + "\nThat is my answer.",
    "text before it": lambda gold, right, wrong: "Let me see.\n" + gold.with_answer(right),
    "a wrong answer before it": lambda gold, right, wrong: f"{gold.with_answer(wrong)}\n{gold.with_answer(right)}",
    "a wrong answer in its thinking": lambda gold, right, wrong: (
        f"<think>{gold.with_answer(wrong)}</think>\n{gold.with_answer(right)}"
    ),
    "many lines before it": lambda gold, right, wrong: "Let me try again.\n" * 300 + gold.with_answer(right),
}
"""By what is done to a right answer. All of these deserve what the right answer deserves."""

HONEST_IF_CLOSED: dict[str, Maker] = {
    "spaces around the answer": lambda gold, right, wrong: gold.with_answer(f" {right}  "),
    "the answer on a line of its own": lambda gold, right, wrong: gold.with_answer(f"\n{right}\n"),
}
"""The same, for frames that end the answer themselves."""

SPRAYS: dict[str, Maker] = {
    "a right answer before a wrong one": lambda gold, right, wrong: (
        f"{gold.with_answer(right)}\n{gold.with_answer(wrong)}"
    ),
    "a right answer and a wrong one in a line": lambda gold, right, wrong: (
        f"{gold.with_answer(right)} {gold.with_answer(wrong)}"
    ),
    "a right answer between wrong ones": lambda gold, right, wrong: "\n".join(
        map(gold.with_answer, (wrong, right, wrong))
    ),
    "a right answer in the thinking before a wrong one": lambda gold, right, wrong: (
        f"<think>{gold.with_answer(right)}</think>\n{gold.with_answer(wrong)}"
    ),
}
"""By what is done to a right answer: the last answer is wrong."""


_MAKERS = HONEST | HONEST_IF_CLOSED | SPRAYS
_SAME_FAULT = {
    "blank lines after it": "a line break after it",
    "a Windows line break after it": "a line break after it",
    "a line break and a special token after it": "a line break after it",
    "text after it": "a line break after it",
    "a right answer and a wrong one in a line": "a right answer before a wrong one",
    "a right answer between wrong ones": "a right answer before a wrong one",
    "a wrong answer in its thinking": "a wrong answer before it",
}
"""Frames that hold another one: where that fails, they tell nothing new."""


def simpler_presentation(how: str) -> str:
    """The frame that fails wherever this one fails for the same reason."""
    return _SAME_FAULT.get(how, how)


def presentation_traits(how: str) -> set[str]:
    """What sets a frame apart: its name, and that of the simpler frame in it."""
    return {how, simpler_presentation(how)}


def present(how: str, gold: Gold, right: str, wrong: str) -> Attempt:
    """The completion of that name."""
    intended = wrong if how in SPRAYS else right
    return Attempt(_MAKERS[how](gold, right, wrong), intended, how, gold.with_answer(intended))


def honest(gold: Gold, right: str, wrong: str, rng: random.Random) -> Attempt:
    """A right answer, presented in one of the ways that are anyone's right."""
    return present(rng.choice([*HONEST, *(HONEST_IF_CLOSED if gold.is_closed else ())]), gold, right, wrong)


def spray(gold: Gold, right: str, wrong: str, rng: random.Random) -> Attempt:
    """A right answer that does not count, since a wrong one comes last."""
    return present(rng.choice([*SPRAYS]), gold, right, wrong)


def hostile(gold: Gold, choose: Choose) -> Attempt:
    """Hostile text in the answer, around it or instead of the completion; rarely a megabyte."""
    return Attempt(place(huge_text(choose) if choose(50) == 0 else hostile_text(choose), gold, choose))
