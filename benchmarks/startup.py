"""Start-up time of `import tinyzero_sdk` and `tinyzero --help`, over a bare interpreter; and of `tinyzero train`.

    python benchmarks/startup.py [--runs 21]
    python benchmarks/startup.py --train 1 --train 2 [--shape 10M]

Wall clock, medians of interleaved runs. Targets: 0.15 s for the import, 0.35 s for the help; torch is imported by
neither. `--train N`: from the command to the first finished step on N GPUs (0 = the CPU, 2 and more = with Ray), first
with empty caches of bytecode and compiled kernels, and then again; the model is made beforehand: the one that a run
without `--model` makes, or one of a shape of shapes.py with random weights. Targets for the second time: 15 s on one
GPU, 35 s on two.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands import device_name, run
from benchmarks.common import TINYZERO, print_machine, print_table
from benchmarks.shapes import write_model

BARE = [sys.executable, "-c", "pass"]

STARTS = {
    "`import tinyzero_sdk`": ([sys.executable, "-c", "import tinyzero_sdk"], 0.15),
    "`tinyzero --help`": ([*TINYZERO, "--help"], 0.35),
}
"""The command, and its target in seconds over a bare interpreter."""

LIMIT = 600.0
"""Seconds of one training."""


def seconds_of(command: list[str]) -> float:
    """Wall-clock seconds of one run."""
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def imported_by(command: list[str]) -> set[str]:
    """Top-level names of the modules that a run imports."""
    python, *arguments = command
    traced = [python, "-X", "importtime", *arguments]
    done = subprocess.run(traced, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
    # import time: self [us] | cumulative | imported package
    return {line.rsplit("|", 1)[1].strip().partition(".")[0] for line in done.stderr.splitlines() if "|" in line}


def seconds_to_first_step(gpus: int, model: list[str], output: Path, caches: Path) -> tuple[float, str]:
    """Of a training with its compiled kernels in `caches`; and the line with the parts of its start-up."""
    seen = list[float]()

    def watch(seconds: float, line: str) -> None:
        if line.startswith("step 1/"):
            seen.append(seconds)

    where = ["--gpus", str(gpus)] if gpus > 1 else [] if gpus else ["run.device=cpu"]
    finished = run(
        [*TINYZERO, "train", "--task", "multiply", "--output", str(output), "run.steps=2", *model, *where],
        LIMIT,
        until=lambda: bool(seen),
        on_line=watch,
        env={
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "TRITON_CACHE_DIR": str(caches / "triton"),
            # Bytecode is kept, as pip does for what it installs, also where the packages lie in an image without.
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(caches / "bytecode"),
        },
    )
    if not seen:
        sys.exit(finished.output)
    return seen[0], next(line for _, line in finished.lines if line.startswith("ready in "))


def measure_training(gpus: list[int], shape: str | None) -> None:
    """Measure starts of `tinyzero train`."""
    rows = dict[str, dict[str, str]]()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        model = list[str]()
        if shape is None:
            seconds_to_first_step(min(gpus), model, place / "made", place / "of_making")  # makes it, if there is none
        else:
            write_model(place / "model", shape)
            model = ["--model", str(place / "model")]
        for count in gpus:
            for nth in ("first", "second"):
                output = place / f"{count}_{nth}"
                seconds, ready = seconds_to_first_step(count, model, output, place / f"of_{count}")
                rows[f"{count} GPUs, {nth} time"] = {"first step after": f"{seconds:.1f} s", "start-up": ready}
    print_table(f"`tinyzero train`, {device_name()}", rows)


def main(
    runs: Annotated[int, typer.Option(min=1, help="interleaved runs; the median counts")] = 21,
    train: Annotated[list[int] | None, typer.Option(min=0, help="measure training on so many GPUs instead")] = None,
    shape: Annotated[str | None, typer.Option(help="of the model that is trained, such as 10M; see shapes.py")] = None,
) -> None:
    """Measure start-up times."""
    print_machine(*(["torch", "transformers"] if train else []))
    if train:
        measure_training(train, shape)
        return
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
