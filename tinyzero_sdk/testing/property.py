"""What a law is, and what a failure of one is. The laws themselves are in `laws/`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.testing.completions import Sample

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from tinyzero_sdk.testing.task_under_test import Bench


class Problem(NamedTuple):
    """How a law is broken."""

    got: str
    """What came of it."""

    expected: str
    """What the law asks for."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A law that the task breaks, with the smallest example found."""

    got: str
    """What came of it."""

    expected: str
    """What the law asks for."""

    sample: Sample | None = None
    """The completion that breaks it; None where the law is not about completions."""


class NotChecked(TinyZeroError):
    """A law cannot be judged for this task; the message tells what is missing."""


@dataclass(frozen=True, slots=True)
class Law:
    """Something that every task must keep.

    A law about completions gives `problem`, which judges one, and `listed` or `drawn` or both, which say where to
    look for one that breaks it; any other gives `examine`.
    """

    name: str
    """By which it is asked for and waived."""

    text: str
    """What must hold, in one sentence."""

    reason: str
    """Why, in one or two sentences."""

    needs: tuple[str, ...] = ()
    """Optional hooks without which it cannot be judged."""

    problem: "Callable[[Bench, Sample], Problem | None] | None" = None
    """What is wrong with a completion; None = nothing."""

    listed: "Callable[[Bench], Iterable[Sample]] | None" = None
    """Completions that are all judged."""

    drawn: "Callable[[Bench], SearchStrategy[Sample]] | None" = None
    """Completions of which some are judged."""

    examine: "Callable[[Bench], Failure | None] | None" = None
    """Where the law is not about single completions: looks for a failure."""

    needs_label: bool = False
    """It asks of a completion whether it is known to be right."""

    any_text: bool = False
    """It holds for every text, so that a completion that breaks it may be cut down freely."""
