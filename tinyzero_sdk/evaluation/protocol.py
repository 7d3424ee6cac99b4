"""The records of an evaluation, and the protocols of what samples: no evaluation runs and no model is loaded here.

The trainer and `openai_endpoint.py` provide samplers; `evaluate.py` runs them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tinyzero_sdk.records import Completion, Item, Json, Split
from tinyzero_sdk.tasks.task import Task

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tinyzero_sdk.scoring.score_file import ScoreReport

EVALUATION_SEED = 0
"""Held-out problems are the same in every run and evaluation of a task, whatever seeds those have."""

DEFAULT_SIZE = 1024


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """What a user asks of `tinyzero eval`; None = not said."""

    task: str | None = None
    """Name or file of the task."""

    overrides: Sequence[str] = ()
    """`key=value`: the task's options as `task.KEY`, and other settings of the sampler."""

    model: str | None = None
    """What to evaluate."""

    split: Split = "test"
    """Where the problems are from."""

    size: int | None = None
    """How many."""

    test_fraction: float | None = None
    """The share of all problems that is held out."""

    template: str | None = None
    """Name of the prompt template."""

    samples: int = 1
    """Completions of each problem."""

    temperature: float = 1.0
    """0 = the likeliest token each time."""

    top_p: float = 1.0
    """Nucleus sampling; 1 = off."""

    max_tokens: int | None = None
    """Longest completion."""

    seed: int | None = None
    """Of the sampling."""

    allow_unsafe_scorers: bool = False
    """See `load_task`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of an evaluation."""

    index: int
    """Its number, from 0."""

    item: Item
    """The problem itself."""

    prompt: "str | list[dict[str, str]]"
    """As `make_prompt` worded it."""

    missing: tuple[int, ...]
    """Numbers of the completions that are still to be sampled, from 0."""


Keep = Callable[[Problem, int, Completion], None]
"""Takes a completion: its problem, its number, and itself. One that is there already is passed over."""


class Sampler(Protocol):
    """Samples completions."""

    template: str
    """Name of the template that prompts are to be worded with."""

    settings: Mapping[str, Json]
    """What else its completions depend on, for the record; an evaluation goes on only where it is the same."""

    def sample(self, problems: Sequence[Problem], keep: Keep, advance: Callable[[int], None]) -> None:
        """Sample what is missing of the problems, and hand each completion over as it comes.

        Args:
            problems: all of the evaluation, in order; of some nothing may be missing.
            keep: takes a completion.
            advance: may be told how many more are finished that will be handed over later, together.
        """


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """An evaluation that is ready to begin."""

    task: Task
    """With options and wrappers."""

    model: str
    """Its name, for the record."""

    opener: Callable[[], AbstractContextManager[Sampler]]
    """Loads the model, or connects to it."""

    max_tokens: int
    """Longest completion, in tokens."""

    size: int = DEFAULT_SIZE
    """Number of problems."""

    test_fraction: float = 1 / 16
    """The share of all problems that is held out."""

    split: Split = "test"
    """Where the problems are from."""

    samples: int = 1
    """Completions of each."""

    temperature: float = 1.0
    """0 = the likeliest token each time."""

    top_p: float = 1.0
    """Nucleus sampling; 1 = off."""

    seed: int | None = None
    """Of the sampling."""

    workers: int = 1
    """Scoring processes."""

    time_limit: float = 5.0
    """Seconds to score one completion."""

    memory_limit_gb: float = 4.0
    """Address space of a scoring process, in GiB."""

    def settings(self, sampler: Sampler) -> dict[str, Json]:
        """All that the completions depend on."""
        options = {} if self.task.options is None else asdict(self.task.options)
        return {
            "model": self.model,
            "task": self.task.name,
            "task_version": self.task.version,
            "task_options": {name: _plain(value) for name, value in options.items()},
            "template": sampler.template,
            **{name: getattr(self, name) for name in ("split", "size", "test_fraction", "samples")},
            **{name: getattr(self, name) for name in ("temperature", "top_p", "max_tokens", "seed")},
            **sampler.settings,
        }


@runtime_checkable
class LocalModels(Protocol):
    """What the hook `local_models` returns: plans evaluations of models that are loaded on this machine."""

    def plan(self, request: EvaluationRequest) -> EvaluationPlan:
        """How to evaluate `request.model`, which may be None, on this machine.

        Raises:
            TinyZeroError: it cannot be done as asked.
        """

    def key_help(self) -> "Iterable[RenderableType]":
        """What `request.overrides` may hold, for the end of `tinyzero eval --help`."""


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """What a model did on held-out problems."""

    problems: int
    """Number of problems."""

    samples: int
    """Completions of each."""

    accuracy: float
    """Share of completions that are correct."""

    standard_error: float
    """Of the accuracy, over problems."""

    mean_score: float
    """Mean reward."""

    by_reason: Mapping[str, int]
    """Number of completions by reason of their score."""

    mean_length: float | None
    """Mean length of a completion in tokens; None where no number of tokens is known."""

    tokens_per_second: float | None
    """Tokens sampled in this sitting over its time; None where none was, or the number is not known."""

    summary: Mapping[str, Any] = field(default_factory=dict)
    """The summary that `tinyzero score` gives."""

    report: "ScoreReport | None" = None
    """What became of the scoring."""


class EvaluationObserver(Protocol):
    """Is told how far an evaluation is."""

    def sampling(self, kept: int, ahead: int, total: int) -> None:
        """So many completions are kept, so many more are finished, of so many."""

    def scoring(self, share: float) -> None:
        """So much is scored."""


def _plain(value: Any) -> Json:
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value
