"""The machine behind the tutorial finds what a document says wrongly, and overlooks only what varies."""

import os
from pathlib import Path

import pytest

from tests.e2e.transcript import HOME, Shell, TranscriptError, normalise, run_document


@pytest.fixture
def shell(tmp_path):
    return Shell(tmp_path, {"PATH": os.environ["PATH"]})


def console(*lines: str, rest: str = "") -> str:
    return "\n".join([f"```console{rest}", *lines, "```\n"])


@pytest.mark.slow
def test_files_are_written_added_to_and_changed_in_place(shell):
    document = """
```python
# a.py
import functools

ONE = 1


@functools.cache
def two():
    return 2


print(ONE + two())
```
```python
# a.py, at the end
print("end")
```
```console
$ cat a.py | wc -l
15
$ python3 a.py
3
end
```
```python
# a.py, in place of two
def two():
    return 20
```
```python
# a.py, in place of ONE
ONE = 10
```
Save as `b.json`:
```json
{}
```
```console
$ python3 a.py; cat b.json
30
end
{}
```
"""
    assert run_document(document, shell) == document


def test_another_output_is_found_and_written(shell):
    with pytest.raises(TranscriptError, match=r"(?s)echo new.*-old.*\+new"):
        run_document(console("$ echo new", "old"), shell)
    document = "before\n" + console("$ echo new", "old", "$ echo same", "same", "") + "after\n"
    written = run_document(document, shell, compare=False)
    assert written == "before\n" + console("$ echo new", "new", "$ echo same", "same") + "after\n"
    assert run_document(written, shell) == written


def test_an_output_that_differs_in_what_varies_stays(shell):
    document = console("$ echo 3 rows in 1.2 s", "3 rows in 9.9 s")
    assert run_document(document, shell, compare=False) == document


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (console("$ exit 1"), "exited with 1, not 0"),
        (console("$ true", rest=" exit=1"), "exited with 0, not 1"),
        (console("$ false", "$ false", rest=" exit=1"), "exited with 1, not 0"),
        (console("$ true", rest=" exit=one"), "not understood"),
        (console("output of nothing", "$ true"), "does not begin"),
        ("```bash\ntrue\n```\n", "no known kind"),
        ("```\ntrue\n```\n", "no known kind"),
        ("```python\nprint(1)\n```\n", "does not begin with `# FILE`"),
        ("```python\n# a.py\nx = 1\n```\n```python\n# a.py, in place of y\ny = 1\n```\n", "defines no y"),
        ("```python\n# nowhere/a.py\n```\n", "does not exist"),
    ],
)
def test_a_block_that_does_not_hold_is_found(shell, document, said):
    with pytest.raises(TranscriptError, match=said):
        run_document(document, shell)


def test_a_failure_can_be_expected(shell):
    document = console("$ echo a", "a", "$ echo b >&2; exit 3", "b", rest=" exit=3")
    assert run_document(document, shell) == document


def test_a_command_may_go_on_in_the_next_line(shell):
    document = console("$ echo a \\", "    b", "a b")
    assert run_document(document, shell) == document


def test_commands_run_in_one_directory_that_has_another_name(shell):
    document = console("$ touch here; ls", "here", "$ pwd", HOME)
    assert run_document(document, shell) == document
    assert Path(shell.directory, "here").exists()


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
def test_what_varies_is_overlooked(one, other):
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
def test_what_counts_is_not(one, other):
    assert normalise(one) != normalise(other)
