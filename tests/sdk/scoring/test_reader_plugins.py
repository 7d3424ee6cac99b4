"""Formats of outputs that plugins add: a distribution with an entry point, and no file of the SDK changed."""

from importlib.metadata import EntryPoints

import pytest

from tests.environments import ROOT
from tinyzero_sdk.data.files import read_rows
from tinyzero_sdk.scoring import readers

pytestmark = pytest.mark.usefixtures("scored_in_process")

GUIDE = (ROOT / "docs/evaluation/scoring.md").read_text(encoding="utf-8")
CODE = f"""
{GUIDE.partition("# my_tsv.py")[2].partition("```")[0]}

def export(source, target, overwrite):
    target.write_text(f"{{source.name}} {{overwrite}}")
    return {{target: 2}}


BOTH = Reader(read, export=export)
"""


def test_an_installed_format_is_read_and_written(install, run, write_task, tmp_path):
    install("tz-tsv", modules={"tz_tsv": CODE}, readers={"tsv": "tz_tsv:BOTH", "once": "tz_tsv:READER"})
    source, output = tmp_path / "said.txt", tmp_path / "scored.jsonl"
    source.write_text("1\t<answer>1</answer>\n1\t<answer>2</answer>\n")
    assert run("score", source, "--format", "tsv", "--task", write_task(), "--output", output)[0] == 0
    assert [row["correct"] for row in read_rows(output)] == [True, False]
    log = tmp_path / "log.txt"
    done = run("export", output, "--output", log, "--format", "tsv", "--overwrite")
    assert (done[0], done[1]) == (0, f"2 completions written to {log}\n")
    assert log.read_text() == "scored.jsonl True"
    refused = run("export", output, "--output", log, "--format", "once")
    assert refused == (2, "", "error: the format 'once' can be read, but not written\n")


@pytest.mark.parametrize(
    ("code", "requires", "message"),
    [
        ("READER = 1 / 0", (), "the format 'tsv' of tz-tsv fails: ZeroDivisionError: division by zero (/"),
        ("READER = print", (), "the format 'tsv' of tz-tsv is a builtin_function_or_method; expected a Reader\n"),
        ("", (), "the format 'tsv' of tz-tsv fails: AttributeError: module 'tz_tsv' has no attribute 'READER'"),
        (CODE, ["tinyzero-sdk>=99"], "tz-tsv 1.0 needs tinyzero-sdk>=99, "),
    ],
)
def test_a_broken_format_costs_one_line(install, run, write_task, tmp_path, code, requires, message):
    install("tz-tsv", modules={"tz_tsv": code}, readers={"tsv": "tz_tsv:READER"}, requires=requires)
    code, out, error = run("score", tmp_path, "--format", "tsv", "--task", write_task())
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert error.startswith(f"error: {message}")


def test_a_format_that_is_not_installed_says_what_to_install(monkeypatch, run, write_task, tmp_path):
    monkeypatch.setattr(readers, "entry_points", lambda group: EntryPoints())
    message = "error: the format 'inspect' needs a plugin: pip install tinyzero-inspect\n"
    assert run("score", tmp_path, "--format", "inspect", "--task", write_task()) == (2, "", message)
    assert run("export", tmp_path, "--output", tmp_path / "a.eval") == (2, "", message)
    unknown = run("score", tmp_path, "--format", "inspct", "--task", write_task())[2]
    known = "known: rows, verl, lm-eval, hf, inspect"
    assert unknown == f"error: no format 'inspct'; did you mean inspect? {known}\n"
