"""Completions around answers: honest presentations, which must be paid; sprays, which must not; and hostile texts.

In a text with several answers the last one counts: whoever is paid for another can answer at random again and again.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class Attempt(NamedTuple):
    """One completion to try."""

    text: str
    intended: str | None = None
    """The answer that counts, where the text was built so that there is no doubt; else None."""
    how: str = ""
    """Name of its frame; empty = the task's own, around a changed answer."""

    plain: str = ""
    """The intended answer alone, in the task's own frame, where that is another text."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around an answer in a gold completion."""

    before: str
    after: str

    @property
    def is_closed(self) -> bool:
        """Whether something ends the answer on its own line, so that it may have space around it."""
        return bool(self.after) and not self.after[0].isspace()

    def around(self, answer: str) -> str:
        """The completion with this answer."""
        return self.before + answer + self.after


Maker = Callable[[Frame, str, str], str]

HONEST: dict[str, Maker] = {
    "gold": lambda frame, right, wrong: frame.around(right),
    "a line break after it": lambda frame, right, wrong: frame.around(right) + "\n",
    "blank lines after it": lambda frame, right, wrong: frame.around(right) + "\n\n  \n",
    "a space after it": lambda frame, right, wrong: frame.around(right) + " ",
    "a Windows line break after it": lambda frame, right, wrong: frame.around(right) + "\r\n",
    "a special token after it": lambda frame, right, wrong: frame.around(right) + "<|im_end|>",
    "a line break and a special token after it": lambda frame, right, wrong: frame.around(right) + "\n<|im_end|>\n",
    "an end token after it": lambda frame, right, wrong: frame.around(right) + "</s>",
    "text after it": lambda frame, right, wrong: frame.around(right) + "\nThat is my answer.",
    "text before it": lambda frame, right, wrong: "Let me see.\n" + frame.around(right),
    "a wrong answer before it": lambda frame, right, wrong: f"{frame.around(wrong)}\n{frame.around(right)}",
    "a wrong answer in its thinking": lambda frame, right, wrong: (
        f"<think>{frame.around(wrong)}</think>\n{frame.around(right)}"
    ),
    "many lines before it": lambda frame, right, wrong: "Let me try again.\n" * 300 + frame.around(right),
}
"""By what is done to a right answer. All of these deserve what the right answer deserves."""

HONEST_IF_CLOSED: dict[str, Maker] = {
    "spaces around the answer": lambda frame, right, wrong: frame.around(f" {right}  "),
    "the answer on a line of its own": lambda frame, right, wrong: frame.around(f"\n{right}\n"),
}
"""The same, for frames that end the answer themselves."""

SPRAYS: dict[str, Maker] = {
    "a right answer before a wrong one": lambda frame, right, wrong: f"{frame.around(right)}\n{frame.around(wrong)}",
    "a right answer and a wrong one in a line": lambda frame, right, wrong: (
        f"{frame.around(right)} {frame.around(wrong)}"
    ),
    "a right answer between wrong ones": lambda frame, right, wrong: "\n".join(
        map(frame.around, (wrong, right, wrong))
    ),
    "a right answer in the thinking before a wrong one": lambda frame, right, wrong: (
        f"<think>{frame.around(right)}</think>\n{frame.around(wrong)}"
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


def present(how: str, frame: Frame, right: str, wrong: str) -> Attempt:
    """The completion of that name."""
    intended = wrong if how in SPRAYS else right
    return Attempt(_MAKERS[how](frame, right, wrong), intended, how, frame.around(intended))


def honest(frame: Frame, right: str, wrong: str, rng: random.Random) -> Attempt:
    """A right answer, presented in one of the ways that are anyone's right."""
    return present(rng.choice([*HONEST, *(HONEST_IF_CLOSED if frame.is_closed else ())]), frame, right, wrong)


def spray(frame: Frame, right: str, wrong: str, rng: random.Random) -> Attempt:
    """A right answer that does not count, since a wrong one comes last."""
    return present(rng.choice([*SPRAYS]), frame, right, wrong)


_UNITS = (
    *("(", "((1+", "[", "-", "+1", "9", "9,", "1.", "*9", "**9", "<", "<answer>", "</answer>", "<answer></answer>"),
    *("</think>", "\\boxed{", "\\frac{1}{", "$", "a", "\n", " ", "0", "1e", "#### ", "=", "\ud800", "\x00", "é", "|"),
)


def hostile(frame: Frame, answer: str, rng: random.Random) -> Attempt:
    """Much of one thing, inside the answer, around it or instead of the completion. Rarely a megabyte."""
    unit = rng.choice(_UNITS)
    length = 2 ** rng.randrange(3, 21 if rng.random() < 0.02 else 13)
    much = unit * (length // len(unit))
    match rng.randrange(6):
        case 0:
            text = frame.around(much)
        case 1:
            text = frame.around(much + answer)
        case 2:
            text = frame.around(answer + much)
        case 3:
            text = much + frame.around(answer)
        case 4:
            text = frame.around(answer) + much
        case _:
            text = frame.before + much
    return Attempt(text)


def broken(frame: Frame, answer: str, rng: random.Random) -> Attempt:
    """A completion with something wrong about its frame: a part missing, twice, or in the wrong place."""
    text = frame.around(answer)
    start, end = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
    piece = text[start:end]
    match rng.randrange(5):
        case 0:
            text = text[:start] + text[end:]
        case 1:
            text = text[:end] + piece + text[end:]
        case 2:
            text = text[:end]
        case 3:
            text = text[:start] + piece.swapcase() + text[end:]
        case _:
            text = frame.around(frame.around(answer))
    return Attempt(text)
