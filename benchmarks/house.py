"""The size and shape of a checkout: lines by area, files, functions, packages, and the imports between packages.

    python benchmarks/house.py [CHECKOUT] [--imports imports.png]

Physical lines of the Python files that git tracks; a function's lines include its docstring and decorators. Imports
nothing of the checkout, so that it measures any version.

`--imports` draws the trainer's packages, and modules outside every package, as a matrix: a row imports the columns
marked in it. The order has few imports upwards, so a red mark, below the diagonal, belongs to a cycle. Late and
type-checking imports count.
"""

import ast
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

AREAS = ("tinyzero_sdk", "trainer/tinyzero_trainer", "plugins", "examples", "tests", "benchmarks")
PACKAGE = "tinyzero_trainer"


def function_lengths(source: str) -> list[int]:
    """Lines of each function and method, nested ones too."""
    found = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    starts = ((node, min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])) for node in found)
    return [(node.end_lineno or start) - start + 1 for node, start in starts]


def imports_between(checkout: Path) -> Counter[tuple[str, str]]:
    """How many imports lead from one package or module to another."""
    import grimp

    sys.path.insert(0, str(checkout / "trainer"))
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    sys.path.pop(0)
    counts: Counter[tuple[str, str]] = Counter()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            if PACKAGE not in (module, imported):
                pair = module.split(".")[1], imported.split(".")[1]
                counts[pair] += pair[0] != pair[1]
    return +counts


def top_down(counts: Counter[tuple[str, str]]) -> list[str]:
    """Names in an order with few imports upwards, by a greedy search (Eades, Lin and Smyth 1993)."""
    left = sorted({name for pair in counts for name in pair})
    top: list[str] = []
    bottom: list[str] = []
    while left:
        out = {name: {b for a, b in counts if a == name and b in left} for name in left}
        into = {name: {a for a, b in counts if b == name and a in left} for name in left}
        if sinks := [name for name in left if not out[name]]:
            bottom.insert(0, sinks[0])
        elif sources := [name for name in left if not into[name]]:
            top.append(sources[0])
        else:
            top.append(max(left, key=lambda name: len(out[name]) - len(into[name])))
        left = [name for name in left if name not in {*top, *bottom}]
    return top + bottom


def draw_imports(checkout: Path, output: Path) -> None:
    """Draw the matrix, and print the imports upwards."""
    from matplotlib.figure import Figure

    counts = imports_between(checkout)
    names = top_down(counts)
    place = {name: index for index, name in enumerate(names)}
    upward = [(a, b) for a, b in counts if place[b] < place[a]]
    figure = Figure(figsize=(9, 9), dpi=110, layout="constrained")
    axis = figure.subplots()
    for color, pairs in (("tab:blue", counts.keys() - set(upward)), ("tab:red", upward)):
        columns, rows = [place[b] for _, b in pairs], [place[a] for a, _ in pairs]
        axis.scatter(columns, rows, s=2500 / len(names), marker="s", color=color)
    ends = (-0.5, len(names) - 0.5)
    axis.plot(ends, ends, color="lightgray", linewidth=1, zorder=0)
    axis.set(xlim=ends, ylim=ends[::-1], aspect="equal")
    axis.set_xticks(range(len(names)), names, rotation=90, fontsize=min(9, 500 / len(names)))
    axis.set_yticks(range(len(names)), names, fontsize=min(9, 500 / len(names)))
    title = f"{len(names)} packages and modules, {len(counts)} arrows, {len(upward)} upwards"
    axis.set_title(title)
    figure.savefig(output)
    print(f"\n{title}", *(f"  {a} -> {b}" for a, b in upward), sep="\n")


def main(
    checkout: Annotated[Path, typer.Argument()] = Path(),
    imports: Annotated[Path | None, typer.Option(help="PNG for the imports between packages")] = None,
) -> None:
    """Print the size of a checkout."""
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
    if imports is not None:
        draw_imports(checkout, imports)


if __name__ == "__main__":
    typer.run(main)
