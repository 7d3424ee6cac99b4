"""`tinyzero tasks` and `tinyzero plugins`: what is installed and what is broken."""

import dataclasses
import textwrap
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.markup import escape

from tinyzero_sdk.cli.summary_report import table
from tinyzero_sdk.cli.task_options import TaskName
from tinyzero_sdk.console import print_json, stdout
from tinyzero_sdk.errors import TaskNotFoundError, TinyZeroError
from tinyzero_sdk.plugins.registry import Plugin, family_tasks, load_plugins
from tinyzero_sdk.records import ScorerLimits
from tinyzero_sdk.settings import describe, format_value
from tinyzero_sdk.tasks.registry import TaskEntry, list_tasks, load_task
from tinyzero_sdk.tasks.task import Task

OFFERS = {"register_commands": "commands", "task_names": "tasks", "score_wrappers": "score wrappers"}
MOST_SHOWN = 8  # tasks of a family in the list of all tasks
UNSAFE = "it scores only with --allow-unsafe-scorers, in worker processes"
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def tasks(
    name: Annotated[
        str | None, typer.Argument(help="A task (name or path) to describe, or a family whose tasks to list.")
    ] = None,
    task: TaskName = None,
    json: JsonOption = False,
) -> None:
    """List the installed tasks, or describe one."""
    name = name or task
    offers = sorted(family_tasks().items()) if name and name.isidentifier() else ()
    named = ((other, plugin) for other, plugins in offers for plugin in plugins if other.startswith(f"{name}/"))
    of_family = [_task_row(other, plugin) for other, plugin in named]  # each loaded for its description
    if name is None:
        rows = _installed(expand_families=json)
    elif not (rows := of_family):
        details = _details(load_task(name))
        print_json(details) if json else _show_details(details)
        return
    print_json(rows) if json else _show_rows(rows, "no task is installed; try: pip install tinyzero-countdown")


def _installed(expand_families: bool) -> list[dict[str, Any]]:
    """All tasks; a large family is one row, and not loaded, unless it is to be expanded."""
    rows = [_task_row(entry.name, entry) for entry in list_tasks()]
    by_name = groupby(sorted(family_tasks().items()), key=lambda offer: offer[0].partition("/")[0])
    for family, group in by_name:
        offers = [(name, plugin) for name, plugins in group for plugin in plugins]
        if len(offers) > MOST_SHOWN and not expand_families:
            text = f"{len(offers)} tasks; to list them: tinyzero tasks {family}"
            rows.append(_row(f"{family}/…", offers[0][1], description=text))
        else:
            rows += [_row(name, plugin, description="") for name, plugin in offers]
    return rows


def plugins(json: JsonOption = False) -> None:
    """List the installed plugins: commands, families of tasks, score wrappers."""
    rows = []
    for plugin in load_plugins():
        hooks = vars(plugin.manager.hook)
        offers = ", ".join(offer for hook, offer in OFFERS.items() if hooks[hook].get_hookimpls())
        rows.append(_row(plugin.name, plugin, offers=offers))
    print_json(rows) if json else _show_rows(rows, "no plugin is installed; for tasks: tinyzero tasks")


def _task_row(name: str, origin: TaskEntry | Plugin) -> dict[str, Any]:
    try:
        info = load_task(name).info
        return {**_row(name, origin, description=info.description), "unsafe_scorer": info.unsafe_scorer}
    except TinyZeroError as error:  # the family itself may refuse a task
        fault = "unsupported" if isinstance(error, TaskNotFoundError) else "broken"
        return {**_row(name, origin, description=""), fault: str(error)}


def _row(name: str, origin: TaskEntry | Plugin, **content: str) -> dict[str, Any]:
    return {
        "name": name,
        **content,
        "distribution": origin.distribution,
        "version": origin.version,
        "broken": getattr(origin, "error", None),
    }


def _show_rows(rows: list[dict[str, Any]], nothing: str) -> None:
    if not rows:
        stdout.print(nothing)
        return
    name, content = list(rows[0])[:2]
    shown = table(name, content, "from", numbers=False)
    origins = [f"{row['distribution']} {row['version']}" for row in rows]
    for row, origin in zip(rows, origins, strict=True):
        text = f"[red]broken:[/] {escape(row['broken'])}" if row["broken"] else escape(row[content])
        if row.get("unsupported"):
            text = f"[yellow]not supported:[/] {escape(row['unsupported'].rpartition(' is not supported: ')[2])}"
        mark = "[yellow]unsafe scorer:[/] " if row.get("unsafe_scorer") else ""
        shown.add_row(f"[cyan]{escape(row['name'])}[/]", mark + text, origin)
    stdout.print(shown)
    if any(row.get("unsafe_scorer") for row in rows):
        stdout.print(f"\n[yellow]unsafe scorer[/] = {UNSAFE}; `tinyzero tasks NAME` says why")


def _details(task: Task) -> dict[str, Any]:
    """The output of `tinyzero tasks NAME`."""
    fields = list(describe(type(task.options), prefix="task.")) if task.options is not None else []
    described = dataclasses.asdict(dataclasses.replace(task.info, judge=None))
    limits = described.pop("limits")
    described["judge"] = task.info.judge and str(task.info.judge)
    if task.is_async:
        for field in describe(ScorerLimits, prefix="task.limits."):
            fields.append(dataclasses.replace(field, default=limits[field.key.rpartition(".")[2]]))
    return {
        "name": task.name,
        "version": task.version,
        **described,
        "options": [
            dataclasses.asdict(field) | ({"default": None} if field.default is dataclasses.MISSING else {})
            for field in fields
        ],
        **_example(task),
    }


def _example(task: Task) -> dict[str, Any]:
    try:
        if not (items := task.generate("train", 1)):
            raise TinyZeroError("the task makes no problem")
        prompts = task.templates(items[0])
        example = {
            "prompt": next(iter(prompts.values()), None),
            "ground_truth": items[0].ground_truth,
            "solution": task.solve(items[0]),
        }
    except TinyZeroError as error:  # a task whose data is not at hand still has options to show
        return {"templates": [], "example": None, "no_example": str(error)}
    return {"templates": list(prompts), "example": example}


def _show_details(details: dict[str, Any]) -> None:
    stdout.print(f"[bold cyan]{escape(details['name'])}[/] {details['version']}  {escape(details['description'])}")
    low, high = details["score_range"]
    facts = [f"reward {low:g} to {high:g}", f"ability {details['ability']}"]
    if details["judge"]:
        facts.append(f"judge {details['judge']}")
    if details["templates"]:
        facts.append(f"templates {', '.join(details['templates'])}")
    stdout.print(escape(" · ".join(facts)))
    if details["unsafe_scorer"]:
        why = f"unsafe scorer: {details['unsafe_scorer']}; {UNSAFE}"
        stdout.print(f"[yellow]{escape(why)}[/]", soft_wrap=True)
    options = [
        (option["key"], option["type"], format_value(option["default"]), option["help"])
        for option in details["options"]
    ]
    parts = [
        (f"task.weights.{name}", f"{part['weight']:g}", "{:g} to {:g}".format(*part["range"]), part["description"])
        for name, part in details["parts"].items()
    ]
    for heading, rows in (
        (("option", "type", "default", "meaning"), options),
        (("weight of a part", "default", "range", "meaning"), parts),
    ):
        shown = table(*heading, numbers=False)
        for key, *texts in rows:
            shown.add_row(f"[cyan]{key}[/]", *map(escape, texts))
        if rows:
            stdout.print("", shown)
    if details["example"] is None:
        stdout.print(f"\nno example: {escape(details['no_example'])}", soft_wrap=True)
        return
    for part, value in details["example"].items():
        stdout.print(f"\n[bold]{part.replace('_', ' ')}[/]")
        stdout.print(textwrap.indent(str(value), "  "), markup=False, soft_wrap=True)
