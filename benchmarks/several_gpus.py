"""Training on one host with 2 or 4 GPUs: the losses of one GPU, more tokens per second, and runs that change GPUs.

    python benchmarks/several_gpus.py [--suite parity --suite weak …] [--gpus 4] [--limit SECONDS] [--output DIR]
    python benchmarks/several_gpus.py --cpu        tests the script with tiny sizes; the results mean nothing

The suites are in `several/suites.py`. Each consists of jobs, which run one after another under their own time limits.
DIR/results.json is written after each job; run again with the same DIR, the script does only the jobs that are missing
or failed.
"""

import json
import signal
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated, Any

import typer

from benchmarks.commands import device_name, visible_gpus
from benchmarks.common import print_machine
from benchmarks.several import tables
from benchmarks.several.jobs import Job, run_jobs, succeeded
from benchmarks.several.suites import SUITES, Setup
from benchmarks.training import metrics_of, plot_curves

VERSIONS = ("tinyzero-trainer", "tinyzero-countdown", "torch", "transformers", *(["ray"] if find_spec("ray") else []))


def select(jobs: Sequence[Job], only: Sequence[str]) -> list[Job]:
    """Each job once; with `only`, those whose name contains one of these texts, and those that they need."""
    by_name = {job.name: job for job in jobs}
    names = [name for name in by_name if not only or any(text in name for text in only)]
    names += [need for name in names if (need := by_name[name].needs) is not None]
    return [job for name, job in by_name.items() if name in names]


def main(
    suite: Annotated[list[str] | None, typer.Option(help=f"{', '.join(SUITES)}; default: all")] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs to use", show_default="all; with --cpu 2")] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="test the script on the CPU, with tiny sizes")] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="only jobs with this in their name, and those that they need")
    ] = None,
    learning: Annotated[float, typer.Option(help="seconds for each run of async_levels, with its start")] = 340,
    override: Annotated[list[str] | None, typer.Option(help="KEY=VALUE for each run of async_levels")] = None,
    limit: Annotated[float, typer.Option(help="seconds for everything; then the rest is left out")] = 3600,
    output: Annotated[Path | None, typer.Option(help="directory for everything", show_default="a new one")] = None,
) -> None:
    """Measure, and print a table for each suite."""
    began = time.monotonic()
    if unknown := set(suite or ()) - SUITES.keys():
        sys.exit(f"no suite {', '.join(unknown)}; give one of {', '.join(SUITES)}")
    names = [str(index) for index in range(gpus or 2)] if cpu else visible_gpus()
    if not names or len(names) < (gpus or 1):
        sys.exit(f"found {len(names)} GPUs, expected {gpus or 1}; lower --gpus, or test the script with --cpu")
    names = names[: gpus or len(names)]
    setup = Setup(
        (output or Path(mkdtemp(prefix="several-gpus-"))).absolute(), len(names), cpu, learning, override or ()
    )
    setup.folder.mkdir(parents=True, exist_ok=True)
    file = setup.folder / "results.json"
    jobs = select([job for name in suite or SUITES for job in SUITES[name](setup)], only or [])
    if not jobs:
        sys.exit("no such job runs on so few GPUs")
    results: dict[str, Any] = json.loads(file.read_text())["jobs"] if file.exists() else {}
    about = {**print_machine(*VERSIONS), "device": "CPU" if cpu else device_name(), "gpus": len(names)}
    about["overrides"] = override or []
    print(f"{len(names)} × {about['device']}; {len(jobs)} jobs, into {setup.folder}", file=sys.stderr, flush=True)

    def save() -> None:
        content = {**about, "seconds": time.monotonic() - began, "jobs": results}
        file.write_text(json.dumps(content, indent=1), encoding="utf-8")

    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that the jobs are killed
    try:
        run_jobs(jobs, results, gpus=[] if cpu else names, deadline=began + limit, save=save)
    finally:
        print(*tables.all_tables(results), sep="\n", flush=True)
        runs = {name: metrics_of(setup.run(name)) for name in results if name.startswith("async_levels: ")}
        if curves := {name.partition(": ")[2]: rows for name, rows in runs.items() if rows and rows[-1]["step"]}:
            plot_curves(curves, setup.folder / "curves.png")
        print(f"\n{file}; {time.monotonic() - began:.0f} s in all", flush=True)
    sys.exit(any(not succeeded(results, job.name) or "failed" in results[job.name] for job in jobs))


if __name__ == "__main__":
    typer.run(main)
