"""The tutorial's runner finds what a document shows wrongly, and ignores only what varies from run to run."""

import os

import pytest

from tests.e2e.transcript import HOME, Shell, TranscriptError, normalise, run_document


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


@pytest.mark.parametrize(
    "document",
    [
        console("$ echo 3 rows in 1.2 s", "3 rows in 9.9 s"),
        console("$ echo a", "a", "$ echo b >&2; exit 3", "b", rest=" exit=3"),
        console("$ echo a \\", "    b", "a b"),
        console("$ touch here; ls", "here", "$ pwd", HOME),
    ],
    ids=["output that varies", "expected failure", "continued command", "one directory"],
)
def test_a_document_that_holds_stays_as_it_is(shell, document):
    assert run_document(document, shell, compare=False) == run_document(document, shell) == document


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("6 passed in 0.70s", "6 passed in 12.01s"),
        ("12 rows scored in 0.1 s, written to x", "12 rows scored in 1.0 s, written to x"),
        ("kept  never-raises   171 tried    0.7 s", "kept  never-raises 1,000 tried   12.7 s"),
        (
            "185,804 completions tried in 5.0 s (37,140/s): nothing found",
            "804 completions tried in 10.1 s (80/s): nothing found",
        ),
        ("my-task 0.1.0", "my-task 0.2.0"),
        ("runs/coins-2026-11-21-030602", "runs/coins-2027-01-01-000000"),
        (
            "step 1/2  0:05 left  reward 0.008  accuracy 0.8 %  length 85  4,914 tokens/s",
            "step 1/2  1:15 left  reward 0.100  accuracy 10.0 %  length 9  400 tokens/s",
        ),
        ("held-out accuracy before training: 0.0 %", "held-out accuracy before training: 13.0 %"),
        ("evaluating: 0/9 problems", "evaluating: 0/9 problems\nevaluating: 8/9 problems"),
        ("a  \n\n", "a"),
    ],
)
def test_what_varies_is_ignored(one, other):
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("6 passed in 0.70s", "5 passed in 0.70s"),
        ("ok 3 · wrong 2", "ok 2 · wrong 3"),
        ("accuracy 40.0% · mean score 0.4", "accuracy 50.0% · mean score 0.4"),
        ("step 1/2  reward 1", "step 2/2  reward 1"),
        ("a\na", "a"),
        ("kept  never-raises  171 tried", "broken  never-raises  171 tried"),
        ("scores 1 (ok)", "scores 0 (wrong)"),
    ],
)
def test_what_matters_is_not(one, other):
    assert normalise(one) != normalise(other)
