"""The size and shape of a checkout: lines by area, files, functions and packages.

    python benchmarks/house.py [CHECKOUT]

Physical lines of the Python files that git tracks; a function's lines include its docstring and decorators. Imports
nothing of the checkout, so that it measures any version.
"""

import ast
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path

AREAS = ("tinyzero_sdk", "trainer/tinyzero_trainer", "plugins", "examples", "tests", "benchmarks")


def function_lengths(source: str) -> list[int]:
    """Lines of each function and method, nested ones too."""
    found = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    starts = ((node, min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])) for node in found)
    return [(node.end_lineno or start) - start + 1 for node, start in starts]


def main(checkout: Path) -> None:
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


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
