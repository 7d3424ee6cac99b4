"""The records of an evaluation, and the protocols of what samples: no evaluation runs and no model is loaded here.

The trainer and `openai_endpoint.py` provide samplers; `evaluate.py` runs them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tinyzero_sdk.data.rows import plain
from tinyzero_sdk.records import Completion, Item, Json, Split
from tinyzero_sdk.tasks.task import Task

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tinyzero_sdk.scoring.score_file import ScoreReport
    from tinyzero_sdk.scoring.summary import Summary

EVALUATION_SEED = 0  # held-out problems are the same in every run and evaluation of a task, whatever their seeds
DEFAULT_SIZE = 1024


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """The arguments of `tinyzero eval`, as in `EvaluationPlan`; None = not given."""

    task: str | None = None
    overrides: Sequence[str] = ()  # `key=value`: the task's options as `task.KEY`, and other settings of the sampler
    model: str | None = None
    split: Split = "test"
    size: int | None = None
    test_fraction: float | None = None
    template: str | None = None
    samples: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int | None = None
    seed: int | None = None
    allow_unsafe_scorers: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    index: int
    item: Item
    prompt: "str | list[dict[str, str]]"
    missing: tuple[int, ...]  # indices of the completions still to be sampled, from 0


Keep = Callable[[Problem, int, Completion], None]
"""Stores a completion, given its problem and its index; one that is already stored is ignored."""


class Sampler(Protocol):
    template: str
    settings: Mapping[str, Json]
    """What else its completions depend on; an evaluation resumes only with equal settings."""

    def sample(self, problems: Sequence[Problem], keep: Keep, advance: Callable[[int], None]) -> None:
        """Sample the missing completions of all problems, in order, and pass each to `keep` as it arrives.

        `advance` may be called with the number of further completions that are finished and kept later.
        """


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """An evaluation that is ready to start: `samples` completions of each of `size` problems."""

    task: Task
    model: str
    opener: Callable[[], AbstractContextManager[Sampler]]
    max_tokens: int
    size: int = DEFAULT_SIZE
    test_fraction: float = 1 / 16
    split: Split = "test"
    samples: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    workers: int = 1
    timeout: float = 5.0
    memory_limit_gb: float = 4.0

    def settings(self, sampler: Sampler) -> dict[str, Json]:
        return {
            "model": self.model,
            "task": self.task.name,
            "task_version": self.task.version,
            "task_options": plain(self.task.settings),
            **({"data_version": self.task.data_version} if self.task.data_version else {}),
            "template": sampler.template,
            **{name: getattr(self, name) for name in ("split", "size", "test_fraction", "samples")},
            **{name: getattr(self, name) for name in ("temperature", "top_p", "max_tokens", "seed")},
            **sampler.settings,
        }


@runtime_checkable
class LocalModels(Protocol):
    """What the hook `local_models` returns: plans evaluations of models that are loaded on this machine."""

    def plan(self, request: EvaluationRequest) -> EvaluationPlan:
        """The plan to evaluate `request.model`, which may be None, on this machine."""

    def key_help(self) -> "Iterable[RenderableType]":
        """The keys of `request.overrides`, shown at the end of `tinyzero eval --help`."""


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The result of an evaluation."""

    report: "ScoreReport"
    summary: "Summary"
    tokens_per_second: float | None  # of this session; None where unknown, or nothing was sampled


class EvaluationObserver(Protocol):
    def sampling(self, kept: int, finished: int, total: int) -> None:
        """`kept` completions of `total` are stored, and `finished` more will be."""

    def scoring(self, fraction: float) -> None:
        """A fraction of the completions is scored."""
