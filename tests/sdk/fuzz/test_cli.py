"""`tinyzero fuzz` as a user sees it: what it prints, what it keeps, how it ends."""

import json
import shlex

import pytest
from typer.testing import CliRunner

from tests.sdk.fuzz.test_fuzz import ORACLE, SOLVE, scorer
from tinyzero_sdk.cli.app import build_app
from tinyzero_sdk.console import plural
from tinyzero_sdk.errors import DataError, SettingsError
from tinyzero_sdk.testing.cases import Case, add_cases, read_cases, write_cases

HOLE = scorer("str(ground_truth) in answer")


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(build_app(), ["fuzz", *map(str, words)])


@pytest.mark.slow
def test_a_finding_is_shown_kept_once_and_replayed(run, write_task, tmp_path):
    task = write_task(solve=SOLVE, oracle=ORACLE, score=HOLE)
    cases = tmp_path / "say.cases.jsonl"
    mine = Case("mine", 1, False, "by hand")
    write_cases(cases, [mine])
    for count in (1, 0):
        done = run(task, "--time", 20, "--workers", 1, "--first")
        assert done.exit_code == 1
        assert "fully rewarded, though wrong" in done.stdout
        assert f"{plural(count, 'new case')} in say.cases.jsonl" in done.stdout
        kept = read_cases(cases)
        assert kept[0] == mine
        assert len(kept) == 2
    report = json.loads(run(task, "--time", 20, "--workers", 1, "--first", "--json").stdout)
    assert (report["tried"] > 0, len(report["findings"])) == (True, 1)
    replay = next(line for line in done.stdout.splitlines() if "--replay" in line)
    words = shlex.split(replay.partition("replay")[2])
    assert words[:3] == ["tinyzero", "check", "./say.py"]
    checked = CliRunner().invoke(build_app(), words[1:])
    assert checked.exit_code == 1
    assert "labelled-cases" in checked.stdout


@pytest.mark.slow
def test_a_clean_task_ends_with_zero_and_leaves_no_file(run, write_task, tmp_path):
    done = run(write_task(solve=SOLVE, oracle=ORACLE), "--time", 0.2, "--workers", 1)
    assert (done.exit_code, "nothing found" in done.stdout) == (0, True)
    assert not (tmp_path / "say.cases.jsonl").exists()


@pytest.mark.slow
def test_what_the_oracle_does_not_know_is_no_case_and_is_replayed_without_a_label(run, write_task, tmp_path):
    task = write_task(solve=SOLVE, oracle=None, score=scorer("1 / ('*' not in answer) and answer == str(ground_truth)"))
    done = run(task, "--time", 20, "--workers", 1, "--first")
    assert done.exit_code == 1
    assert "0 new cases in say.cases.jsonl; 1 without a label" in done.stdout
    assert not (tmp_path / "say.cases.jsonl").exists()
    replay = next(line for line in done.stdout.splitlines() if "--replay" in line)
    assert '"correct"' not in replay
    words = shlex.split(replay.partition("replay")[2])
    checked = CliRunner().invoke(build_app(), words[1:])
    assert checked.exit_code == 1
    assert "never-raises" in checked.stdout
    words[words.index("--only") + 1] = "labelled-cases"
    refused = CliRunner().invoke(build_app(), words[1:])
    assert isinstance(refused.exception, SettingsError)
    assert '"correct"' in str(refused.exception)


def test_a_file_that_holds_no_cases_is_refused_before_the_search(run, write_task, tmp_path):
    (tmp_path / "cases.jsonl").write_text("nonsense\n")
    done = run(write_task(), "--cases", tmp_path / "cases.jsonl", "--time", 60)
    assert isinstance(done.exception, DataError)
    assert (tmp_path / "cases.jsonl").read_text() == "nonsense\n"


def test_cases_are_added_once(tmp_path):
    path = tmp_path / "cases.jsonl"
    one, other = Case("1", {"a": 1, "b": 2}, True), Case("1", {"a": 2, "b": 2}, True)
    assert add_cases(path, [one, one, other]) == 2
    assert add_cases(path, [Case("1", {"b": 2, "a": 1}, False, "again")]) == 0
    assert read_cases(path) == [one, other]
