"""Every block of docs/tasks/tutorial.md runs, and the document shows what the commands print.

`python -m tests.e2e.test_tutorial --write` updates the output in the document.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.transcript import BLOCK, WIDTH, Shell, make_environment, run_document

TUTORIAL = Path(__file__).parents[2] / "docs/tasks/tutorial.md"


@contextmanager
def new_shell() -> Iterator[Shell]:
    """An empty directory, and an environment into which the tutorial may install its task."""
    # Not pytest's: so long a path would break lines where a user's does not.
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as environment:
        yield Shell(Path(directory), make_environment(Path(environment, "environment")))


def test_code_and_commands_fit_a_terminal() -> None:
    for language, _, body in BLOCK.findall(TUTORIAL.read_text(encoding="utf-8")):
        typed = [line for line in body.splitlines() if language == "python" or line.startswith("$ ")]
        assert max(map(len, typed), default=0) <= WIDTH, typed


@pytest.mark.slow
@pytest.mark.nightly(
    reason="a minute and a half; every change makes, checks and trains a new package, and runs the blocks of all pages"
)
@pytest.mark.minutes
def test_the_tutorial_shows_what_happens() -> None:
    with new_shell() as shell:
        run_document(TUTORIAL.read_text(encoding="utf-8"), shell)


def write() -> None:
    """Run the tutorial, and update its output."""
    with new_shell() as shell:
        text = run_document(TUTORIAL.read_text(encoding="utf-8"), shell, compare=False)
    TUTORIAL.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.e2e.test_tutorial --write")
    write()
