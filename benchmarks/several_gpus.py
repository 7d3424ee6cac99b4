"""What a host with 2 or 4 GPUs is good for: the same losses as on one, more tokens a second, and runs that move about.

    python benchmarks/several_gpus.py [--part same --part weak …] [--gpus 4] [--limit SECONDS] [--output DIR]
    python benchmarks/several_gpus.py --cpu        tries the script with tiny sizes; its figures mean nothing

The parts are in `several/parts.py`. Each is made of jobs, which run side by side where there are GPUs for them, each
under a limit of its own. DIR/results.json is written after each job; jobs that it holds already, but for those that
failed, are not done again, so what has not been done within the limit is done by the same command once more.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated, Any

import typer

from benchmarks.common import machine, print_machine
from benchmarks.learn import draw
from benchmarks.several import tables
from benchmarks.several.parts import PARTS, Setup, metrics
from benchmarks.several.side_by_side import Board, Job, end_on_sigterm, find_cards, succeeded
from benchmarks.small_gpu import device_name

PATIENCE = 4
"""Times as long as on GPUs a job may take on the CPU, where Ray may start for a minute."""

VERSIONS = ("tinyzero-trainer", "tinyzero-countdown", "torch", "transformers", "ray")


def chosen(jobs: Sequence[Job], only: Sequence[str]) -> list[Job]:
    """Each job once, and of those whose name holds one of `only`, also what they need."""
    by_name = {job.name: job for job in jobs}
    names = [name for name in by_name if not only or any(one in name for one in only)]
    for name in names:  # grows meanwhile
        names += [need for need in by_name[name].needs if need not in names]
    return [job for name, job in by_name.items() if name in names]


def main(
    part: Annotated[list[str] | None, typer.Option(help=f"{', '.join(PARTS)}; none = all")] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs to use", show_default="all; with --cpu 2")] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="try the script on the CPU, with tiny sizes")] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="only jobs with this in their name, and what they need")
    ] = None,
    one_at_a_time: Annotated[bool, typer.Option("--one-at-a-time", help="never two jobs side by side")] = False,
    learning: Annotated[float, typer.Option(help="seconds for each run of one_step_off, its start included")] = 340,
    limit: Annotated[float, typer.Option(help="seconds for everything; then all is killed")] = 570,
    output: Annotated[Path | None, typer.Option(help="directory for everything", show_default="a new one")] = None,
) -> None:
    """Measure, and print a table for each part."""
    began = time.monotonic()
    if unknown := set(part or ()) - PARTS.keys():
        sys.exit(f"no part {', '.join(unknown)}; give one of {', '.join(PARTS)}")
    cards = [str(number) for number in range(gpus or 2)] if cpu else find_cards()
    if not cards or len(cards) < (gpus or 1):
        sys.exit(f"{len(cards)} GPUs are here, {gpus or 1} are wanted; lower --gpus, or try the script with --cpu")
    cards = cards[: gpus or len(cards)]
    setup = Setup((output or Path(mkdtemp(prefix="several-gpus-"))).absolute(), len(cards), cpu, learning)
    setup.folder.mkdir(parents=True, exist_ok=True)
    file = setup.folder / "results.json"
    jobs = chosen([job for name in part or PARTS for job in PARTS[name](setup)], only or [])
    if not jobs:
        sys.exit("there is no such job on so few GPUs")
    if cpu:
        jobs = [replace(job, limit=PATIENCE * job.limit) for job in jobs]
    found: dict[str, Any] = json.loads(file.read_text())["jobs"] if file.exists() else {}
    print_machine(*VERSIONS)
    about = {**machine(*VERSIONS), "device": "CPU" if cpu else device_name(), "gpus": len(cards)}
    print(
        f"{about['device']}, {len(cards)} of them; {len(jobs)} jobs, into {setup.folder}", file=sys.stderr, flush=True
    )

    def save() -> None:
        content = {**about, "seconds": time.monotonic() - began, "jobs": found}
        aside = file.with_suffix(".tmp")
        aside.write_text(json.dumps(content, indent=1), encoding="utf-8")
        os.replace(aside, file)

    end_on_sigterm()
    board = Board(
        cards, folder=setup.folder / "logs", ends=began + limit, save=save, gpus=not cpu,
        together=not cpu and not one_at_a_time,
    )  # fmt: skip
    try:
        board.run(jobs, found)
    finally:
        save()
        report(setup, found)
        print(f"\n{file}; {time.monotonic() - began:.0f} s in all", flush=True)
    sys.exit(any(not succeeded(found, job.name) or "failed" in found[job.name] for job in jobs))


def report(setup: Setup, found: dict[str, Any]) -> None:
    """All tables for which there is something, and the curves."""
    for text in tables.all_tables(found):
        print(text, flush=True)
    runs = {name: metrics(setup.run(name)) for name in found if name.startswith("one_step_off: ")}
    curves = {name.partition(": ")[2]: rows for name, rows in runs.items() if rows and rows[-1]["step"]}
    if curves:
        try:
            draw(curves, setup.folder / "curves.png")
        except Exception as error:  # a picture shall not cost the figures
            print(f"no curves: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    typer.run(main)
