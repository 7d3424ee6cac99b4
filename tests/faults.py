"""Rows of docs/reliability.md: each belongs to a test, which makes the fault and checks what the row says of it.

A test has its row in `@pytest.mark.fault("F1", "…", made="…", seen="…", kept="…", code=2)`, and passes what the user
saw to the fixture `fault_row`, which fails the test if that is anything else. `python -m tests.faults` writes the page.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.environments import ROOT
from tinyzero_sdk.errors import TinyZeroError

PAGE = ROOT / "docs/reliability.md"
NUMBERED = [f"F{number}" for number in range(1, 22)]
"""The faults that every version must survive; further ones have a name of their own."""


@dataclass(frozen=True)
class Fault:
    """A fault, and what comes of it."""

    number: str
    fault: str
    made: str
    """How the test makes it."""

    seen: str
    """What the user sees, with … for what varies; empty for nothing."""

    kept: str
    code: int | str | None = None
    """Exit code of the command, or what it depends on; None = it goes on."""

    @property
    def pattern(self) -> str:
        return ".*".join(map(re.escape, self.seen.split("…")))


class Faults:
    """The rows of one test."""

    def __init__(self, rows: list[Fault]) -> None:
        self._rows = {row.number: row for row in rows}
        self.unchecked = set(self._rows)

    def check(self, seen: object, code: int | None = None, *, of: str | None = None) -> None:
        """Compare what the user saw, a text or the error that ends the command, with the row; `of` = its number."""
        row = self._rows[of or next(iter(self._rows))]
        code = seen.exit_code if isinstance(seen, TinyZeroError) else code
        text = " ".join(str(seen).split())
        assert re.search(row.pattern, text) if row.seen else not text, f"{row.number}: {text}"
        assert code == row.code or isinstance(row.code, str)
        self.unchecked.discard(row.number)


def find_rows() -> Iterator[tuple[Fault, Path, str]]:
    """Each row with its test's file and name."""
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        source = file.read_text(encoding="utf-8")
        if "mark.fault(" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            for mark in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.fault":
                    assert isinstance(node, ast.FunctionDef)
                    values: list[Any] = [ast.literal_eval(value) for value in mark.args]
                    named = {str(word.arg): ast.literal_eval(word.value) for word in mark.keywords}
                    yield Fault(*values, **named), file, node.name


def table() -> str:
    """The rows as a table."""

    def order(row: tuple[Fault, Path, str]) -> tuple[int, str, str]:
        number = row[0].number
        return (NUMBERED.index(number) if number in NUMBERED else len(NUMBERED), number, row[2])

    lines = [
        "| | fault, and how the test makes it | what the user sees | what is kept | exit code |",
        "|---|---|---|---|---|",
    ]
    for row, file, name in sorted(find_rows(), key=order):
        link = f"[{name.removeprefix('test_').replace('_', ' ')}](../{file.relative_to(ROOT).as_posix()})"
        seen = f"`{row.seen}`" if row.seen else "nothing"
        code = "goes on" if row.code is None else str(row.code)
        lines.append(f"| {row.number} | **{row.fault}**: {row.made} ({link}) | {seen} | {row.kept} | {code} |")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def with_table(page: str) -> str:
    """The page with the table of the tests in place of the one that it has."""
    return re.sub(r"\| \| fault, and.*?\n\n", lambda _: f"{table()}\n", page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
