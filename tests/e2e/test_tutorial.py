"""Every block of docs/tutorial.md is run, and its transcript is what the commands print.

`python -m tests.e2e.test_tutorial --write` puts what they print now into the document.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.transcript import WIDTH, Shell, blocks, make_environment, run_document

TUTORIAL = Path(__file__).parents[2] / "docs/tutorial.md"


@contextmanager
def new_shell() -> Iterator[Shell]:
    """An empty directory, and an environment into which the tutorial may install its task."""
    # Not pytest's: a path as long as those would break lines where a user's does not.
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as environment:
        yield Shell(Path(directory), make_environment(Path(environment, "environment")))


def test_what_is_to_be_typed_fits_a_terminal() -> None:
    for language, body in blocks(TUTORIAL.read_text(encoding="utf-8")):
        typed = [line for line in body.splitlines() if language == "python" or line.startswith("$ ")]
        assert max(map(len, typed), default=0) <= WIDTH, typed


@pytest.mark.slow
def test_the_tutorial_says_what_happens() -> None:
    with new_shell() as shell:
        run_document(TUTORIAL.read_text(encoding="utf-8"), shell)


def write() -> None:
    """Run the tutorial, and put what its commands print into it."""
    with new_shell() as shell:
        text = run_document(TUTORIAL.read_text(encoding="utf-8"), shell, compare=False)
    TUTORIAL.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.e2e.test_tutorial --write")
    write()
