"""Completions sent to scoring workers, as columns rather than a record for each row.

This module does not import pyarrow, so that the replacement of a killed worker starts at once.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from tinyzero_sdk.records import Completion, Json, Score


class PackedText(NamedTuple):
    """n texts in one buffer."""

    data: bytes
    """Their UTF-8, concatenated."""

    offsets: "array[int]"
    """[n + 1] start of each text in `data`, and the end of the last."""

    def unpack(self) -> list[str]:
        starts, ends = self.offsets, self.offsets[1:]
        if self.data.isascii():  # then byte offsets are character offsets
            text = self.data.decode("ascii")
            return [text[start:end] for start, end in zip(starts, ends, strict=False)]
        return [str(self.data[start:end], "utf-8") for start, end in zip(starts, ends, strict=False)]


Column = Sequence[Any] | PackedText


class ScoreBatch(NamedTuple):
    """Completions as a worker receives them."""

    texts: Column
    """[n] completions."""

    ground_truths: Column
    """[n] plain JSON."""

    details: Sequence[tuple[int | None, bool]] | None = None
    """[n] number of tokens, and whether the completion is finished; None = unknown."""

    groups: Sequence[int] = ()
    """Numbers of completions of each problem, whose `scores` are to be compared; () = to be scored."""

    scores: Sequence[Score] = ()
    """[n] what `Task.score_alone` gave."""

    def completions(self) -> Sequence[Completion | str]:
        """[n] completions to score."""
        texts = unpacked(self.texts)
        if self.details is None:
            return texts
        return [Completion(text, *details) for text, details in zip(texts, self.details, strict=True)]

    def numbered_groups(self) -> Iterator[tuple[int, tuple[Sequence[Completion | str], Json, Sequence[Score]]]]:
        """Each group's first row, and its arguments of `Task.compare`."""
        completions, truths, start = self.completions(), unpacked(self.ground_truths), 0
        for size in self.groups:
            rows = slice(start, start + size)
            yield start, (completions[rows], truths[start], self.scores[rows])
            start += size


def unpacked(column: Column) -> Sequence[Any]:
    """A column as a sequence of its values."""
    return column.unpack() if isinstance(column, PackedText) else column


class Batch(Protocol):
    """Completions that are scored together."""

    def __len__(self) -> int: ...

    @property
    def groups(self) -> Sequence[int]:
        """Numbers of completions of each problem, in order, for a task that compares them; else not read."""

    @property
    def weight(self) -> int:
        """Approximate bytes in memory."""

    def pack(self, start: int, stop: int) -> ScoreBatch:
        """Completions `start` to `stop` - 1."""


AnyBatch = TypeVar("AnyBatch", bound=Batch)


@dataclass(frozen=True, slots=True)
class CompletionBatch:
    """A batch of n completions and ground truths (plain JSON) as Python objects."""

    completions: Sequence[Completion]
    ground_truths: Sequence[Json]
    groups: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.completions)

    def pack(self, start: int, stop: int) -> ScoreBatch:
        some = self.completions[start:stop]
        plain = all(done.finished and done.token_count is None for done in some)
        details = None if plain else [(done.token_count, done.finished) for done in some]
        return ScoreBatch([done.text for done in some], self.ground_truths[start:stop], details)

    @property
    def weight(self) -> int:
        return sum(len(done.text) for done in self.completions)
