"""The records that tasks, the SDK and the trainer exchange.

Everything in an `Item` is plain JSON, so that it survives Parquet, JSON Lines and pickling.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Gt, Lt

Json = Any
"""Plain JSON: dict with str keys, list, str, int, float, bool or None."""

Split = Literal["train", "test"]

Reason = Literal["ok", "wrong", "no_answer", "malformed", "error", "timeout"]
"""Why a completion got its score: the answer is right; it is wrong; there is none; it cannot be parsed; the scorer
raised or returned an invalid score; the scorer ran out of time."""

TASK_PART = "task"  # key of the task's own value in `Score.parts`, where wrappers change it
REASONS: tuple[Reason, ...] = ("ok", "wrong", "no_answer", "malformed", "error", "timeout")
SCORER_FAILURES: tuple[Reason, ...] = ("error", "timeout")
"""Reasons that are faults of the scorer, not of the model."""


@dataclass(frozen=True, slots=True)
class Item:
    """One problem of a task."""

    ground_truth: Json
    """What `score` needs to score an answer, and nothing else."""

    data: dict[str, Json] = field(default_factory=dict)
    """The task's own columns, e.g. `nums` and `target` for countdown."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model generated after the prompt."""

    text: str
    """The text, possibly with special tokens, which the SDK removes."""

    token_count: int | None = None
    """Number of generated tokens, or None where unknown (offline files)."""

    finished: bool = True
    """False if generation was cut off by the token limit."""


@dataclass(frozen=True, slots=True, init=False)
class Score:
    """The score of one completion.

    Example:
        >>> Score(1.0, correct=True, answer="3 + 4")
        Score(value=1.0, correct=True, reason='ok', answer='3 + 4', parts={}, masked=False)
    """

    value: float
    """The reward. Finite, and inside the range that the task's `info` states."""

    correct: bool
    """Whether the problem is solved. Partial credit in `value` never makes it True."""

    reason: Reason = "ok"
    answer: str | None = None
    """The result of `extract_answer`."""

    parts: Mapping[str, float] = field(default_factory=dict)
    """By name: the parts of the reward, before their weights, that the task's `info` declares; the terms that wrappers
    add; and what else a task reports."""

    masked: bool = False
    """Whether to exclude the completion from the loss (not from the metrics)."""

    def __init__(
        self,
        value: float,
        correct: bool,
        reason: Reason = "ok",
        answer: str | None = None,
        parts: Mapping[str, float] | None = None,
        masked: bool = False,
    ) -> None:
        # By the slots' own setters, in 60 % of the time of what dataclass writes for a frozen record: one is made for
        # every completion, and with simple tasks that is a good part of scoring it.
        _set_value(self, value)
        _set_correct(self, correct)
        _set_reason(self, reason)
        _set_answer(self, answer)
        _set_parts(self, {} if parts is None else parts)
        _set_masked(self, masked)

    @classmethod
    def of_parts(
        cls, parts: Mapping[str, float], *, correct: bool, reason: Reason = "ok", masked: bool = False
    ) -> Self:
        """A score whose value the SDK adds up, of the parts that the task's `info` declares; those left out are 0.

        Example:
            >>> Score.of_parts({"answer": 0.0, "format": 1.0}, correct=False, reason="wrong").parts
            {'answer': 0.0, 'format': 1.0}
        """
        return cls(math.nan, correct, reason, parts=dict(parts), masked=masked)

    @property
    def unshaped(self) -> float:
        """The task's own value, before any wrapper."""
        return self.parts.get(TASK_PART, self.value)


_set_value, _set_correct, _set_reason, _set_answer, _set_parts, _set_masked = (
    vars(Score)[slot.name].__set__ for slot in fields(Score)
)


@dataclass(slots=True)
class ScoreColumns:
    """The scores of n completions as columns, in order."""

    values: list[Any] = field(default_factory=list)
    """Floats; None where there is no score, see `without_failures`."""

    correct: list[bool] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)
    answers: list[str | None] = field(default_factory=list)
    parts: dict[int, Mapping[str, float]] = field(default_factory=dict)
    """`Score.parts` by row, where there are any."""

    masked: set[int] = field(default_factory=set)
    """Rows with `Score.masked`."""

    def __len__(self) -> int:
        return len(self.values)

    def add(self, score: Score, answer: str | None) -> None:
        """Append a score with this answer, in place of its own."""
        values = self.values
        if score.parts:
            self.parts[len(values)] = score.parts
        if score.masked:
            self.masked.add(len(values))
        values.append(score.value)
        self.correct.append(score.correct)
        self.reasons.append(score.reason)
        self.answers.append(answer)

    def extend(self, others: Self) -> None:
        before = len(self)
        self.parts |= {before + place: parts for place, parts in others.parts.items()}
        self.masked |= {before + place for place in others.masked}
        self.values += others.values
        self.correct += others.correct
        self.reasons += others.reasons
        self.answers += others.answers

    def without_failures(self) -> Self:
        """The scores without a value where the scorer failed: that says nothing of the completion, and may pass."""
        pairs = zip(self.values, self.reasons, strict=True)
        return replace(self, values=[None if reason in SCORER_FAILURES else value for value, reason in pairs])

    def __iter__(self) -> Iterator[Score]:
        columns = zip(self.values, self.correct, self.reasons, self.answers, strict=True)
        for place, (value, correct, reason, answer) in enumerate(columns):
            yield Score(value, correct, reason, answer, self.parts.get(place, {}), place in self.masked)


@dataclass(frozen=True, slots=True)
class RewardPart:
    """A named part of a task's reward."""

    weight: float = 1.0
    """Factor in the sum; users change it by `task.weights.NAME=…`."""

    range: tuple[float, float] = (0.0, 1.0)
    """Least and greatest value before the weight, around 0, the value where there is no answer."""

    description: str = ""


@dataclass(frozen=True, slots=True)
class ScorerLimits:
    """Limits of a task whose `score` is `async def`; users change them by `task.limits.NAME=…`."""

    concurrency: Annotated[int, Ge(1)] = 16
    """Calls of `score` in progress at a time."""

    requests_per_minute: Annotated[float, Gt(0)] | None = None
    """Calls of `score` begun in a minute, retries included; none = as many as there are."""

    deadline: Annotated[float, Gt(0), Lt(math.inf)] = 60.0
    """Seconds for one answer, with all retries."""

    retries: Annotated[int, Ge(0)] = 3
    """Further calls after one that raised, with a growing pause."""


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """Description of a task."""

    description: str = ""
    """One line, shown by `tinyzero tasks`."""

    ability: str = "math"
    """Column `ability` of data files."""

    score_range: tuple[float, float] = (0.0, 1.0)
    """Least and greatest reward; a score outside is an error of the task. With `parts` it follows from them."""

    parts: Mapping[str, RewardPart] = field(default_factory=dict)
    """Parts of the reward by name. The reward is the sum of weight × value, and `score` returns `Score.of_parts(…)`."""

    waivers: Mapping[str, str] = field(default_factory=dict)
    """Checks of `tinyzero check` that the task cannot pass, each with the reason."""

    unsafe_scorer: str = ""
    """Why the scorer is unsafe for a model's text, such as "evaluates it"; empty = it is safe."""

    limits: ScorerLimits = ScorerLimits()
    """Limits of an asynchronous `score`."""

    judge: Any = None
    """The `tinyzero_sdk.judge.Judge` that `score` asks, if it does: `tinyzero check` adds the checks of judges."""
