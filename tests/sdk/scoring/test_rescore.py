"""Scoring again: what counts as a change, and which files can be compared."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tinyzero_sdk import load_task
from tinyzero_sdk.data.files import read_rows
from tinyzero_sdk.errors import DataError, VersionMismatchError
from tinyzero_sdk.scoring.provenance import RowSource, provenance_of
from tinyzero_sdk.scoring.rescore import rescore_file, rescoring_check
from tinyzero_sdk.scoring.score_file import ScoringOptions, score_file

pytestmark = pytest.mark.usefixtures("scored_in_process")

LENIENT = """
@hookimpl
def extract_answer(completion):
    return last_tagged(completion) or (completion if completion.isdigit() else None)
"""
PARTIAL = """
@hookimpl
def score(answer, ground_truth):
    return 1.0 if answer == str(ground_truth) else 0.1
"""
TEXTS = ["<answer>1</answer>", "<answer>2</answer>", "1", "3", "nothing"]


@pytest.fixture
def task(write_task):
    return load_task(write_task())


def scored(task, path, **columns):
    """A scored file."""
    rows = [{"completion": text, "ground_truth": 1} | columns for text in TEXTS]
    pq.write_table(pa.Table.from_pylist(rows), path.with_name("outputs.parquet"))
    score_file(task, path.with_name("outputs.parquet"), path)
    return path


def changes(report):
    return [
        (change.number, change.old.reason, change.new.reason, change.old.answer, change.new.answer, change.is_flip)
        for change in report.changes
    ]


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_changes_are_listed_with_both_sides(task, write_task, tmp_path, ending):
    old = scored(task, tmp_path / f"old.{ending}")
    report = rescore_file(load_task(write_task(extract_answer=LENIENT)), old, tmp_path / "new.parquet")
    assert changes(report) == [(3, "no_answer", "ok", None, "1", True), (4, "no_answer", "wrong", None, "3", False)]
    assert (report.changed, report.flipped, report.other_answer) == (2, 1, 0)
    assert report.reasons == {("no_answer", "ok"): 1, ("no_answer", "wrong"): 1}
    assert (report.old_accuracy, report.scored.accuracy) == (0.2, 0.4)
    assert [provenance.task_version for provenance in report.before] == [task.version]
    assert report.changes[0].completion_end == "1"
    new = list(read_rows(tmp_path / "new.parquet"))
    pairs = [(row["old_reason"], row["reason"]) for row in new[1:4]]
    assert pairs == [("wrong", "wrong"), ("no_answer", "ok"), ("no_answer", "wrong")]
    assert {row["old_task_version"] for row in new} == {task.version}
    again = rescore_file(load_task(write_task(extract_answer=LENIENT)), tmp_path / "new.parquet", tmp_path / "x.jsonl")
    assert again.changed == 0
    assert list(next(read_rows(tmp_path / "x.jsonl"))).count("old_score") == 1


def test_another_score_or_answer_is_no_flip(task, write_task, tmp_path):
    old = scored(task, tmp_path / "old.parquet")
    report = rescore_file(load_task(write_task(score=PARTIAL)), old)
    assert [(change.number, change.old.score, change.new.score) for change in report.changes] == [(2, 0.0, 0.1)]
    assert (report.changed, report.flipped) == (1, 0)
    shout = "@hookimpl\ndef extract_answer(completion):\n    return 'x' if last_tagged(completion) == '2' else None\n"
    report = rescore_file(load_task(write_task(extract_answer=shout)), old)
    assert changes(report) == [(1, "ok", "no_answer", "1", None, True)]
    assert report.other_answer == 1


def test_only_scored_files_can_be_scored_again(task, tmp_path):
    scored(task, tmp_path / "old.parquet")
    with pytest.raises(VersionMismatchError, match="does not say what scored it"):
        rescore_file(task, tmp_path / "outputs.parquet")
    with pytest.raises(DataError, match="has no score, correct, reason, answer"):
        rescore_file(task, tmp_path / "outputs.parquet", options=ScoringOptions(allow_version_mismatch=True))
    (tmp_path / "none.jsonl").write_text('{"completion": "a", "ground_truth": 1}\n')
    with pytest.raises(DataError, match="has no score, correct, reason, answer"):
        rescore_file(task, tmp_path / "none.jsonl", options=ScoringOptions(allow_version_mismatch=True))
    with pytest.raises(DataError, match="is the input itself"):
        rescore_file(task, tmp_path / "old.parquet", tmp_path / "old.parquet")


@pytest.mark.parametrize("score", [None, 10**400], ids=["none", "huge"])
def test_rows_without_a_score_are_reported(task, tmp_path, score):
    row = {"completion": TEXTS[0], "ground_truth": 1, "score": score, "correct": True, "reason": "ok", "answer": "1"}
    (tmp_path / "old.jsonl").write_text(json.dumps(row))
    report = rescore_file(task, tmp_path / "old.jsonl", options=ScoringOptions(allow_version_mismatch=True))
    assert [row.number for row in report.scored.bad] == [1]
    assert (report.changed, report.compared, report.old_accuracy, report.new_accuracy) == (0, 0, None, None)


def test_rare_changes_are_listed_among_very_many(task, write_task, tmp_path, monkeypatch):
    monkeypatch.setattr("tinyzero_sdk.scoring.rescore.MAX_LISTED", 1)
    old = scored(task, tmp_path / "old.parquet")
    report = rescore_file(load_task(write_task(extract_answer=LENIENT)), old)
    assert [change.reasons for change in report.changes] == [("no_answer", "ok"), ("no_answer", "wrong")]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, ""),
        ({"task_version": "0"}, ""),  # versions are what is compared
        ({"task": "shout"}, "scored with task shout, and this is say"),
        ({"task_options": '{"a": 1}'}, 'scored with task options {"a": 1}, and this is {}'),
        ({"task_wrappers": '["f(a=1)"]'}, 'scored with task wrappers ["f(a=1)"], and this is [];'),
    ],
)
def test_like_is_compared_with_like(task, changes, problem):
    provenance = provenance_of(task)._replace(**changes)
    found = rescoring_check(task)(RowSource("say", None, provenance)) or ""
    assert problem in found
    assert bool(problem) == ("--allow-version-mismatch" in found)


def test_one_side_is_one_version_and_its_problems(task):
    now, old = provenance_of(task), provenance_of(task)._replace(task_version="1")
    check = rescoring_check(task)
    assert check(RowSource("say", "1", old)) is None
    assert check(RowSource("say", now.task_version, old)) is None
    assert "generated by say 0" in (check(RowSource("say", "0", old)) or "")
    assert f"by say {now.task_version} and by 1" in (check(RowSource("say", None, now)) or "")
    assert "does not say" in (rescoring_check(task)(RowSource("say", "1", None)) or "")
