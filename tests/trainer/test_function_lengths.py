"""No function of the trainer is longer than 80 lines; the longest are usually the command line and the loop."""

import ast
from pathlib import Path

import pytest

import tinyzero_trainer

LIMIT = 80


def function_lengths(folder: Path) -> list[tuple[int, str]]:
    """(lines, name) of every function below a folder, decorators and docstring included, the longest first."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                assert node.end_lineno is not None
                found.append((node.end_lineno - start + 1, f"{path.relative_to(folder)}:{start} {node.name}"))
    return sorted(found, reverse=True)


@pytest.mark.slow
def test_the_longest_function_of_the_trainer_stays_under_eighty_lines() -> None:
    found = function_lengths(Path(tinyzero_trainer.__file__).parent)
    assert len(found) > 200
    assert [f"{name}: {lines} lines" for lines, name in found if lines >= LIMIT] == []


def test_a_long_function_would_be_found(tmp_path: Path) -> None:
    body = "\n".join(f"    x{number} = {number}" for number in range(LIMIT))
    (tmp_path / "deep.py").write_text(f"class A:\n  @staticmethod\n  def long():\n{body}\n")
    assert function_lengths(tmp_path) == [(LIMIT + 2, "deep.py:2 long")]


if __name__ == "__main__":
    for lines, name in function_lengths(Path(tinyzero_trainer.__file__).parent)[:5]:
        print(lines, name)
