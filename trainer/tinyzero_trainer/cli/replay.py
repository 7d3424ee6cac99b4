"""`tinyzero replay`: a step of a run again, alone, with what its updates did."""

from dataclasses import asdict
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from tinyzero_sdk.cli.summary_report import table
from tinyzero_sdk.console import plural, print_json, stdout
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.cli import options, start

if TYPE_CHECKING:
    from tinyzero_trainer.controller.replay import Replayed
    from tinyzero_trainer.training.diagnosis import Diagnosis

MOST_SHOWN = 5
"""Completions, and metrics that differ; --json has all, and the norms of gradients by groups of parameters."""


def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of the run, which is only read.")],
    step: Annotated[int, typer.Argument(metavar="STEP", help="The step, counted from 1.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Settings that --resume could change, such as run.device=cpu."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Take a step of a run again, alone, and show its losses and gradients, and what is not finite.

    It starts from the newest checkpoint before the step, or from the start of the run, and takes the steps in between.
    On the CPU the metrics are those of the run, to the last bit. Exit code 1: they differ.
    """
    with options.exit_by_signal(), TemporaryDirectory(prefix="tinyzero-replay-") as copy:
        try:
            replayed = _replay(run, step, overrides or [], Path(copy))
        except TinyZeroError as error:
            raise TinyZeroError(str(error).replace(copy, str(run))) from error
    if json:
        models = {name: _as_json(diagnosis) for name, diagnosis in replayed.models.items()}
        print_json({**asdict(replayed), "run": str(run), "models": models, "differing": replayed.differing})
    else:
        _show(replayed)
    if replayed.differing:
        raise typer.Exit(1)


def _replay(path: Path, step: int, overrides: list[str], directory: Path) -> "Replayed":
    from tinyzero_sdk.settings import read_toml
    from tinyzero_trainer.api import resolve
    from tinyzero_trainer.checkpoint.run_status import copy_run
    from tinyzero_trainer.config import SftConfig, TrainConfig
    from tinyzero_trainer.config.compose import gather
    from tinyzero_trainer.config.resume import is_sft, resume_config

    rows = copy_run(path, step, directory)
    of_sft = is_sft(read_toml(directory / "config.toml"))
    cls: Any = SftConfig if of_sft else TrainConfig
    config = resume_config(directory, gather(cls, {"log.trackers": []}, overrides), cls)
    workers = resolve(config.workers_config if of_sft else config, start.print_choice)
    config = config.with_resolved(workers) if of_sft else workers
    tasks = start.check(workers, {}, resume=True)
    module = "tinyzero_trainer.sft.train" if of_sft else "tinyzero_trainer.controller.loop"
    with start.imported(module, workers) as progress:
        from tinyzero_trainer.controller.loop import open_training
        from tinyzero_trainer.controller.replay import replay
        from tinyzero_trainer.sft.train import open_fine_tuning

        opened: Any = open_fine_tuning if of_sft else open_training
        with opened(config, resume=True, tasks=tasks, progress=progress) as (session, training_step, _):
            return replay(path, step, session, training_step, rows)


def _as_json(diagnosis: "Diagnosis") -> dict[str, Any]:
    fields = asdict(diagnosis)
    for values, update in zip(fields["updates"], diagnosis.updates, strict=True):
        values |= {"grad_norm": update.grad_norm, "skipped": update.skipped}
    return fields


def _line(text: str, style: str = "", *, soft_wrap: bool = False) -> None:
    stdout.print(Text(text, style), soft_wrap=soft_wrap)


def _show(replayed: "Replayed") -> None:
    origin = f"the checkpoint of step {replayed.start:,}" if replayed.start else "the start of the run"
    batch = ", on the batch that was kept" * replayed.kept_batch
    _line(f"{replayed.run}, step {replayed.step:,}: taken again from {origin}{batch}", soft_wrap=True)
    for name, diagnosis in replayed.models.items():
        _show_model(name, diagnosis)
    stdout.print()
    updates = [update for diagnosis in replayed.models.values() for update in diagnosis.updates]
    if replayed.kept_batch and not any(update.skipped for update in updates):
        _line(
            "the run skipped an update here, this time none was: its cause is neither in the weights nor in the batch"
        )
    if replayed.error is not None:
        _line(f"the run ends here: {replayed.error}", "red")
    elif replayed.recorded is None:
        _line("metrics: metrics.jsonl has no line for this step")
    elif not replayed.differing:
        _line(f"metrics: all {len(replayed.metrics):,} equal those in metrics.jsonl, to the last bit")
    else:
        differing, recorded = replayed.differing, replayed.recorded
        _line(f"metrics: {len(differing)} of {len(recorded):,} differ from metrics.jsonl", "red")
        shown = table("metric", "recorded", "again")
        for name in differing[:MOST_SHOWN]:
            shown.add_row(name, *(str(values.get(name, "-")) for values in (recorded, replayed.metrics)))
        stdout.print(shown)


def _show_model(name: str, diagnosis: "Diagnosis") -> None:
    stdout.print()
    bad = diagnosis.nonfinite_weights
    weights = f"{len(bad):,} of {diagnosis.parameters:,} weights are not finite before the step: {_some(bad)}"
    _line(f"{name}: {weights if bad else 'all weights are finite before the step'}", "red" if bad else "bold")
    shown = table("update", "micro-batch", "completions", "tokens", "loss", "gradient norm", "")
    for number, update in enumerate(diagnosis.updates, 1):
        for place, part in enumerate(update.micro_batches, 1):
            cells = [str(number), str(place), f"{part.completions:,}", f"{part.tokens:,}", f"{part.loss:.4g}"]
            if place == len(update.micro_batches):
                cells += [f"{update.grad_norm:.4g}", "skipped" * update.skipped]
            shown.add_row(*cells)
    if diagnosis.updates:
        stdout.print(shown)
    candidates = (  # for the first with something that is not finite
        (f"update {number}, micro-batch {place}", part)
        for number, update in enumerate(diagnosis.updates, 1)
        for place, part in enumerate(update.micro_batches, 1)
        if part.nonfinite or part.parameters
    )
    for where, part in islice(candidates, 1):
        what = f"{plural(len(part.nonfinite), 'completion')} of {part.completions:,} in {where}"
        _line(f"not finite first: {what if part.nonfinite else f'gradients after {where}'}", "red")
        for completion in part.nonfinite[:MOST_SHOWN]:
            value = f"{completion.value} from token {completion.token + 1:,}"
            _line(f"  completion {completion.index + 1:,}: {value}: {completion.completion[:40]!r}")
        if part.parameters:
            _line(f"  gradients not finite: {len(part.parameters):,}, {_some(part.parameters)}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:2]) + (" …" if len(names) > 2 else "")
