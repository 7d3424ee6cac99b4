"""`tinyzero runs` lists, explains and deletes runs."""

import json
from pathlib import Path

import pytest

from tests.trainer.checkpoint.test_run_status import make_run
from tests.trainer.configurations import call


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    make_run(Path("runs/countdown-2026-11-23-114711"), steps=9, checkpoints=(4, 8))
    make_run(Path("runs/second"), steps=10, checkpoints=(10,))
    return tmp_path / "runs"


def test_all_are_listed_with_the_commands_of_the_stopped_ones(capsys, runs) -> None:
    code, out, err = call(capsys, "runs")
    assert (code, err) == (0, "")
    assert all(len(line) <= 80 for line in out.splitlines() if not line.startswith("resume"))
    lines = {tuple(line.split()) for line in out.splitlines()}
    assert ("runs/second", "finished", "10/10", "10.0%", "->", "18.0%") in {line[:6] for line in lines}
    assert "resume: tinyzero train --output runs/countdown-2026-11-23-114711 --resume" in out
    assert "2 runs, " in out
    code, out, _ = call(capsys, "runs", str(runs), "runs", "--json")
    assert {(run["path"], run["state"]) for run in json.loads(out)} == {
        ("runs/second", "finished"),
        ("runs/countdown-2026-11-23-114711", "stopped"),
    }
    (runs / "nothing").mkdir()
    assert "no runs below runs/nothing" in call(capsys, "runs", "runs/nothing")[2]


def test_one_is_explained(capsys, runs) -> None:
    _, out, _ = call(capsys, "runs", "runs/countdown-2026-11-23-114711")
    rows = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert rows["accuracy"] == "countdown 10.0% -> 18.0%"
    assert rows["checkpoints"] == "of step 4, 8"
    assert rows["prune"] == "tinyzero runs --prune runs/countdown-2026-11-23-114711"
    assert rows["delete"] == "tinyzero runs --delete runs/countdown-2026-11-23-114711"


def test_an_alarm_of_the_audit_is_seen(capsys, runs) -> None:
    found = {"audit/false_positive_rate": 0.04, "audit/false_positive_rate/low": 0.03, "audit/alarms": 1.0}
    with (runs / "second/metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 11, **found}) + "\n")
    assert "finished, audit alarm" in call(capsys, "runs")[1]
    rows = dict(line.split(maxsplit=1) for line in call(capsys, "runs", "runs/second")[1].splitlines())
    assert rows["audit"] == "4.0% of what was rewarded is wrong, 1 alarm"
    json_row = json.loads(call(capsys, "runs", "runs/second", "--json")[1])[0]
    assert (json_row["false_positive_rate"], json_row["alarms"]) == ({"": 0.04}, 1)


def test_a_damaged_run_says_why_and_an_aborted_one_how_to_start_it_again(capsys, runs) -> None:
    make_run(runs / "aborted")
    (runs / "second/config.toml").write_text("x = [")
    (runs / "second/metrics.jsonl").write_text('{"step": 4, "val-core/countdown/acc/mean@1": NaN}\n')
    fault = "runs/second/config.toml is not valid TOML: Invalid value (at end of document)"
    _, out, _ = call(capsys, "runs")
    assert f"\nunreadable: {fault}\n" in out
    assert "resume: tinyzero train --output runs/aborted" not in out
    assert f"state        unreadable: {fault}\n" in call(capsys, "runs", "runs/second")[1]
    command = "tinyzero train --output runs/aborted --resume"
    assert f"resume       {command}  # from the start\n" in call(capsys, "runs", "runs/aborted")[1]
    assert "NaN" not in call(capsys, "runs", "--json")[1]


def test_nothing_is_deleted_without_a_yes_and_only_runs_that_are_named(capsys, runs) -> None:
    stopped = "runs/countdown-2026-11-23-114711"
    assert "--delete asks first, which needs a terminal" in call(capsys, "runs", "--delete", stopped)[2]
    assert "--delete needs the runs themselves" in call(capsys, "runs", "--delete", "--yes", "runs")[2]
    assert "--prune needs the runs themselves" in call(capsys, "runs", "--prune", "--yes")[2]
    assert "--send needs the runs themselves" in call(capsys, "runs", "--send")[2]
    assert len(list(runs.iterdir())) == 2
    code, out, _ = call(capsys, "runs", "--prune", "--yes", stopped)
    assert (code, out.split()[-1]) == (0, "freed")
    assert [path.name for path in Path(stopped, "checkpoints").iterdir()] == ["step_8"]
    assert call(capsys, "runs", "--delete", "--yes", f"./{stopped}/", stopped) == (0, f"{stopped}: deleted\n", "")
    assert [path.name for path in runs.iterdir()] == ["second"]
