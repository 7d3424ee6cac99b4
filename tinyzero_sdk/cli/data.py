"""`tinyzero data` and `tinyzero sample`: write a task's problems to files, or show a few."""

import json
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from tinyzero_sdk.cli.summary_report import table
from tinyzero_sdk.cli.task_options import TaskName, TaskOverrides, Workers, one_task
from tinyzero_sdk.console import plural, print_json, stdout
from tinyzero_sdk.data.rows import as_messages
from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.records import Item, Split
from tinyzero_sdk.tasks.registry import load_task_with_overrides
from tinyzero_sdk.tasks.splits import DEFAULT_TEST_FRACTION, iterate_split
from tinyzero_sdk.tasks.task import Task

Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Different seeds give different problems.")]
Template = Annotated[str, typer.Option("--template", help="Prompt template: base, chat or compact.")]
TestFraction = Annotated[
    float, typer.Option("--test-fraction", metavar="X", help="Fraction of problems held out, by the hash of their key.")
]


def data(
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory for the files; created if missing.")],
    overrides: TaskOverrides = None,
    task: TaskName = None,
    size: Annotated[str, typer.Option("--size", metavar="N|all", help="Training problems; 0 = no file.")] = "10000",
    test_size: Annotated[
        str, typer.Option("--test-size", metavar="N|all", help="Held-out problems; 0 = no file.")
    ] = "1024",
    seed: Seed = 0,
    test_fraction: TestFraction = DEFAULT_TEST_FRACTION,
    template: Template = "base",
    format: Annotated[Literal["parquet", "jsonl"], typer.Option("--format", help="Format of the files.")] = "parquet",
    workers: Workers = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")] = False,
) -> None:
    """Write a task's problems to a train and a test file that share none.

    The size `all` writes every problem of a finite task.
    """
    from tinyzero_sdk.data.build import write_dataset
    from tinyzero_sdk.progress import Progress
    from tinyzero_sdk.workers.process import count_cores

    started = time.perf_counter()
    sizes: dict[Split, int | None] = {"train": _size("--size", size), "test": _size("--test-size", test_size)}
    opened = load_task_with_overrides(*one_task(task, overrides))
    with Progress(announce=False) as progress:
        progress.phase(
            "making problems", None if None in sizes.values() else sum(filter(None, sizes.values())), "problems"
        )
        written = dict[Split, int]()

        def show(split: Split, rows: int) -> None:
            written[split] = rows
            progress.update(sum(written.values()))

        reports = write_dataset(
            opened,
            output,
            sizes=sizes,
            seed=seed,
            test_fraction=test_fraction,
            template=template,
            format=format,
            workers=workers or count_cores(),
            overwrite=overwrite,
            on_progress=show,
        )
    shown = table("file", "problems", "easiest", "median", "hardest")
    for report in reports.values():
        shown.add_row(str(report.path), f"{report.rows:,}", *(f"{level:.3g}" for level in report.difficulty))
    stdout.print(shown)
    stdout.print(f"written in {time.perf_counter() - started:.1f} s")


def _size(flag: str, text: str) -> int | None:
    """A number of problems; None = all there are."""
    if text == "all":
        return None
    if not (text.isascii() and text.isdigit()):
        raise SettingsError(f"{flag}: got {text!r}, expected a number of problems, or all")
    return int(text)


def sample(
    overrides: TaskOverrides = None,
    task: TaskName = None,
    count: Annotated[int, typer.Option("-n", min=1, metavar="N", help="Number of problems.")] = 3,
    split: Annotated[Split, typer.Option("--split", help="Split of the problems.")] = "train",
    seed: Seed = 0,
    test_fraction: TestFraction = DEFAULT_TEST_FRACTION,
    template: Template = "base",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show a few problems of a task: prompt, ground truth, gold completion and demonstration with their scores."""
    opened = load_task_with_overrides(*one_task(task, overrides))
    items = iterate_split(opened, split, size=count, seed=seed, test_fraction=test_fraction)
    problems = [_describe(opened, item, template, seed + index) for index, item in enumerate(items)]
    if json:
        print_json(problems)
    else:
        for number, problem in enumerate(problems, 1):
            _show_problem(f"{opened.name} · {split} {number}", problem)
        if shown := [problem["demonstration"] for problem in problems if problem["demonstration"]]:
            right = sum(demonstration["reason"] == "ok" for demonstration in shown)
            stdout.print(f"{right:,} of {plural(len(shown), 'demonstration')} right")
    if any(scored["error"] for problem in problems for scored in (problem, problem["demonstration"] or problem)):
        raise typer.Exit(1)


def _describe(task: Task, item: Item, template: str, seed: int) -> dict[str, Any]:
    solution, demonstration = task.solve(item), task.demonstrate(item, seed)
    return {
        "key": task.item_key(item),
        "difficulty": task.difficulty(item),
        "prompt": task.make_prompt(item, template),
        "ground_truth": item.ground_truth,
        "solution": solution,
        **_scored(task, item, solution),
        "demonstration": demonstration and {"text": demonstration, **_scored(task, item, demonstration)},
    }


def _scored(task: Task, item: Item, completion: str | None) -> dict[str, Any]:
    if completion is None or task.info.unsafe_scorer:  # which does not run in this process
        return {"score": None, "reason": None, "error": None}
    score, error = task.score_completion(completion, item.ground_truth), None
    if score.reason == "error" and task.first_error is not None:
        error = task.first_error.splitlines()[-1]
    return {"score": score.value, "reason": score.reason, "error": error}


def _show_problem(title: str, problem: dict[str, Any]) -> None:
    stdout.print(Rule(Text(title, style="bold cyan"), align="left"))
    for message in as_messages(problem["prompt"]):
        _show_part(f"prompt ({message['role']})", message["content"])
    _show_part("ground truth", json.dumps(problem["ground_truth"], ensure_ascii=False))
    _show_part("difficulty", f"{problem['difficulty']:.3g}")
    if problem["solution"] is not None:
        _show_part(f"gold completion, {_outcome(problem)}", problem["solution"])
    if demonstration := problem["demonstration"]:
        _show_part(f"demonstration, {_outcome(demonstration)}", demonstration["text"])
    stdout.print()


def _outcome(scored: dict[str, Any]) -> str:
    if scored["error"]:
        return f"the scorer failed on it: {scored['error']}"
    return (
        "not scored: its scorer is unsafe"
        if scored["score"] is None
        else f"scores {scored['score']:g} ({scored['reason']})"
    )


def _show_part(title: str, text: str) -> None:
    # Text, not markup: a problem may well contain [brackets].
    stdout.print(Text(title, style="bold"))
    stdout.print(Padding(Text(text.strip("\n")), (0, 0, 0, 2), expand=False))
