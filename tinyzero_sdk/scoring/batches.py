"""Answers on their way to a scoring worker, and scores on their way back: both as columns, so that a million
rows cost neither side a million records. What is done with them is `pool.py`'s business.

Nothing in here imports pyarrow: a worker that takes the place of a killed one must start at once.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from tinyzero_sdk.records import Completion, Json, Reason, Score


class PackedText(NamedTuple):
    """n texts in one piece of memory."""

    data: bytes
    """Their UTF-8, one after the other."""

    offsets: "array[int]"
    """[n + 1]: where in `data` each begins, and the last one ends."""

    def unpack(self) -> list[str]:
        """The texts."""
        starts, ends = self.offsets, self.offsets[1:]
        if self.data.isascii():  # then a place in the bytes is a place in the text
            text = self.data.decode("ascii")
            return [text[start:end] for start, end in zip(starts, ends, strict=False)]
        return [str(self.data[start:end], "utf-8") for start, end in zip(starts, ends, strict=False)]


Column = Sequence[Any] | PackedText


class ScoreBatch(NamedTuple):
    """Some answers as a worker gets them."""

    texts: Column
    """[n] completions."""

    ground_truths: Column
    """[n], each plain JSON."""

    details: Sequence[tuple[int | None, bool]] | None = None
    """[n] number of tokens and whether it is finished; None = nothing is known."""

    careful: bool = False
    """Whether each verdict is to be sent before the next answer: one of them may keep scores from being sent."""

    def completions(self) -> Iterable[Completion | str]:
        """[n] what there is to score."""
        texts = unpacked(self.texts)
        if self.details is None:
            return texts
        return [Completion(text, *details) for text, details in zip(texts, self.details, strict=True)]


def unpacked(column: Column) -> Sequence[Any]:
    """A column as a sequence of its values."""
    return column.unpack() if isinstance(column, PackedText) else column


class Batch(Protocol):
    """Answers that are scored together."""

    def __len__(self) -> int: ...

    def pack(self, start: int, stop: int) -> ScoreBatch:
        """Those from `start` to before `stop`."""
        ...

    @property
    def weight(self) -> int:
        """About how many bytes it keeps in memory."""
        ...


AnyBatch = TypeVar("AnyBatch", bound=Batch)


@dataclass(frozen=True, slots=True)
class CompletionBatch:
    """A batch of answers held as Python objects."""

    completions: Sequence[Completion]
    """[n] what a model wrote."""

    ground_truths: Sequence[Json]
    """[n], each plain JSON."""

    def __len__(self) -> int:
        return len(self.completions)

    def pack(self, start: int, stop: int) -> ScoreBatch:
        """As the protocol says."""
        some = self.completions[start:stop]
        plain = all(done.finished and done.token_count is None for done in some)
        details = None if plain else [(done.token_count, done.finished) for done in some]
        return ScoreBatch([done.text for done in some], self.ground_truths[start:stop], details)

    @property
    def weight(self) -> int:
        """As the protocol says."""
        return sum(map(len, (done.text for done in self.completions)))


@dataclass(slots=True)
class ScoreColumns:
    """The scores on n answers, in order."""

    values: list[float] = field(default_factory=list)
    """[n] scores."""

    correct: list[bool] = field(default_factory=list)
    """[n] whether each is solved."""

    reasons: list[Reason] = field(default_factory=list)
    """[n] why."""

    answers: list[str | None] = field(default_factory=list)
    """[n] what was found in the completions."""

    parts: dict[int, dict[str, float]] = field(default_factory=dict)
    """What a score is made of, by place, where it has parts."""

    masked: set[int] = field(default_factory=set)
    """Places of those to leave out of the loss."""

    def __len__(self) -> int:
        return len(self.values)

    def add(self, score: Score) -> None:
        """Append one."""
        if score.parts:
            self.parts[len(self.values)] = dict(score.parts)
        if score.masked:
            self.masked.add(len(self.values))
        self.values.append(score.value)
        self.correct.append(score.correct)
        self.reasons.append(score.reason)
        self.answers.append(score.answer)

    def extend(self, others: "ScoreColumns") -> None:
        """Append others."""
        before = len(self)
        self.parts |= {before + place: parts for place, parts in others.parts.items()}
        self.masked |= {before + place for place in others.masked}
        self.values += others.values
        self.correct += others.correct
        self.reasons += others.reasons
        self.answers += others.answers

    def __iter__(self) -> Iterator[Score]:
        columns = zip(self.values, self.correct, self.reasons, self.answers, strict=True)
        for place, (value, correct, reason, answer) in enumerate(columns):
            yield Score(value, correct, reason, answer, self.parts.get(place, {}), place in self.masked)
