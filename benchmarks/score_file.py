"""The speed and memory of `tinyzero score` on a large file, and the cost of answers that hang.

    python benchmarks/score_file.py [--rows 1000000] [--workers 2] [--runs 1] [--timeout 0.5] [--keep DIR]

A million gsm8k completions of about 600 characters, eight per prompt, from Parquet to Parquet; wall clock and CPU time
of the whole command, memory summed over all its processes. Target: 150,000 rows/s and less than 1 GB on 2 cores. Then
the same file with a task that hangs on one row in 10,000: each should cost its timeout, and affect no other row.
"""

import itertools
import os
import random
import resource
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import typer

from benchmarks.common import TINYZERO, print_machine, print_table
from tinyzero_sdk import Item, load_task

LENGTH = 600  # characters of a completion
SAMPLES = 8  # completions per prompt
PROBLEMS = 20_000  # different problems; further prompts repeat a problem with another key
HANG_EVERY = 10_000  # the second task hangs on one row in this many
MARK = "I am stuck"  # the answer of such a row
MIX = {"right": 0.6, "wrong": 0.25, "no answer": 0.1, "not a number": 0.05}

HANGING_TASK = f"""
import time
import tinyzero_gsm8k
from tinyzero_gsm8k import *
from tinyzero_sdk import hookimpl

@hookimpl
def extract_answer(completion):
    if {MARK!r} in completion:
        time.sleep(3600)
    return tinyzero_gsm8k.extract_answer(completion)
"""

TARGET_RATE, TARGET_MEGABYTES = 150_000, 1_000


@dataclass(frozen=True)
class Run:
    """One run of the command, with all its processes."""

    seconds: float
    cpu_seconds: float
    pss: int  # peak bytes, with shared pages counted once
    rss: int  # peak bytes, with shared pages counted for each process


def make_file(path: Path, rows: int) -> None:
    """Write the completions; they depend on the number of rows alone."""
    task, dice = load_task("gsm8k", options={"source": "synthetic"}), random.Random(0)
    items = list(task.dataset("train", min(PROBLEMS, -(-rows // SAMPLES))))
    lines = [line for item in items for line in str(item.data["answer"]).split("\n")[:-1]]
    chunks = (range(start, min(rows, start + (1 << 14))) for start in range(0, rows, 1 << 14))
    tables = (pa.Table.from_pylist([_row(items, lines, row, dice) for row in chunk]) for chunk in chunks)
    first = next(tables)
    with pq.ParquetWriter(path, first.schema, compression="zstd") as writer:
        for table in itertools.chain([first], tables):
            writer.write_table(table)


def _row(items: list[Item], lines: list[str], row: int, dice: random.Random) -> dict[str, object]:
    prompt = row // SAMPLES
    item = items[prompt % len(items)]
    kind = dice.choices(list(MIX), list(MIX.values()))[0]
    right = str(item.ground_truth)
    wrong = str(int(float(right.replace(",", ""))) + dice.randint(1, 9))
    answer = {"right": right, "wrong": wrong, "no answer": None, "not a number": "many"}[kind]
    if row % HANG_EVERY == HANG_EVERY // 2:
        answer = MARK
    forms = (f"</think>\n<answer>{answer}</answer>", f"</think>\n#### {answer}", f"</think>\nSo \\boxed{{{answer}}}")
    end = "</think>\nI do not know." if answer is None else dice.choices(forms, (3, 1, 1))[0]
    text = "<think>" + str(item.data["answer"]).rpartition("\n")[0]
    while len(text) < LENGTH:
        text += "\nWait. " + dice.choice(lines)
    extra = {"key": str(prompt), "difficulty": float(str(item.data["answer"]).count("\n"))}
    return {"completion": text[: LENGTH - len(end)] + end, "ground_truth": item.ground_truth, "extra_info": extra}


def score(source: Path, output: Path, task: str, workers: int, *options: str, sampled: bool = True) -> Run:
    """Run the command, and sample its memory ten times per second, if so `sampled`: that takes some of the time."""
    command = [*TINYZERO, "score", str(source), "--task", task, "-o", str(output), "--overwrite"]
    command += ["--workers", str(workers), *options]
    before, started, code = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter(), None
    pss = rss = 0
    with psutil.Popen(command, stdout=subprocess.DEVNULL) as process:
        while code is None:
            found = list(_memory_of(process)) if sampled else []
            pss, rss = max(pss, sum(memory.pss for memory in found)), max(rss, sum(memory.rss for memory in found))
            with suppress(psutil.TimeoutExpired):
                code = process.wait(0.1)
        seconds = time.perf_counter() - started
    if code not in (0, 1):
        raise SystemExit(f"{' '.join(command)} exited with {code}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Run(seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, pss, rss)


def _memory_of(process: psutil.Process) -> Iterator[Any]:
    """Of the process and its descendants."""
    for one in [process, *process.children(recursive=True)]:
        with suppress(psutil.Error):  # it has ended
            yield one.memory_full_info()


def compare(plain: Path, hanging: Path) -> dict[str, int]:
    """How the hanging rows are scored, and how many other rows have another score or place."""
    names = ["completion", "score", "correct", "reason", "answer"]
    ours, theirs = pq.read_table(plain, columns=names), pq.read_table(hanging, columns=names)
    hangs = pc.match_substring(theirs["completion"], MARK)
    same = np.ones(len(ours), bool)
    for name in names:
        equal = pc.equal(ours[name], theirs[name])
        both_null = pc.and_(pc.is_null(ours[name]), pc.is_null(theirs[name]))
        same &= np.asarray(pc.or_(pc.fill_null(equal, False), both_null))
    timeouts = np.asarray(pc.equal(theirs["reason"], "timeout"))
    return {
        "rows": len(theirs),
        "hanging rows": int(np.asarray(hangs).sum()),
        "of these, scored as timeout": int((timeouts & np.asarray(hangs)).sum()),
        "other rows with a different score": int((~same & ~np.asarray(hangs)).sum()),
    }


def main(
    rows: Annotated[int, typer.Option(help="completions")] = 1_000_000,
    workers: Annotated[int, typer.Option(help="scoring processes")] = 2,
    runs: Annotated[int, typer.Option(help="without hanging rows; the median counts")] = 1,
    timeout: Annotated[float, typer.Option(help="seconds per answer, in the run in which some hang")] = 0.5,
    keep: Annotated[Path | None, typer.Option(help="directory that keeps the files")] = None,
) -> None:
    """Measure scoring of a large file."""
    print_machine("tinyzero-gsm8k", "pyarrow")
    with TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        source, plain, hanging = (folder / f"{name}.parquet" for name in (f"outputs-{rows}", "scored", "hanging"))
        if not source.exists():
            make_file(source, rows)
        measured = [score(source, plain, "gsm8k", workers, sampled=False) for _ in range(runs)]
        sampled = score(source, plain, "gsm8k", workers)
        seconds, cpu = (
            statistics.median(getattr(run, name) for run in measured) for name in ("seconds", "cpu_seconds")
        )
        pss, rss = sampled.pss / 1e6, sampled.rss / 1e6
        cells = {
            "rate": (f"{rows / seconds:,.0f} rows/s", f"{TARGET_RATE:,} rows/s"),
            "wall clock": (f"{seconds:.1f} s", ""),
            "CPU time per row": (f"{cpu / rows * 1e6:.1f} µs", ""),
            "memory, shared pages counted once (PSS)": (f"{pss:,.0f} MB", ""),
            "memory, summed (RSS)": (f"{rss:,.0f} MB", f"{TARGET_MEGABYTES:,} MB"),
        }
        title = f"{rows:,} completions of {LENGTH} characters, {workers} workers, {os.cpu_count()} cores"
        print_table(title, {name: {"result": result, "target": target} for name, (result, target) in cells.items()})
        task = folder / "hanging.py"
        task.write_text(HANGING_TASK)
        run = score(source, hanging, str(task), workers, "--timeout", str(timeout))
        found = compare(plain, hanging)
        hangs = found["hanging rows"]
        expected = f"expected time: {seconds:.1f} s + {hangs} × {timeout:g} s / {workers}"
        result = {name: f"{count:,}" for name, count in found.items()} | {
            expected: f"{seconds + hangs * timeout / workers:.1f} s",
            "measured time": f"{run.seconds:.1f} s",
            "memory, summed (RSS)": f"{run.rss / 1e6:,.0f} MB",
        }
        print()
        print_table(f"one row in {HANG_EVERY:,} hangs", {name: {"result": cell} for name, cell in result.items()})


if __name__ == "__main__":
    typer.run(main)
