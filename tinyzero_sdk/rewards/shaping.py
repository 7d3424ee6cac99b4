"""Score wrappers that shape the reward of any task by format, length or repetition, in training and offline.

They change `value` and `masked`, never `correct`; the task's own value stays in `parts["task"]`, and what a wrapper
adds is there under its name, or under `term`. `needs` names the columns that a wrapper requires in a file of outputs.
"""

import math
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Lt

from tinyzero_sdk.errors import DataError
from tinyzero_sdk.hookspecs import hookimpl
from tinyzero_sdk.records import Completion, Score

Shaping = Generator[None, Score, Score]


@dataclass(frozen=True)
class FormatScore:
    """`format`: a reward for an answer that can be parsed but is wrong."""

    value: Annotated[float, Gt(0), Lt(1)] = 0.1
    """Reward of such an answer, unless the task gives more; less than that of a right answer."""

    term: ClassVar = "format_score"  # not `format`, as tasks name a part of their own

    @hookimpl(wrapper=True)
    def score_completion(self) -> Shaping:
        score = yield
        return _add(score, self.term, max(0.0, self.value - score.value)) if score.reason == "wrong" else score


@dataclass(frozen=True)
class CosineLength:
    """`cosine`: right answers score more when short, wrong ones more when long (arXiv 2502.03373, §3.1).

    A right answer scores from `correct[1]` at no length down to `correct[0]` at the limit, a wrong one from
    `wrong[0]` up to `wrong[1]`, both along half a cosine; one that was truncated, or is longer, scores `exceeded`.
    """

    limit: Annotated[int, Gt(0)]
    """L_max, in tokens."""

    correct: tuple[float, float] = (1.0, 2.0)
    """Reward of a right answer: at the limit, and of no length."""

    wrong: tuple[float, float] = (-10.0, 0.0)
    """Reward of a wrong answer: of no length, and at the limit."""

    exceeded: float = -10.0
    """Reward at or over the limit."""

    needs: ClassVar = ("token_count",)

    @hookimpl(wrapper=True)
    def score_completion(self, completion: Completion) -> Shaping:
        score = yield
        length = _tokens(completion, "cosine")
        if length >= self.limit or not completion.finished:
            return _add(score, "cosine", self.exceeded - score.value)
        low, high = self.correct if score.correct else (self.wrong[1], self.wrong[0])
        target = low + 0.5 * (high - low) * (1 + math.cos(math.pi * length / self.limit))
        return _add(score, "cosine", target - score.value)


@dataclass(frozen=True)
class SoftOverlong:
    """`overlong`: DAPO's soft penalty of completions that come close to the limit (arXiv 2503.14476, eq. 13)."""

    limit: Annotated[int, Gt(0)]
    """L_max, in tokens: from here on the penalty is 1."""

    buffer: Annotated[int, Gt(0)] | None = None
    """L_cache: tokens before the limit over which the penalty rises; none = a fifth of it (as in the paper)."""

    needs: ClassVar = ("token_count",)

    def __post_init__(self) -> None:
        if self.buffer is not None and self.buffer > self.limit:
            raise ValueError(f"buffer={self.buffer} is more than limit={self.limit}")

    @hookimpl(wrapper=True)
    def score_completion(self, completion: Completion) -> Shaping:
        score = yield
        buffer = self.buffer or max(1, self.limit // 5)
        excess = _tokens(completion, "overlong") - (self.limit - buffer)
        return _add(score, "overlong", -min(1.0, max(0.0, excess / buffer)))


@dataclass(frozen=True)
class MaskTruncated:
    """`mask_truncated`: truncated completions are excluded from the loss (arXiv 2503.14476, §3.4)."""

    needs: ClassVar = ("finished",)

    @hookimpl(wrapper=True)
    def score_completion(self, completion: Completion) -> Shaping:
        score = yield
        return score if completion.finished else replace(score, masked=True)


@dataclass(frozen=True)
class RepetitionPenalty:
    """`repetition`: minus the fraction of a text's n-grams that it repeats (after arXiv 2502.03373, §3.2)."""

    penalty: Annotated[float, Ge(0)] = 1.0
    """Penalty of a text that only repeats itself."""

    size: Annotated[int, Gt(0)] = 20
    """n, in words (separated by whitespace)."""

    @hookimpl(wrapper=True)
    def score_completion(self, completion: Completion) -> Shaping:
        score = yield
        return _add(score, "repetition", -self.penalty * repeated_fraction(completion.text, self.size))


def repeated_fraction(text: str, size: int) -> float:
    """Fraction of the text's n-grams of `size` words that occurred in it before; 0 where it has fewer words.

    Example:
        >>> repeated_fraction("a b a b a b", 2)
        0.6
    """
    words = text.split()
    count = len(words) - size + 1
    if count < 1:
        return 0.0
    # Hashes, since the n-grams of a long text would take n times its memory.
    different = Counter(hash(tuple(words[start : start + size])) for start in range(count))
    return 1 - len(different) / count


def _tokens(completion: Completion, name: str) -> int:
    if completion.token_count is None:
        raise DataError(f"the wrapper {name!r} needs each completion's token count, but this one has none")
    return completion.token_count


def _add(score: Score, name: str, amount: float) -> Score:
    if score.reason == "error":
        return score  # the scorer failed, which says nothing about the completion
    parts = {**score.parts, name: score.parts.get(name, 0.0) + amount}  # two may have one name and other settings
    return replace(score, value=score.value + amount, parts=parts)
