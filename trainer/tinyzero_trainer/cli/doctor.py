"""`tinyzero doctor`: checks whether a run will work on this machine or on a Ray cluster."""

import os
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from tinyzero_sdk.console import plural, print_json, stderr, stdout
from tinyzero_trainer.cli import options

if TYPE_CHECKING:
    from tinyzero_trainer.config import TrainConfig
    from tinyzero_trainer.doctor.facts import Facts, Finding, Requirements

STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}
CHECK_WIDTH = 14


def doctor(
    overrides: options.Overrides = None,
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="Run directory; checked for space for checkpoints.")
    ] = Path("runs"),
    model: options.ModelOption = None,
    config: options.ConfigOption = None,
    gpus: options.GpusOption = None,
    address: options.AddressOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print findings and facts as JSON.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Print Markdown to paste into an issue.")] = False,
) -> None:
    """Check whether a run will work on this machine, or on a Ray cluster: GPUs, versions, memory, disk.

    Prints what to do about each problem. Exit code 1 if one of them is an error.
    """
    from tinyzero_trainer.config import TrainConfig
    from tinyzero_trainer.config.compose import compose, gather
    from tinyzero_trainer.doctor.checks import examine

    flags = {"model.path": model, **options.flag_settings(None, gpus, address)}
    resolved = compose(gather(TrainConfig, flags, overrides or (), config), needs_task=False).config
    requirements, facts = _look(resolved, output)
    findings = examine(facts, requirements)
    ok = all(finding.level != "error" for finding in findings)
    if report:
        stdout.print(_markdown(findings, facts), markup=False, highlight=False, soft_wrap=True)
    elif json:
        print_json({"ok": ok, "findings": list(map(asdict, findings)), "facts": asdict(facts)})
    else:
        _show(findings)
    raise typer.Exit(int(not ok))


def _show(findings: "Sequence[Finding]") -> None:
    """The findings, each with its advice below it; a command has its own unbroken line, to be copied."""
    for finding in findings:
        advice = f"\n{finding.do}{':' if finding.commands else ''}" if finding.do else ""
        row = Table.grid(padding=(0, 1, 0, 0), expand=False)
        row.add_column(width=len("warning"), no_wrap=True)
        row.add_column(width=CHECK_WIDTH, no_wrap=True)
        row.add_column(overflow="fold")
        row.add_row(Text(finding.level, style=STYLES[finding.level]), Text(finding.check), Text(finding.what + advice))
        stdout.print(row)
        for command in finding.commands:
            stdout.print(f"  {command}", style="bold", markup=False, soft_wrap=True)
    counts = Counter(finding.level for finding in findings)
    problems = [plural(counts[level], level) for level in ("error", "warning") if counts[level]]
    stdout.print(", ".join(problems) or "no problems found")


def _markdown(findings: "Sequence[Finding]", facts: "Facts") -> str:
    """Versions, GPUs and findings, for an issue."""
    versions = [
        f"tinyzero-sdk {version('tinyzero-sdk')}",
        *(f"{package.name} {package.version}" for package in facts.packages),
    ]
    gpus = ", ".join(gpu.name for gpu in facts.torch.gpus) or "no GPU that torch sees"
    machine = f"Python {facts.machine.python}, {platform.platform()}, {facts.machine.cores} CPU cores, {gpus}"
    shown = [f"{finding.level:<8}{finding.check}: {finding.what}" for finding in findings]
    text = "\n".join([f"- {machine}", f"- {', '.join(versions)}", "", "```text", *shown, "```"])
    home = os.path.expanduser("~")  # which names the user
    return text if home == "/" else text.replace(home, "~")


def requirements_of(config: "TrainConfig") -> "Requirements":
    """What a run with this configuration requires; a ParallelError if its processes do not fit on its GPUs."""
    from tinyzero_trainer.distributed.parallel_dims import parallel_dims
    from tinyzero_trainer.doctor.facts import Requirements

    sized = config.ray.gpus or config.rollout.num_engines or config.parallel.world_size or config.run.device == "cpu"
    return Requirements(
        device=config.run.device,
        engine=config.rollout.kind,
        trained_models=2 if config.algorithm.needs("critic") else 1,
        frozen_models=int(config.algorithm.kl_coefficient > 0),
        keep=config.checkpoint.keep,
        names_model=config.model.path is not None,
        address=config.ray.address,
        dims=parallel_dims(config) if config.run.kind.own_processes and sized else None,
    )


def _look(config: "TrainConfig", output: Path) -> "tuple[Requirements, Facts]":
    """What the run requires, and what the machine or cluster has."""
    from tinyzero_trainer.config.model_defaults import BUILT_IN_MODEL, directory_of
    from tinyzero_trainer.doctor import cluster_probe, probe

    requirements = requirements_of(config)
    path, directory = directory_of(config.model.path), Path(config.run.output) if config.run.output else output
    name = str(path) if path else "the tiny model"
    with stderr.status("examining this machine"):
        facts = probe.look(output=directory, model=name, model_path=path or BUILT_IN_MODEL)
    if requirements.address is not None:
        with stderr.status("examining Ray and its nodes"):
            there = str(path.expanduser().absolute()) if path and facts.model.local else ""
            ray = cluster_probe.look_at_ray(requirements.address, directory=directory, model=there)
            facts = replace(facts, ray=ray)
    return requirements, facts
