"""The records of a property that every task must have, and of its failure. The properties are in `properties/`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.testing.gold import TestCompletion
from tinyzero_sdk.testing.sampling import Draw


@dataclass(frozen=True, slots=True)
class Failure:
    """How a task fails a property, with the smallest example."""

    got: str
    expected: str
    sample: TestCompletion | None = None
    """The completion that fails; None if the property is not about completions."""


class NotChecked(TinyZeroError):
    """A property cannot be checked for this task; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Property:
    """Something that must hold for every task.

    A property of completions gives `test`, and `completions`, `draw` or both to say which completions to test; any
    other gives `examine`. Each function takes the `TaskUnderTest` first.
    """

    name: str
    text: str
    reason: str
    needs: tuple[str, ...] = ()
    """Optional hooks without which it cannot be checked."""

    about_needs: bool = False
    """It is about these hooks, so that a task without them lacks nothing."""

    test: Callable[[Any, TestCompletion, Any], Failure | None] | None = None
    """What is wrong with a completion, given its `Outcome`; None if nothing."""

    completions: Callable[[Any], Iterable[TestCompletion]] | None = None
    draw: Callable[[Any], Draw] | None = None
    """Draws the completions; as many as the task's `examples` are tested."""

    more: Callable[[Any], Iterable[TestCompletion]] | None = None
    """Completions that take long to find, tested if none of those fails."""

    examine: Callable[[Any], Failure | None] | None = None
    """Looks for a failure, if testing single completions is not enough."""

    with_oracle: bool = False
    """The test reads the oracle's result."""

    with_memory: bool = False
    """The test reads how much memory scoring takes."""

    needs_judge: bool = False
    """It is about tasks whose `info` names a judge, and is left out for others."""

    watches_calls: bool = False
    """It looks at the process during a call: calls of an asynchronous scorer overlap."""

    needs_label: bool = False
    """The test reads whether the completion is right."""

    any_text: bool = False
    """It holds for every text, so a failing completion may be cut down freely."""
