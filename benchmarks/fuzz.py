"""How long the fuzzer takes to find planted holes, and what it finds in the shipped tasks.

    python benchmarks/fuzz.py [--seeds 3] [--limit 60] [--clean-minutes 0] [--json]

Each broken reward of tests/broken_rewards is searched until the first finding: one worker, medians over the seeds,
including the start of the worker. `--clean-minutes N` searches each shipped task for N minutes on all cores.
"""

import json
import statistics
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.common import machine, print_machine, print_table
from tinyzero_sdk import load_task
from tinyzero_sdk.fuzz import FuzzReport, fuzz
from tinyzero_sdk.fuzz.findings import DESCRIPTIONS
from tinyzero_sdk.workers.process import count_cores

VERSIONS = ("tinyzero-countdown", "tinyzero-multiply", "tinyzero-gsm8k")
BROKEN = Path(__file__).parents[1] / "tests" / "broken_rewards"
PLANTED = ("eval_power", "split_decimals", "last_line_only", "longer_number", "float_tolerance", "first_of_two")
OTHERS = ("tinyzero", "reasoning_gym")
SHIPPED: dict[str, dict[str, str]] = {"countdown": {}, "multiply": {}, "gsm8k": {"source": "synthetic"}}
"""Tasks by name, with their options."""


def find_hole(name: str, seeds: int, limit: float) -> dict[str, Any]:
    """Seconds and completions until the first finding, over the seeds; None if a seed found nothing."""
    task = load_task(BROKEN / f"{name}.py")
    reports = [fuzz(task, seconds=limit, seed=seed, stop_after=1) for seed in range(seeds)]
    found = [report.findings[0] for report in reports if report.findings]
    shortest = min(found, key=lambda finding: finding.size) if found else None
    return {
        "seconds": _median([report.seconds if report.findings else None for report in reports]),
        "slowest": _median([max(report.seconds for report in reports)]) if len(found) == seeds else None,
        "tried": _median([report.tried if report.findings else None for report in reports]),
        "smallest": shortest.completion if shortest else None,
        "says": DESCRIPTIONS[shortest.kind] if shortest else None,
    }


def _median(values: list[Any]) -> float | None:
    return None if None in values else statistics.median(values)


def search_clean(minutes: float) -> dict[str, FuzzReport]:
    """What a long search finds in the shipped tasks."""
    return {
        name: fuzz(load_task(name, options=options), seconds=60 * minutes, workers=count_cores())
        for name, options in SHIPPED.items()
    }


def main(
    seeds: Annotated[int, typer.Option(help="searches of each broken reward; the median counts")] = 3,
    limit: Annotated[float, typer.Option(help="seconds at most for one of them")] = 60.0,
    clean_minutes: Annotated[float, typer.Option(help="minutes for each shipped task; 0 = skip them")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of tables")] = False,
) -> None:
    """Measure how soon planted holes are found, and search the shipped tasks."""
    if not as_json:
        print_machine(*VERSIONS)
    holes = {name: find_hole(name, seeds, limit) for name in (*PLANTED, *OTHERS)}
    clean = search_clean(clean_minutes) if clean_minutes else {}
    if as_json:
        counts = {name: {"tried": report.tried, "found": len(report.findings)} for name, report in clean.items()}
        print(json.dumps({**machine(*VERSIONS), "holes": holes, "clean": counts}))
        return
    print_table("first finding, one worker, median", {f"`{name}`": _row(hole) for name, hole in holes.items()})
    if clean:
        title = f"{clean_minutes:g} minutes, {count_cores()} workers"
        print_table(title, {name: _clean_row(report) for name, report in clean.items()})
        for name, report in clean.items():
            for finding in report.findings:
                print(f"{name}: {DESCRIPTIONS[finding.kind]}: {finding.completion!r} for {finding.ground_truth!r}")


def _row(hole: dict[str, Any]) -> dict[str, str]:
    if hole["seconds"] is None:
        return dict.fromkeys(("after", "slowest", "tried", "smallest", "problem"), "") | {
            "after": "not with every seed"
        }
    return {
        "after": f"{hole['seconds']:.1f} s",
        "slowest": f"{hole['slowest']:.1f} s",
        "tried": f"{hole['tried']:,.0f}",
        "smallest": f"`{hole['smallest']!r}`",
        "problem": hole["says"],
    }


def _clean_row(report: FuzzReport) -> dict[str, str]:
    return {"tried": f"{report.tried:,}", "rate": f"{report.rate:,.0f} /s", "found": str(len(report.findings))}


if __name__ == "__main__":
    typer.run(main)
