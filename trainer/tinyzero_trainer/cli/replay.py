"""`tinyzero replay`: a step of a run again, alone, with what its updates did."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from math import isfinite
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
"""Completions, groups of parameters, and metrics that differ; --json has all."""

MOST_MICRO_BATCHES = 16
"""With more of them in a step, each update is a single row."""


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
    with options.exit_by_signal(), TemporaryDirectory(prefix="tinyzero-replay-") as copy, _naming(run, copy):
        replayed = _replay(run, step, overrides or [], Path(copy))
    if json:
        models = {name: _as_json(diagnosis) for name, diagnosis in replayed.models.items()}
        print_json({**asdict(replayed), "run": str(run), "models": models, "differing": replayed.differing})
    else:
        _show(replayed)
    if replayed.differing:
        raise typer.Exit(1)


@contextmanager
def _naming(run: Path, directory: str) -> Iterator[None]:
    """Let errors name the files of the run, and not those of its copy."""
    try:
        yield
    except TinyZeroError as error:
        if directory not in str(error):
            raise
        raise TinyZeroError(str(error).replace(directory, str(run))) from error


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
    with start.imported(module, workers, len(tasks)) as progress:
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
    is_long = sum(len(update.micro_batches) for update in diagnosis.updates) > MOST_MICRO_BATCHES
    shown = table("update", "micro-batch", "completions", "tokens", "loss", "gradient norm", "")
    for number, update in enumerate(diagnosis.updates, 1):
        rows = [update.micro_batches] if is_long else [[each] for each in update.micro_batches]
        for place, row in enumerate(rows, 1):
            sizes = (f"{sum(getattr(each, size) for each in row):,}" for size in ("completions", "tokens"))
            cells = [str(number), f"all {len(row):,}" if is_long else str(place), *sizes]
            cells.append(f"{sum(each.loss for each in row):.4g}")
            if place == len(rows):
                cells += [f"{update.grad_norm:.4g}", "skipped" * update.skipped]
            shown.add_row(*cells)
    if diagnosis.updates:
        stdout.print(shown)
    _show_first(diagnosis)
    finite = [update for update in diagnosis.updates if isfinite(update.grad_norm)]
    if finite:
        largest = max(finite, key=lambda update: update.grad_norm)
        _line(f"largest gradients in update {diagnosis.updates.index(largest) + 1}:")
        groups = sorted(largest.group_norms.items(), key=lambda group: group[1], reverse=True)
        for group, norm in groups[:MOST_SHOWN]:
            _line(f"  {group}  {norm:.4g}")


def _show_first(diagnosis: "Diagnosis") -> None:
    """Show the first micro-batch with something that is not finite, if there is one."""
    candidates = (
        (number, place, each)
        for number, update in enumerate(diagnosis.updates, 1)
        for place, each in enumerate(update.micro_batches, 1)
        if each.nonfinite or each.parameters
    )
    for number, place, each in islice(candidates, 1):
        where, count = f"update {number}, micro-batch {place}", len(each.nonfinite)
        if count:
            _line(f"not finite first: {plural(count, 'completion')} of {each.completions:,} in {where}", "red")
        else:
            _line(f"not finite first: gradients after {where}, though its losses are finite", "red")
        for completion in each.nonfinite[:MOST_SHOWN]:
            value = f"{completion.value} from token {completion.token + 1:,}"
            _line(f"  completion {completion.index + 1:,}: {value}: {completion.completion[:40]!r}")
        if each.parameters:
            _line(f"  gradients not finite: {len(each.parameters):,}, {_some(each.parameters)}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:2]) + (" …" if len(names) > 2 else "")
