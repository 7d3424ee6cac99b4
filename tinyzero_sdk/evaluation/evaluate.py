"""Evaluating a model: sample completions of held-out problems, keep each as it comes, score them, sum up.

Whoever samples is a `Sampler`: `openai_endpoint.py` has one, the trainer brings another. No model is loaded in here.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

from tinyzero_sdk.data.rows import item_to_row
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.evaluation.sample_log import SampleFile, missing
from tinyzero_sdk.records import Completion, Item, Json, Split
from tinyzero_sdk.tasks.task import Task

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tinyzero_sdk.scoring.score_file import ScoreReport

EVALUATION_SEED = 0
"""Held-out problems are the same in every run and evaluation of a task, whatever seeds those have."""

DEFAULT_SIZE = 1024
_OWN_COLUMNS = ("completion", "token_count", "finished", "sample", "sampling")


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """What a user asks of `tinyzero eval`; None = not said."""

    task: str | None = None
    """Name or file of the task."""

    words: Sequence[str] = ()
    """`key=value` words: the task's options as `task.KEY`, and what else the sampler knows."""

    model: str | None = None
    """What to evaluate."""

    split: Split = "test"
    """Where the problems are from."""

    size: int | None = None
    """How many."""

    test_share: float | None = None
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

    test_share: float = 1 / 16
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
            **{name: getattr(self, name) for name in ("split", "size", "test_share", "samples")},
            **{name: getattr(self, name) for name in ("temperature", "top_p", "max_tokens", "seed")},
            **sampler.settings,
        }


class LocalModels(Protocol):
    """What the hook `local_models` gives: someone who can load models here."""

    def plan(self, request: EvaluationRequest) -> EvaluationPlan:
        """How to evaluate `request.model`, which may be None, on this machine.

        Raises:
            TinyZeroError: it cannot be done as asked.
        """

    def key_help(self) -> "Iterable[RenderableType]":
        """What `request.words` may hold, for the end of `tinyzero eval --help`."""


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


class Observer(Protocol):
    """Is told how far an evaluation is."""

    def sampling(self, kept: int, ahead: int, total: int) -> None:
        """So many completions are kept, so many more are finished, of so many."""

    def scoring(self, share: float) -> None:
        """So much is scored."""


def evaluate(plan: EvaluationPlan, output: Path | None, observer: Observer) -> EvaluationResult:
    """Sample, score and sum up.

    Args:
        plan: what to do.
        output: `.jsonl` or `.parquet` file for the scored completions; the completions are appended to the `.jsonl`
            file of this name as they come, and an evaluation of the same settings goes on from there. None = keep
            nothing.
        observer: is told of progress.

    Raises:
        SettingsError: the output belongs to an evaluation with other settings.
        DataError: it cannot be written, or the task has too few problems.
    """
    with TemporaryDirectory() as directory:
        target = output or Path(directory) / "completions.jsonl"
        _check_output(target)
        ordered = target.with_name(f".{target.stem}.sampled.jsonl")
        try:
            tokens, seconds = _sample(plan, target.with_suffix(".jsonl"), ordered, observer)
            report = _score(plan, ordered, target, observer)
        finally:
            ordered.unlink(missing_ok=True)
        return _sum_up(plan, report, tokens, seconds)


def _check_output(target: Path) -> None:
    if target.suffix not in (".jsonl", ".parquet"):
        raise DataError(
            f"{target} ends in {target.suffix or 'nothing'}; expected a name that ends in .jsonl or .parquet"
        )
    target.parent.mkdir(parents=True, exist_ok=True)


def _sample(plan: EvaluationPlan, path: Path, ordered: Path, observer: Observer) -> tuple[int, float]:
    """Sample what is missing, write all of it to `ordered`; return how many tokens are new, and their seconds."""
    tokens = ahead = 0
    with plan.opener() as sampler, SampleFile(path, plan.settings(sampler)) as file:
        items = list(plan.task.dataset(plan.split, plan.size, seed=EVALUATION_SEED, test_share=plan.test_share))
        _check_columns(plan.task, items[0])
        problems = [
            Problem(index, item, plan.task.make_prompt(item, sampler.template), missing(file, index, plan.samples))
            for index, item in enumerate(items)
        ]
        total = len(problems) * plan.samples

        def keep(problem: Problem, sample: int, completion: Completion) -> None:
            nonlocal tokens, ahead
            row = item_to_row(plan.task, problem.item, index=problem.index, split=plan.split, template=sampler.template)
            row |= {"completion": _writable(completion.text), "token_count": completion.token_count}
            if file.append((problem.index, sample), row | {"finished": completion.finished}):
                tokens += completion.token_count or 0
                ahead = max(0, ahead - 1)
                observer.sampling(len(file), ahead, total)

        def advance(count: int) -> None:
            nonlocal ahead
            ahead = min(ahead + count, total - len(file))
            observer.sampling(len(file), ahead, total)

        observer.sampling(len(file), 0, total)
        started = time.perf_counter()
        if len(file) < total:
            sampler.sample(problems, keep, advance)
        if len(file) < total:
            raise DataError(f"{total - len(file)} of {total} completions are missing; run the same command again")
        seconds = time.perf_counter() - started
        file.write_sorted(ordered)
    return tokens, seconds


def _check_columns(task: Task, item: Item) -> None:
    taken = [name for name in _OWN_COLUMNS if name in item.data]
    if taken:
        raise DataError(f"task {task.name} has a column {taken[0]!r} of its own, which an evaluation writes; rename it")


def _score(plan: EvaluationPlan, source: Path, target: Path, observer: Observer) -> "ScoreReport":
    from tinyzero_sdk.scoring.score_file import score_file

    limits = {"workers": plan.workers, "time_limit": plan.time_limit, "memory_limit_gb": plan.memory_limit_gb}
    return score_file(plan.task, source, target, **limits, on_progress=observer.scoring)  # type: ignore[arg-type]


def _sum_up(plan: EvaluationPlan, report: "ScoreReport", tokens: int, seconds: float) -> EvaluationResult:
    summary = report.summary
    if summary is None:
        raise DataError("no completion could be scored, so there is nothing to sum up")
    return EvaluationResult(
        problems=summary.prompts,
        samples=plan.samples,
        accuracy=summary.accuracy,
        standard_error=summary.standard_error,
        mean_score=summary.mean_score,
        by_reason=dict(sorted(report.reasons.items())),
        mean_length=summary.mean_length if summary.length_unit == "tokens" else None,
        tokens_per_second=tokens / (seconds + report.seconds) or None,
        summary=summary.as_json(),
        report=report,
    )


def _plain(value: Any) -> Json:
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def _writable(text: str) -> str:
    """The text, half characters (lone surrogates) replaced: no file can hold them."""
    return text.encode("utf-8", "replace").decode()
