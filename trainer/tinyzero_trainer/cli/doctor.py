"""`tinyzero doctor`: looks at the machine, and says what stands in the way of training on it."""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tinyzero_sdk.cli.summary_report import count
from tinyzero_sdk.console import print_json, stderr, stdout

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tinyzero_trainer.config import TrainConfig
    from tinyzero_trainer.doctor.facts import Facts, Requirements
    from tinyzero_trainer.doctor.finding import Finding
    from tinyzero_trainer.doctor.ray_facts import Placement

STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}
CHECK_WIDTH = 14


def doctor(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings, as `tinyzero train` takes them.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="Run directory: is there room for checkpoints?")
    ] = Path("runs"),
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="Directory or Hub name of the model to train.",
            show_default="the tiny model that comes with the trainer; on a GPU, one made for the task",
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings from a TOML file.")] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus", metavar="N", help="As `tinyzero train` has it: is there room for a run of so many GPUs?"
        ),
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", metavar="HOST:PORT", help="Look at a Ray and all its nodes; or `auto`.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print findings and facts as JSON.")] = False,
) -> None:
    """Find what stands in the way of training on this machine, or on a Ray cluster: GPUs, versions, memory, disk.

    Each finding says what to type. Exit code 1 if one of them is an error.
    """
    from tinyzero_trainer.config.parallel import flag_settings
    from tinyzero_trainer.doctor.checks import examine
    from tinyzero_trainer.doctor.finding import failed

    flags = {"model.path": model, **flag_settings(gpus, address)}
    requirements, facts = _look(flags, words or (), output, config)
    findings = examine(facts, requirements)
    if json:
        print_json(as_json(findings, facts))
    else:
        show(findings)
    raise typer.Exit(int(failed(findings)))


def as_json(findings: "tuple[Finding, ...]", facts: "Facts") -> dict[str, object]:
    """What `--json` prints."""
    from tinyzero_trainer.doctor.finding import failed

    return {
        "ok": not failed(findings),
        "findings": [dataclasses.asdict(finding) for finding in findings],
        "facts": dataclasses.asdict(facts),
    }


def show(findings: "tuple[Finding, ...]") -> None:
    """The findings, each with its advice below it; a command has a line of its own, unbroken, to be copied."""
    for finding in findings:
        stdout.print(_row(finding.level, finding.check, finding.what, STYLES[finding.level]))
        if finding.do:
            stdout.print(_row("", "", f"{finding.do}{':' if finding.commands else ''}", ""))
        for command in finding.commands:
            stdout.print(f"  {command}", style="bold", markup=False, soft_wrap=True)
    counts = Counter(finding.level for finding in findings)
    bad = [count(counts[level], level) for level in ("error", "warning") if counts[level]]
    stdout.print(", ".join(bad) or "nothing stands in the way")


def requirements_of(config: "TrainConfig") -> "Requirements":
    """What a configuration means to do to a machine."""
    from tinyzero_trainer.doctor.facts import Requirements

    return Requirements(
        device=config.run.device,
        engine=config.rollout.engine,
        model_copies=2 if config.algorithm.advantage_estimator == "gae" else 1,
        frozen_copies=int(config.algorithm.kl_coefficient > 0),
        keep=config.checkpoint.keep,
        workers=config.reward.num_workers,
        offload=config.memory.cpu_offload,
        names_model=config.model.path is not None,
        address=config.ray.address,
        placement=_placement(config),
    )


def _placement(config: "TrainConfig") -> "Placement | None":
    """What the run takes of Ray, if anything says how large it is; what does not go together is refused."""
    from tinyzero_trainer.config.parallel import parallel_dims
    from tinyzero_trainer.doctor.ray_facts import Placement

    sized = config.ray.gpus or config.rollout.num_engines or config.parallel.world_size
    if config.run.executor != "ray" or not (sized or config.run.device == "cpu"):
        return None
    dims = parallel_dims(config)
    spread = dims.engine_tp if dims.device == "cuda" else 0
    return Placement(dims.world_size, dims.dedicated_engines, spread, len(config.task_specs) or 1)


def _look(
    flags: Mapping[str, object], words: "list[str] | tuple[str, ...]", output: Path, file: Path | None
) -> "tuple[Requirements, Facts]":
    """What the settings ask for, and what the machine has."""
    from tinyzero_trainer.config import TrainConfig
    from tinyzero_trainer.config.compose import compose, gather
    from tinyzero_trainer.config.model_defaults import BUILT_IN_MODEL, directory_of
    from tinyzero_trainer.doctor.cluster_probe import with_ray
    from tinyzero_trainer.doctor.probe import look
    from tinyzero_trainer.estimate.memory import host_bytes

    config = compose(gather(TrainConfig, flags, words, file), needs_task=False).config
    requirements = requirements_of(config)
    path = directory_of(config.model.path)
    name = str(path) if path else "the tiny model"
    with stderr.status("looking at the machine"):
        directory = Path(config.run.output) if config.run.output else output
        facts = look(output=directory, model=name, model_path=path or BUILT_IN_MODEL)
    there = str(path.expanduser().absolute()) if path and facts.model.local else ""
    with stderr.status("asking Ray and its nodes") if requirements.address else nullcontext():
        facts = with_ray(facts, requirements.address, directory=directory, model=there)
    spec = facts.model.shape
    return dataclasses.replace(requirements, host_bytes=host_bytes(spec, config) if spec else 0), facts


def _row(level: str, check: str, text: str, style: str) -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    row = Table.grid(padding=(0, 1, 0, 0), expand=False)
    row.add_column(width=len("warning"), no_wrap=True)
    row.add_column(width=CHECK_WIDTH, no_wrap=True)
    row.add_column(overflow="fold")
    row.add_row(Text(level, style=style), Text(check), Text(text))
    return row
