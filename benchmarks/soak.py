"""Whether a long run's memory, file handles, threads and shared memory stay flat: least squares over 2,000 steps.

    python benchmarks/soak.py [--steps 2000] [--ray] [--keep DIRECTORY]

The built-in model learns countdown from 2 × 4 completions a step, so that a step takes a fifth of a second; all else is
as in a real run: scoring workers, evaluation every 50 steps, a checkpoint every 20, completions of every tenth on disk.
The slopes leave out the first quarter of the steps, in which caches fill. Exits with 1 if anything grows by more than
the limits below.
"""

import json
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression
from tempfile import TemporaryDirectory
from typing import Annotated

import psutil
import typer

from benchmarks.common import TINYZERO, print_machine, print_table

LIMITS = {"private MB": 1.0, "handles": 0.5, "threads": 0.5}
"""Per 100 steps, of each process. Something that is left behind at each checkpoint would be 5."""

SHARED_LIMIT = 1.0
"""MB of /dev/shm per 100 steps, of all processes together."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a process had at a step."""

    step: int
    values: tuple[float, ...]
    """In the order of `LIMITS`."""


def main(
    steps: int = 2000,
    ray: Annotated[bool, typer.Option("--ray", help="two ranks, an engine and a scorer on Ray")] = False,
    interval: Annotated[float, typer.Option(help="seconds between readings")] = 2.0,
    keep: Annotated[Path | None, typer.Option(help="a new directory for the run, which is kept")] = None,
) -> None:
    """Run, print a table, and exit with 1 if something grows."""
    print_machine("torch", "tinyzero-trainer", *(["ray"] if ray else []))
    with TemporaryDirectory() as scratch:
        folder = keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        arguments = settings(folder, steps, ray=ray)
        with (folder / "log").open("w") as log:
            process = subprocess.Popen([*TINYZERO, *arguments], stdout=log, stderr=subprocess.STDOUT)
            try:
                readings, shared = watch(psutil.Process(process.pid), folder / "run/metrics.jsonl", interval)
                code = process.wait()
            finally:
                process.kill()
        if code:
            raise SystemExit((folder / "log").read_text() + f"the run ended with exit code {code}")
        if grown := report(readings, shared, steps):
            raise SystemExit("grows: " + ", ".join(grown))


def settings(folder: Path, steps: int, *, ray: bool) -> list[str]:
    """Arguments of `tinyzero` for the run."""
    on_ray = ["run.executor=ray", "parallel.world_size=2", "rollout.num_engines=1"] if ray else []
    return [
        *("train", "--task", "countdown", f"run.output={folder / 'run'}", f"run.steps={steps}", "run.device=cpu"),
        *("data.prompts_per_step=2", "rollout.group_size=4", "reward.num_workers=2", "checkpoint.every=20"),
        *("eval.num_problems=64", "eval.every=50", "eval.num_problems_during=16", "log.rollouts_every=10", *on_ray),
    ]


def watch(
    run: psutil.Process, metrics: Path, interval: float
) -> tuple[dict[tuple[str, int], list[Reading]], list[tuple[int, float]]]:
    """Readings of each of a run's processes, by name and process id, and of /dev/shm in MB, until the run has ended."""
    readings, shared = defaultdict[tuple[str, int], list[Reading]](list), list[tuple[int, float]]()
    while run.is_running() and run.status() != psutil.STATUS_ZOMBIE:
        time.sleep(interval)
        step = newest_step(metrics)
        shared.append((step, sum(one.stat().st_size for one in Path("/dev/shm").rglob("*") if one.is_file()) / 1e6))
        with suppress(psutil.NoSuchProcess):
            for process in (run, *run.children(recursive=True)):
                with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    values = (process.memory_full_info().uss / 1e6, process.num_fds(), process.num_threads())
                    readings[name_of(process), process.pid].append(Reading(step, values))
    return readings, shared


def name_of(process: psutil.Process) -> str:
    """What a process is; an actor of Ray changes its title to what it does."""
    words = process.cmdline()
    if words and words[0].startswith("ray::"):
        return words[0].partition(".")[0].partition(" ")[0]
    modules = [Path(word).name for word in words[1:] if word.endswith(".py") or word.startswith("tinyzero_sdk.")]
    return "tinyzero train" if "train" in words else modules[0] if modules else process.name()


def newest_step(metrics: Path) -> int:
    """The step of the last whole line."""
    if not metrics.exists() or not (lines := metrics.read_bytes().splitlines(keepends=True)):
        return 0
    whole = [line for line in lines[-2:] if line.endswith(b"\n")]
    return int(json.loads(whole[-1])["step"]) if whole else 0


def report(readings: dict[tuple[str, int], list[Reading]], shared: list[tuple[int, float]], steps: int) -> list[str]:
    """Print the slopes of all that ran for most of the run; returns what grows beyond its limit."""
    grown, rows, warm = list[str](), dict[str, dict[str, str]](), steps / 4
    short = Counter[str]()
    for (name, pid), all_readings in readings.items():
        after = [reading for reading in all_readings if warm <= reading.step < steps]  # at the end a plot is drawn
        if not after or after[-1].step - after[0].step < steps / 2:
            short[name] += 1
            continue
        title, row = f"{name} ({pid})", dict[str, str]()
        for place, (what, limit) in enumerate(LIMITS.items()):
            values = [reading.values[place] for reading in after]
            slope = slope_of(zip((reading.step for reading in after), values, strict=True))
            row |= {what: f"{values[0]:.0f} to {values[-1]:.0f}", f"{what} / 100 steps": f"{slope:+.3f}"}
            if slope > limit:
                grown.append(f"{what} of {title} by {slope:.2f} per 100 steps")
        rows[title] = row
    slope = slope_of((step, size) for step, size in shared if step >= warm)
    if slope > SHARED_LIMIT:
        grown.append(f"/dev/shm by {slope:.2f} MB per 100 steps")
    print_table(f"process, steps {warm:.0f} to {steps}", rows)
    print(f"\n/dev/shm: {slope:+.3f} MB per 100 steps, from {shared[0][1]:.1f} to {shared[-1][1]:.1f} MB")
    print("processes that ran for less than half of it:", dict(short) or "none", flush=True)
    return grown


def slope_of(points: Iterable[tuple[float, float]]) -> float:
    """The least squares slope, per 100 steps."""
    steps, values = zip(*points, strict=True)
    return 100 * linear_regression(steps, values).slope


if __name__ == "__main__":
    typer.run(main)
