"""The records that cross the border between a task, the host and the trainer.

Everything in an `Item` is plain JSON, so that it survives Parquet, JSON Lines and another process.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Json = Any
"""Plain JSON: dict with str keys, list, str, int, float, bool or None."""

Split = Literal["train", "test"]

Reason = Literal["ok", "wrong", "no_answer", "malformed", "error", "timeout"]
"""Why a completion got its score: the answer is right; it is well formed but not right; there is
none; it cannot be read; the scorer raised or returned nonsense; the scorer ran out of time."""

TASK_PART = "task"
"""The name, in `Score.parts`, of what the task itself gave where wrappers change it."""

REASONS: tuple[Reason, ...] = ("ok", "wrong", "no_answer", "malformed", "error", "timeout")


@dataclass(frozen=True, slots=True)
class Item:
    """One problem of a task."""

    ground_truth: Json
    """What `score` needs to judge an answer, and nothing else."""

    data: dict[str, Json] = field(default_factory=dict)
    """The task's own columns, e.g. `nums` and `target` for countdown."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model generated after the prompt."""

    text: str
    """The text, special tokens included if the decoder left them in; the host removes them."""

    token_count: int | None = None
    """Number of generated tokens, or None where it is not known (offline files)."""

    finished: bool = True
    """False if generation was cut off by the token limit."""


@dataclass(frozen=True, slots=True)
class Score:
    """A verdict on one completion.

    Example:
        >>> Score(1.0, correct=True, answer="3 + 4")
        Score(value=1.0, correct=True, reason='ok', answer='3 + 4', parts={}, masked=False)
    """

    value: float
    """The reward. Finite, and inside the range that the task's `info` states."""

    correct: bool
    """Whether the problem is solved. Partial credit in `value` never makes it True."""

    reason: Reason = "ok"
    """Why; see `Reason`."""

    answer: str | None = None
    """What `extract_answer` found, or None."""

    parts: Mapping[str, float] = field(default_factory=dict)
    """What `value` is made of, by name, where wrappers or the task add terms."""

    masked: bool = False
    """True leaves the completion out of the loss (not out of the metrics)."""

    @property
    def unshaped(self) -> float:
        """What the task itself gave, before any wrapper."""
        return self.parts.get(TASK_PART, self.value)


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """What a task says about itself; every field has a default."""

    description: str = ""
    """One line, shown by `tinyzero tasks`."""

    ability: str = "math"
    """The column `ability` of the wire format."""

    score_range: tuple[float, float] = (0.0, 1.0)
    """Least and greatest reward; a score outside it is an error of the task."""

    waivers: Mapping[str, str] = field(default_factory=dict)
    """Checks of `tinyzero check` that the task cannot pass, each with the reason."""

    unsafe_scorer: str = ""
    """Why the scorer must not be trusted with a model's text, such as "evaluates it"; empty = it may be."""
