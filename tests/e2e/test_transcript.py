"""The runner of the tutorial finds what a document shows wrongly."""

import os

import pytest

from tests.e2e.transcript import Shell, TranscriptError, run_document


@pytest.fixture
def shell(tmp_path):
    return Shell(tmp_path, {"PATH": os.environ["PATH"]})


def console(*lines: str, rest: str = "") -> str:
    return "\n".join([f"```console{rest}", *lines, "```\n"])


def test_another_output_is_found_and_written(shell):
    with pytest.raises(TranscriptError, match=r"(?s)echo new.*-old.*\+new"):
        run_document(console("$ echo new", "old"), shell)
    document = "before\n" + console("$ echo new", "old", "$ echo same", "same", "") + "after\n"
    written = run_document(document, shell, compare=False)
    assert written == "before\n" + console("$ echo new", "new", "$ echo same", "same") + "after\n"
    assert run_document(written, shell) == written


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (console("$ exit 1"), "exited with 1, not 0"),
        (console("$ true", rest=" exit=1"), "exited with 0, not 1"),
        (console("$ false", "$ false", rest=" exit=1"), "exited with 1, not 0"),
        (console("$ true", rest=" exit=one"), "not understood"),
        (console("output of nothing", "$ true"), "does not begin"),
        ("```bash\ntrue\n```\n", "unknown type"),
        ("```\ntrue\n```\n", "unknown type"),
        ("```python\nprint(1)\n```\n", "does not begin with `# FILE`"),
        ("```python\n# a.py\nx = 1\n```\n```python\n# a.py, in place of y\ny = 1\n```\n", "defines no y"),
        ("```python\n# nowhere/a.py\n```\n", "does not exist"),
    ],
)
def test_a_block_that_is_wrong_is_found(shell, document, message):
    with pytest.raises(TranscriptError, match=message):
        run_document(document, shell)
