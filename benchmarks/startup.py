"""Start-up time of `import tinyzero_sdk` and `tinyzero --help`, over a bare interpreter.

    python benchmarks/startup.py [--runs 21]

Wall clock, medians of interleaved runs. Targets: 0.15 s for the import, 0.35 s for the help; torch is imported by
neither.
"""

import statistics
import subprocess
import sys
import time
from typing import Annotated

import typer

from benchmarks.common import TINYZERO, print_machine, print_table

BARE = [sys.executable, "-c", "pass"]

STARTS = {
    "`import tinyzero_sdk`": ([sys.executable, "-c", "import tinyzero_sdk"], 0.15),
    "`tinyzero --help`": ([*TINYZERO, "--help"], 0.35),
}
"""The command, and its target in seconds over a bare interpreter."""


def seconds_of(command: list[str]) -> float:
    """Wall-clock seconds of one run."""
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def imported_by(command: list[str]) -> set[str]:
    """Top-level names of the modules that a run imports."""
    python, *arguments = command
    traced = [python, "-X", "importtime", *arguments]
    run = subprocess.run(traced, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
    # import time: self [us] | cumulative | imported package
    return {line.rsplit("|", 1)[1].strip().partition(".")[0] for line in run.stderr.splitlines() if "|" in line}


def main(runs: Annotated[int, typer.Option(min=1, help="interleaved runs; the median counts")] = 21) -> None:
    """Measure start-up times."""
    print_machine()
    commands = [BARE, *(command for command, _ in STARTS.values())]
    rounds = [[seconds_of(command) for command in commands] for _ in range(runs)]
    bare, *medians = map(statistics.median, zip(*rounds, strict=True))
    rows = {
        name: {
            "wall clock": f"{median:.3f} s",
            f"over a bare interpreter ({bare:.3f} s)": f"{median - bare:.3f} s",
            "target": f"{target} s",
            "imports torch": "yes" if "torch" in imported_by(command) else "no",
        }
        for (name, (command, target)), median in zip(STARTS.items(), medians, strict=True)
    }
    print_table(f"start-up, medians of {runs} runs", rows)


if __name__ == "__main__":
    typer.run(main)
