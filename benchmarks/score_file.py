"""How fast `tinyzero score` scores a large file, in how much memory, and what answers that hang cost.

    python benchmarks/score_file.py [--rows 1000000] [--workers 2] [--runs 1] [--timeout 0.5] [--keep DIR]

A million gsm8k completions of about 600 characters, eight of each prompt, from Parquet to Parquet; wall clock and CPU
time of the whole command, memory summed over all its processes. Target: 100,000 rows/s and less than 1 GB on 2 cores.
Then the same file under a task that hangs on one row in 10,000: each costs its timeout and itself, nothing else.
"""

import os
import random
import resource
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import typer

from benchmarks.common import TINYZERO, print_machine, print_table
from tinyzero_sdk import Item, load_task

LENGTH = 600
"""Characters of a completion."""

SAMPLES = 8
"""Completions of a prompt."""

PROBLEMS = 20_000
"""Different problems; prompts beyond them repeat a problem under a key of their own."""

HANG_EVERY = 10_000
"""One row in so many makes the second task hang."""

MARK = "I am stuck"
"""What stands in the answer of such a row."""

SHARES = {"right": 0.6, "wrong": 0.25, "no answer": 0.1, "not a number": 0.05}

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

TARGET_RATE, TARGET_MEGABYTES = 100_000, 1_000


@dataclass(frozen=True)
class Run:
    """One run of the command."""

    seconds: float
    """Wall clock, from its start to its end."""

    cpu_seconds: float
    """Of all its processes."""

    pss: int
    """Most bytes at a time, shared pages counted once."""

    rss: int
    """Most bytes at a time, shared pages counted for each process."""


def make_file(path: Path, rows: int) -> None:
    """Write the completions; the same for the same number of rows."""
    task, dice = load_task("gsm8k", options={"source": "synthetic"}), random.Random(0)
    items = list(task.dataset("train", min(PROBLEMS, -(-rows // SAMPLES))))
    lines = [line for item in items for line in str(item.data["answer"]).split("\n")[:-1]]
    writer: pq.ParquetWriter | None = None
    for start in range(0, rows, 1 << 14):
        part = [_row(items, lines, row, dice) for row in range(start, min(rows, start + (1 << 14)))]
        table = pa.Table.from_pylist(part)
        writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table)
    assert writer is not None
    writer.close()


def _row(items: list[Item], lines: list[str], row: int, dice: random.Random) -> dict[str, object]:
    prompt = row // SAMPLES
    item = items[prompt % len(items)]
    kind = dice.choices(list(SHARES), list(SHARES.values()))[0]
    right = str(item.ground_truth)
    answer = {
        "right": right,
        "wrong": str(int(float(right.replace(",", ""))) + dice.randint(1, 9)),
        "no answer": None,
        "not a number": "many",
    }[kind]
    if row % HANG_EVERY == HANG_EVERY // 2:
        answer = MARK
    forms = (f"</think>\n<answer>{answer}</answer>", f"</think>\n#### {answer}", f"</think>\nSo \\boxed{{{answer}}}")
    end = "</think>\nI do not know." if answer is None else dice.choices(forms, (3, 1, 1))[0]
    text = "<think>" + str(item.data["answer"]).rpartition("\n")[0]
    while len(text) < LENGTH:
        text += "\nWait. " + dice.choice(lines)
    extra = {"key": str(prompt), "difficulty": steps(item)}
    return {"completion": text[: LENGTH - len(end)] + end, "ground_truth": item.ground_truth, "extra_info": extra}


def steps(item: Item) -> float:
    """Steps of the solution."""
    return float(str(item.data["answer"]).count("\n"))


def score(source: Path, output: Path, task: str, workers: int, *options: str) -> Run:
    """Run the command and watch it."""
    command = [*TINYZERO, "score", str(source), "--task", task, "-o", str(output), "--workers", str(workers), *options]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        peaks = {"Pss": 0, "Rss": 0}
        watcher = threading.Thread(target=_watch, args=(process, peaks))
        watcher.start()
        code = process.wait()
        seconds = time.perf_counter() - started
        watcher.join()
    if code not in (0, 1):
        raise SystemExit(f"{' '.join(command)} ended with {code}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(seconds, cpu, peaks["Pss"], peaks["Rss"])


def _watch(process: subprocess.Popen, peaks: dict[str, int]) -> None:
    while process.poll() is None:
        found = [_memory(pid) for pid in _family(process.pid)]
        for name in peaks:
            peaks[name] = max(peaks[name], sum(memory.get(name, 0) for memory in found))
        time.sleep(0.1)


def _family(pid: int) -> Iterator[int]:
    """A process and all that descend from it."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has ended
        return
    for child in children:
        yield from _family(int(child))


def _memory(pid: int) -> dict[str, int]:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return {}
    return {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines}


def compare(plain: Path, hanging: Path) -> dict[str, int]:
    """What became of the rows that hang, and whether any other row has another verdict or place."""
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
    runs: Annotated[int, typer.Option(help="of the plain task; the median counts")] = 1,
    timeout: Annotated[float, typer.Option(help="seconds for one answer, where some hang")] = 0.5,
    keep: Annotated[Path | None, typer.Option(help="directory for the files, which are kept there")] = None,
) -> None:
    """Measure scoring of a large file."""
    print_machine("tinyzero-gsm8k", "pyarrow")
    with TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        source, plain, hanging = (folder / f"{name}.parquet" for name in (f"outputs-{rows}", "scored", "hanging"))
        if not source.exists():
            make_file(source, rows)
        measured = [score(source, plain, "gsm8k", workers) for _ in range(runs)]
        print_plain(source, rows, workers, measured)
        task = folder / "hanging.py"
        task.write_text(HANGING_TASK)
        run = score(source, hanging, str(task), workers, "--timeout", str(timeout))
        base = statistics.median(run.seconds for run in measured)
        print_hanging(compare(plain, hanging), run, base, timeout, workers)


def print_plain(source: Path, rows: int, workers: int, measured: list[Run]) -> None:
    """The table of the plain task."""
    seconds = statistics.median(run.seconds for run in measured)
    lengths = pc.utf8_length(pq.ParquetFile(source).read_row_group(0, ["completion"])["completion"])
    cells = {
        "rate": (f"{rows / seconds:,.0f} rows/s", f"{TARGET_RATE:,} rows/s"),
        "wall clock": (f"{seconds:.1f} s", ""),
        "CPU time per row": (f"{statistics.median(run.cpu_seconds for run in measured) / rows * 1e6:.1f} µs", ""),
        "memory, shared pages counted once (PSS)": (f"{max(run.pss for run in measured) / 1e6:,.0f} MB", ""),
        "memory, summed (RSS)": (f"{max(run.rss for run in measured) / 1e6:,.0f} MB", f"{TARGET_MEGABYTES:,} MB"),
    }
    title = f"{rows:,} completions of {pc.mean(lengths).as_py():.0f} characters, {workers} workers, "
    title += f"{os.cpu_count()} cores"
    print_table(title, {name: {"result": result, "target": target} for name, (result, target) in cells.items()})
    print()


def print_hanging(found: dict[str, int], run: Run, base: float, timeout: float, workers: int) -> None:
    """The table of the task that hangs."""
    expected = base + found["hanging rows"] * timeout / workers
    result = {name: f"{count:,}" for name, count in found.items()}
    result |= {
        f"expected time: {base:.1f} s + {found['hanging rows']} × {timeout:g} s / {workers}": f"{expected:.1f} s",
        "measured time": f"{run.seconds:.1f} s",
        "memory, summed (RSS)": f"{run.rss / 1e6:,.0f} MB",
    }
    print_table(f"one row in {HANG_EVERY:,} hangs", {name: {"result": cell} for name, cell in result.items()})


if __name__ == "__main__":
    typer.run(main)
