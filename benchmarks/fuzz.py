"""How long the fuzzer takes to find planted holes, and what it finds in the shipped tasks.

    python benchmarks/fuzz.py [--seeds 3] [--limit 60] [--clean-minutes 0]

Each broken reward of tests/broken_rewards is searched until the first finding: one worker, medians over the seeds,
including the start of the worker. `--clean-minutes N` searches each shipped task for N minutes on all cores.
"""

import statistics
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.common import print_machine, print_table
from tinyzero_sdk import load_task
from tinyzero_sdk.fuzz import fuzz
from tinyzero_sdk.fuzz.findings import DESCRIPTIONS
from tinyzero_sdk.workers.process import count_cores

BROKEN = Path(__file__).parents[1] / "tests" / "broken_rewards"
PLANTED = ("eval_power", "split_decimals", "last_line_only", "longer_number", "float_tolerance", "first_of_two")
OTHERS = ("tinyzero", "reasoning_gym")
SHIPPED: dict[str, dict[str, str]] = {"countdown": {}, "multiply": {}, "gsm8k": {"source": "synthetic"}}
"""Tasks by name, with their options."""

COLUMNS = ("after", "slowest", "tried", "smallest", "problem")


def find_hole(name: str, seeds: int, limit: float) -> dict[str, str]:
    """Seconds and completions until the first finding, medians over the seeds, and the smallest finding."""
    task = load_task(BROKEN / f"{name}.py")
    reports = [fuzz(task, seconds=limit, seed=seed, stop_after=1) for seed in range(seeds)]
    if not all(report.findings for report in reports):
        return dict.fromkeys(COLUMNS, "") | {"after": "not with every seed"}
    seconds = [report.seconds for report in reports]
    smallest = min((report.findings[0] for report in reports), key=lambda finding: finding.size)
    cells = (
        f"{statistics.median(seconds):.1f} s",
        f"{max(seconds):.1f} s",
        f"{statistics.median(report.tried for report in reports):,.0f}",
        f"`{smallest.completion!r}`",
        DESCRIPTIONS[smallest.kind],
    )
    return dict(zip(COLUMNS, cells, strict=True))


def main(
    seeds: Annotated[int, typer.Option(help="searches of each broken reward; the median counts")] = 3,
    limit: Annotated[float, typer.Option(help="seconds at most for one of them")] = 60.0,
    clean_minutes: Annotated[float, typer.Option(help="minutes for each shipped task; 0 = skip them")] = 0.0,
) -> None:
    """Measure how soon planted holes are found, and search the shipped tasks."""
    print_machine("tinyzero-countdown", "tinyzero-multiply", "tinyzero-gsm8k")
    holes = {name: find_hole(name, seeds, limit) for name in (*PLANTED, *OTHERS)}
    print_table("first finding, one worker, median", {f"`{name}`": hole for name, hole in holes.items()})
    if not clean_minutes:
        return
    clean = {
        name: fuzz(load_task(name, options=options), seconds=60 * clean_minutes, workers=count_cores())
        for name, options in SHIPPED.items()
    }
    rows = {
        name: {"tried": f"{report.tried:,}", "rate": f"{report.rate:,.0f} /s", "found": str(len(report.findings))}
        for name, report in clean.items()
    }
    print_table(f"{clean_minutes:g} minutes, {count_cores()} workers", rows)
    for name, report in clean.items():
        for finding in report.findings:
            print(f"{name}: {DESCRIPTIONS[finding.kind]}: {finding.completion!r} for {finding.ground_truth!r}")


if __name__ == "__main__":
    typer.run(main)
