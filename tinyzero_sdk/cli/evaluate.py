"""`tinyzero eval`: sample from a local model or an endpoint, score, and report the accuracy."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape
from rich.text import Text
from typer.core import TyperCommand

from tinyzero_sdk.cli.summary_report import PassAt, complain, parse_pass_at, show_faults, show_left_out, show_tables
from tinyzero_sdk.cli.task_options import AllowUnsafe, TaskName, TaskOverrides, named_tasks, one_task, show_judge
from tinyzero_sdk.console import percent, plural, print_json, stderr, stdout
from tinyzero_sdk.errors import SettingsError, TinyZeroError
from tinyzero_sdk.plugins.registry import Plugin
from tinyzero_sdk.settings import refuse_secrets

if TYPE_CHECKING:
    from tinyzero_sdk.evaluation.openai_endpoint import EndpointOptions
    from tinyzero_sdk.evaluation.protocol import EvaluationPlan, EvaluationResult, LocalModels
    from tinyzero_sdk.progress import Progress
    from tinyzero_sdk.scoring.summary import Summary


_ENDPOINT_ONLY = ("concurrency", "retries", "timeout", "api_key_env", "system", "stop", "extra_body")

ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="MODEL",
        help="Run directory, one of its checkpoints, or a transformers causal LM (directory or Hub name); "
        "with --endpoint, its name there.",
    ),
]
Endpoint = Annotated[
    str | None, typer.Option("--endpoint", metavar="URL", help="Base URL of an OpenAI-compatible API.")
]
Samples = Annotated[int, typer.Option("--samples", "-n", min=1, metavar="N", help="Completions per problem.")]
Size = Annotated[
    int | None, typer.Option("--size", min=1, metavar="N", help="Number of problems.", show_default="1024")
]
Temperature = Annotated[float, typer.Option("--temperature", min=0.0, metavar="X", help="0 = greedy decoding.")]
TopP = Annotated[float, typer.Option("--top-p", min=0.01, max=1.0, metavar="X", help="Nucleus sampling; 1 = off.")]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens", min=1, metavar="N", help="Longest completion.", show_default="1024, or as in training"
    ),
]
Template = Annotated[
    str | None, typer.Option("--template", metavar="NAME", help="Prompt template.", show_default="by model")
]
TestFraction = Annotated[
    float | None,
    typer.Option("--test-fraction", metavar="X", help="Fraction of problems held out.", show_default="1/16"),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="File for the scored completions, .jsonl or .parquet, to resume from."
    ),
]
ApiKeyVariable = Annotated[
    str, typer.Option("--api-key-env", metavar="NAME", help="Environment variable that holds the API key.")
]
System = Annotated[
    str, typer.Option("--system", metavar="TEXT", help="System prompt, before the problem's own.", show_default=False)
]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", metavar="TEXT", help="Text that ends a completion. Repeatable.", show_default="none"),
]
ExtraBody = Annotated[
    str | None,
    typer.Option("--extra-body", metavar="JSON", help="Further parameters of a request.", show_default="none"),
]


def register(app: typer.Typer, plugins: Sequence[Plugin]) -> None:
    """Add the command of this file; the plugins may load models."""
    app.command("eval", cls=_EvalCommand, context_settings={"obj": plugins})(evaluate)


def evaluate(
    context: typer.Context,
    overrides: TaskOverrides = None,
    task: TaskName = None,
    model: ModelName = None,
    endpoint: Endpoint = None,
    samples: Samples = 1,
    size: Size = None,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    max_tokens: MaxTokens = None,
    template: Template = None,
    split: Annotated[Literal["test", "train"], typer.Option("--split", help="Split of the problems.")] = "test",
    test_fraction: TestFraction = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Seed of the sampling; the problems stay the same.")
    ] = None,
    pass_at: PassAt = None,
    output: Output = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, metavar="N", help="Concurrent requests.")] = 16,
    retries: Annotated[int, typer.Option("--retries", min=0, metavar="N", help="Retries of a failed request.")] = 6,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, metavar="N", help="Seconds for one request.")] = 600.0,
    api_key_env: ApiKeyVariable = "OPENAI_API_KEY",
    system: System = "",
    stop: Stop = None,
    extra_body: ExtraBody = None,
    allow_unsafe_scorers: AllowUnsafe = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Evaluate a model on held-out problems of a task.

    A model from a training run is evaluated on that run's task and held-out problems by default. The same command with
    the same --output resumes where the last one stopped.
    """
    from tinyzero_sdk.evaluation import evaluate as evaluation
    from tinyzero_sdk.evaluation.openai_endpoint import plan_endpoint
    from tinyzero_sdk.evaluation.protocol import EvaluationRequest
    from tinyzero_sdk.scoring.learning_signal import warning

    if endpoint is None:
        _refuse_endpoint_options(context)
    chosen = parse_pass_at(pass_at)
    if max(chosen, default=1) > samples:
        raise SettingsError(f"--pass-at={pass_at} needs --samples of {max(chosen)} or more, not {samples}")
    names, overrides = named_tasks(overrides)
    request = EvaluationRequest(
        task=one_task(task, names)[0] if task or names else None,
        overrides=overrides,
        model=model,
        split=split,
        size=size,
        test_fraction=test_fraction,
        template=template,
        samples=samples,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        seed=seed,
        allow_unsafe_scorers=allow_unsafe_scorers,
    )
    if endpoint is None:
        models = _find_local_models(context.obj or ())
        if models is None:
            raise TinyZeroError("'tinyzero eval' needs the trainer: pip install 'tinyzero-sdk[train]'")
        plan = models.plan(request)
    else:
        plan = plan_endpoint(request, _endpoint_options(endpoint, context))
    if output is None and endpoint is not None:
        raise SettingsError("an evaluation at an endpoint needs --output FILE, so that it can resume if it is stopped")
    with _observer(output) as observer:
        result = evaluation.evaluate(plan, output, observer, chosen)
    print_json(_as_json(plan, result)) if json else _show(plan, result)
    if result.summary.signal.fault is not None:
        advice = warning(result.summary.signal, plan.task, model, plan.max_tokens)
        stderr.print(Text(f"warning: {advice}", "yellow"), soft_wrap=True)
    show_judge(plan.task)
    if not result.report.is_clean:
        show_faults(output or Path("the completions"), result.report)
        raise typer.Exit(1)


def _refuse_endpoint_options(context: typer.Context) -> None:
    for name in _ENDPOINT_ONLY:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise SettingsError(f"--{name.replace('_', '-')} has no effect without --endpoint; leave it out")


def _endpoint_options(url: str, context: typer.Context) -> "EndpointOptions":
    from tinyzero_sdk.evaluation.openai_endpoint import EndpointOptions

    typed = context.params
    try:
        extra_body = loads(typed["extra_body"] or "{}")
    except ValueError:
        extra_body = None
    if not isinstance(extra_body, dict):
        raise SettingsError(f"--extra-body {typed['extra_body']}: expected a JSON object, such as '{{\"top_k\": 20}}'")
    refuse_secrets(extra_body, "--extra-body ")
    return EndpointOptions(
        url,
        typed["api_key_env"],
        typed["concurrency"],
        typed["retries"],
        typed["timeout"],
        system=typed["system"],
        stop=typed["stop"] or (),
        extra_body=extra_body,
    )


class _EvalCommand(TyperCommand):
    """A command whose help ends with the keys of local models."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # of click, or of typer's own copy
        super().format_help(ctx, formatter)
        models = _find_local_models(ctx.obj or ())
        for panel in models.key_help() if models else ():
            stdout.print(panel)


def _find_local_models(plugins: Sequence[Plugin]) -> "LocalModels | None":
    """What loads models on this machine, of the first plugin that has it."""
    offers = (plugin.call("local_models") for plugin in plugins)
    return next((models for models in offers if models is not None), None)


class _Observer:
    """Shows the progress of an evaluation."""

    def __init__(self, progress: "Progress") -> None:
        self._progress, self.phase = progress, ""

    def sampling(self, kept: int, finished: int, total: int) -> None:
        """Show how many completions are sampled."""
        if not self.phase:
            self.phase = "sampling"
            self._progress.start()  # not earlier: loading a model shows its own progress
            self._progress.phase("sampling completions", total, "completions", done=kept)
        self._progress.update(kept + finished)

    def scoring(self, fraction: float) -> None:
        """Show which fraction of the completions is scored."""
        if self.phase != "scoring":
            self.phase = "scoring"
            self._progress.phase("scoring", 1.0, "%")
        self._progress.update(fraction)


@contextmanager
def _observer(output: Path | None) -> Iterator[_Observer]:
    """The progress; where the evaluation stops, a line says that the same command resumes it."""
    from tinyzero_sdk.progress import Progress

    progress = Progress(announce=False)
    observer = _Observer(progress)
    try:
        yield observer
    except (KeyboardInterrupt, TinyZeroError):
        progress.close()
        if output is not None and observer.phase and (stored := output.with_suffix(".jsonl")).exists():
            complain(f"stopped: completions are stored in {stored}; the same command resumes there")
        raise
    finally:
        progress.close()


def _as_json(plan: "EvaluationPlan", result: "EvaluationResult") -> dict[str, Any]:
    summary = result.summary
    return {
        "problems": summary.prompts,
        "samples": plan.samples,
        **{name: getattr(summary, name) for name in ("accuracy", "standard_error", "mean_score")},
        "by_reason": dict(sorted(result.report.reasons.items())),
        "mean_length": _mean_tokens(summary),
        "tokens_per_second": result.tokens_per_second,
        "summary": summary.as_json(),
    }


def _mean_tokens(summary: "Summary") -> float | None:
    return summary.mean_length if summary.length_unit == "tokens" else None


def _show(plan: "EvaluationPlan", result: "EvaluationResult") -> None:
    summary, length = result.summary, _mean_tokens(result.summary)
    how = "greedy" if plan.temperature == 0 else f"sampled at T={plan.temperature:g}"
    where = "held out" if plan.split == "test" else "of the training split"
    signal = {
        "no answer": summary.signal.no_answer_frac,
        "cut off": summary.signal.truncated_frac,
        "zero-variance groups": summary.signal.zero_std_frac,
    }
    rows = {
        "task": plan.task.name,
        "model": plan.model,
        "problems": f"{summary.prompts:,} {where}, {plural(plan.samples, 'sample')} each, {how}",
        "accuracy": f"{percent(summary.accuracy)} ± {percent(summary.standard_error)} (one standard error)",
        "mean score": f"{summary.mean_score:.3f}",
        "parts": " · ".join(f"{name} {mean:.4g}" for name, mean in summary.parts.items()) or None,
        "mean length": None if length is None else f"{length:,.1f} tokens",
        "reasons": " · ".join(f"{reason} {rows:,}" for reason, rows in sorted(result.report.reasons.items())),
        "signal": " · ".join(f"{name} {percent(part)}" for name, part in signal.items() if part is not None),
        "speed": None if result.tokens_per_second is None else f"{result.tokens_per_second:,.0f} tokens/s",
    }
    for name, value in rows.items():
        if value is not None:
            stdout.print(f"[bold]{name:<12}[/]{escape(value)}", soft_wrap=True)
    show_tables(summary)
    show_left_out(result.report)
