"""How fast `tinyzero data` writes as many countdown puzzles as TinyZero has, and whether they are valid.

    python benchmarks/data.py [--runs 3]

327,680 puzzles for training and 1,024 held out; wall clock of the whole command, median of several runs. Target: 5 s
on 2 quiet cores; the same bytes in every run and for any number of workers; all puzzles solvable; none in both splits.
"""

import hashlib
import itertools
import random
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import pyarrow.parquet as pq
import typer

from benchmarks.common import TINYZERO, print_machine, print_table
from tinyzero_countdown.solutions import survey
from tinyzero_sdk import Item, load_task

SIZES = {"train": 327_680, "test": 1_024}
TARGET_SECONDS = 5
WORKERS = (1, 2, 3)
SAMPLE = 4_096  # puzzles whose gold answer is checked
Puzzle = tuple[tuple[int, ...], int]
"""The sorted numbers and the target, so that puzzles compare equal in any order of numbers."""


def write(output: Path, *options: str) -> float:
    """Seconds of one run of the command."""
    sizes = ["--size", str(SIZES["train"]), "--test-size", str(SIZES["test"])]
    command = [*TINYZERO, "data", "--task", "countdown", *sizes, "--seed", "0", "--output", str(output), *options]
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def digest(directory: Path) -> str:
    """Of the bytes of both files."""
    return hashlib.sha256(b"".join((directory / f"{split}.parquet").read_bytes() for split in SIZES)).hexdigest()


def read(path: Path) -> list[Puzzle]:
    """The puzzles of a file."""
    table = pq.read_table(path, columns=["nums", "target"])
    return [(tuple(sorted(row["nums"])), row["target"]) for row in table.to_pylist()]


def unsolvable(puzzles: Sequence[Puzzle]) -> int:
    """How many puzzles no expression solves, by a search through all of them."""
    by_length: defaultdict[int, list[Puzzle]] = defaultdict(list)
    for puzzle in puzzles:
        by_length[len(puzzle[0])].append(puzzle)
    counts = [
        survey(np.array([numbers for numbers, _ in group]), np.array([target for _, target in group])).solutions
        for group in by_length.values()
    ]
    return sum(int((count == 0).sum()) for count in counts)


def wrong_golds(puzzles: Sequence[Puzzle]) -> int:
    """How many gold answers are not right, by the checker or by the second, independent one."""
    task = load_task("countdown")
    wrong = 0
    for numbers, target in puzzles:
        ground_truth = {"target": target, "numbers": list(numbers)}
        gold = task.solve(Item(ground_truth, {"nums": list(numbers), "target": target})) or ""
        score = task.score_completion(gold, ground_truth)
        wrong += not (score.correct and score.answer is not None and task.oracle(score.answer, ground_truth))
    return wrong


def check(train: Sequence[Puzzle], test: Sequence[Puzzle]) -> dict[str, dict[str, str]]:
    """Each property, with the number of puzzles checked and of failures."""
    puzzles = [*train, *test]
    sample = random.Random(0).sample(puzzles, min(SAMPLE, len(puzzles)))
    failures = {
        "solvable, by a search through all expressions": (len(puzzles), unsolvable(puzzles)),
        "gold answer right, by the checker and by the oracle": (len(sample), wrong_golds(sample)),
        "not in both splits": (len(test), len(set(train) & set(test))),
        "not twice in a split": (len(puzzles), len(puzzles) - len(set(train)) - len(set(test))),
    }
    return {what: {"puzzles": f"{count:,}", "fail": f"{failing:,}"} for what, (count, failing) in failures.items()}


def main(runs: Annotated[int, typer.Option(min=1, help="runs with one worker per core")] = 3) -> None:
    """Measure how fast puzzles are written, and check them."""
    print_machine("tinyzero-countdown", "numpy", "pyarrow")
    with TemporaryDirectory() as folder:
        outputs = (Path(folder) / str(number) for number in itertools.count())
        median = statistics.median(write(next(outputs)) for _ in range(runs))
        seconds = {"one worker per core": f"{median:.1f} s (median of {runs})"}
        seconds |= {f"--workers {count}": f"{write(next(outputs), '--workers', str(count)):.1f} s" for count in WORKERS}
        directories = list(Path(folder).iterdir())
        different = len(set(map(digest, directories)))
        checks = check(*(read(directories[0] / f"{split}.parquet") for split in SIZES))
    title = f"writing {SIZES['train']:,} + {SIZES['test']:,} puzzles (target {TARGET_SECONDS} s on 2 cores)"
    print_table(title, {how: {"wall clock": took} for how, took in seconds.items()})
    print(f"{len(directories)} runs wrote {'the same bytes' if different == 1 else f'{different} different outputs'}\n")
    print_table("property", checks)


if __name__ == "__main__":
    typer.run(main)
