"""The size and shape of a checkout: lines by area, handlers of exceptions, ladders over names, and how far a call goes.

    python benchmarks/house.py [CHECKOUT] [--walk]

Physical lines of the Python files that git tracks; a function's lines include its docstring and decorators. Imports
nothing of the checkout, so that it measures any version.

A ladder is a comparison (`==`, `!=`, `in`, `not in`, or a `case`) that asks which engine, estimator, loss or executor
is chosen: one side is a name or attribute of `ASKED`, the other has the name of a kind in it, or is a constant in
capitals (`estimator in NO_REWARDS`). A comparison with `auto`, which names no kind, is none.

`--walk` runs `walk.py` with the Python of the checkout's `.venv`: the functions, files and records that a training
step, a configuration key and the scoring of a file pass through.
"""

import ast
import json
import re
import statistics
import subprocess
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

AREAS = ("tinyzero_sdk", "trainer/tinyzero_trainer", "plugins", "examples", "tests", "benchmarks")
LOOP = Path("trainer/tinyzero_trainer/controller/loop.py")
WALKS = ("step", "key", "score_file")

ENGINES, EXECUTORS, LOSSES = {"torch", "vllm"}, {"local", "ray"}, {"ppo", "gspo", "cispo", "reinforce"}
ESTIMATORS = {"grpo", "dr_grpo", "rloo", "gdpo", "reinforce_pp", "reinforce_pp_baseline", "remax", "gae", "raft"}
ESTIMATORS |= {"on_policy_distillation"}
ASKED = {
    "engine": ENGINES,
    "executor": EXECUTORS,
    **dict.fromkeys(("estimator", "advantage_estimator"), ESTIMATORS),
    **dict.fromkeys(("loss", "policy_loss"), LOSSES),
    **dict.fromkeys(("name", "kind"), ENGINES | EXECUTORS | LOSSES | ESTIMATORS),
}


def function_lengths(source: str) -> list[int]:
    """Lines of each function and method, nested ones too."""
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    starts = ((node, min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])) for node in nodes)
    return [(node.end_lineno or start) - start + 1 for node, start in starts]


def ladders(source: str) -> list[int]:
    """Lines of the comparisons with names of engines, estimators, losses and executors."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        sides: list[ast.AST]
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            sides = [node.subject, *(case.pattern for case in node.cases)]
        else:
            continue
        asked = {name for side in sides if (name := last_name(side)) in ASKED}
        values = {part.value for side in sides for part in ast.walk(side) if isinstance(part, ast.Constant)}
        tables = any((last_name(side) or "").isupper() for side in sides) and asked - {"name", "kind"}
        if tables or any(ASKED[name] & values for name in asked):
            lines.append(node.lineno)
    return sorted(lines)


def last_name(node: ast.AST) -> str | None:
    """`engine` of `config.rollout.engine` and of `engine`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def print_handlers_and_ladders(texts: dict[Path, str]) -> None:
    """Lines that begin with `except` in each package of the SDK and the trainer, and the ladders of the trainer."""
    inside = {path: text for path, text in texts.items() if any(path.is_relative_to(area) for area in AREAS[:2])}
    handlers = {path: len(re.findall(r"^\s*except\b", text, re.MULTILINE)) for path, text in inside.items()}
    packages: Counter[Path] = Counter()
    for path, count in handlers.items():
        packages[path.parent] += count
    print(f"\nlines with except: {sum(handlers.values())}")
    print(*(f"{count:5}  {package}" for package, count in packages.most_common() if count), sep="\n")
    places = [f"  {path}:{line}" for path, text in sorted(inside.items()) for line in ladders(text)]
    print(f"\ncomparisons with names of engines, estimators, losses and executors: {len(places)}", *places, sep="\n")


def print_walks(checkout: Path) -> None:
    """How many functions, files and records each walk has."""
    script = Path(__file__).with_name("walk.py")
    print(f"\n{'walk':12}{'functions':>10}{'files':>7}{'moves':>8}{'records':>9}")
    for name in WALKS:
        command = [str(checkout / ".venv/bin/python"), str(script), str(checkout), name]
        done = subprocess.run(command, cwd=checkout, check=True, stdout=subprocess.PIPE, text=True)
        walk = json.loads(done.stdout.splitlines()[-1])
        print(f"{name:12}{walk['functions']:10}{walk['files']:7}{walk['moves']:8,}{len(walk['records']):9}")


def main(
    checkout: Annotated[Path, typer.Argument()] = Path(),
    walk: Annotated[bool, typer.Option("--walk", help="run the walks, in a minute")] = False,
) -> None:
    """Print the size of a checkout."""
    checkout = checkout.resolve()
    listed = subprocess.run(
        ["git", "-C", str(checkout), "ls-files", "-z", "*.py"], check=True, capture_output=True, text=True
    )
    texts = {Path(name): (checkout / name).read_text("utf-8") for name in listed.stdout.split("\0") if name}
    print(f"{'area':26}{'lines':>8}{'files':>7}{'functions':>11}{'median':>8}{'p90':>6}{'longest':>9}  longest file")
    for area in AREAS:
        files = {path: text for path, text in texts.items() if path.is_relative_to(area)}
        if not files:
            continue
        lengths = sorted(length for text in files.values() for length in function_lengths(text)) or [0]
        lines = {path: len(text.splitlines()) for path, text in files.items()}
        longest = max(lines, key=lambda path: lines[path])
        print(
            f"{area:26}{sum(lines.values()):8,}{len(files):7,}{len(lengths):11,}{statistics.median(lengths):8g}"
            f"{lengths[int(0.9 * (len(lengths) - 1))]:6}{lengths[-1]:9}  {longest.relative_to(area)} ({lines[longest]})"
        )
    print("\nfiles of each package")
    packages = Counter(path.parent for path in texts if path.is_relative_to(AREAS[0]) or path.is_relative_to(AREAS[1]))
    for package, count in sorted(packages.items()):
        print(f"{count:5}  {package}")
    print_handlers_and_ladders(texts)
    if LOOP in texts:
        print(f"\nlines of {LOOP}: {len(texts[LOOP].splitlines())}")
    if walk:
        print_walks(checkout)


if __name__ == "__main__":
    typer.run(main)
