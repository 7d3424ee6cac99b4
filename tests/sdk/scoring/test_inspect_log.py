"""Scored completions as a log of Inspect: what its viewer needs is there, and the published package reads it."""

import json
import zipfile
from pathlib import Path

import pytest

from tests.environments import run_script
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.scoring.inspect_log import export
from tinyzero_sdk.scoring.readers import inspect_logs


def row(problem: int, sample: int, *, correct: bool) -> dict:
    return {
        "prompt": [{"role": "user", "content": f"problem {problem}"}],
        "reward_model": {"ground_truth": {"target": problem}},
        "extra_info": {"key": f"k/{problem}", "difficulty": float(problem)},
        "completion": f"<answer>{problem}-{sample}</answer>",
        "token_count": 10 + sample,
        "finished": sample == 0,
        "sampling": {"model": "m", "temperature": 0.5, "task_options": {"numbers": [3]}},
        "score": 1.0 if correct else 0.1,
        "parts": {"format": 0.1},
        "correct": correct,
        "reason": "ok" if correct else "wrong",
        "answer": f"{problem}-{sample}",
        "task": "toy",
        "task_version": "1.0",
    }


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    rows = [row(1, 0, correct=True), row(1, 1, correct=True), row(2, 0, correct=False), row(2, 1, correct=True)]
    path = tmp_path / "scored.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def test_a_log_has_the_members_that_a_viewer_loads(scored: Path) -> None:
    target = scored.with_name("toy.eval")
    assert export(scored, target) == 4
    with zipfile.ZipFile(target) as archive:
        names = archive.namelist()
        contents = {name: json.loads(archive.read(name)) for name in names}
    assert names == [
        *(f"samples/{problem}_epoch_{epoch}.json" for problem in (1, 2) for epoch in (1, 2)),
        *("_journal/start.json", "summaries.json", "header.json"),
    ]
    header = contents["header.json"]
    assert (header["version"], header["status"]) == (2, "success")
    assert {"eval_id", "run_id", "task_id", "created", "task", "dataset", "model", "config"} <= header["eval"].keys()
    assert header["results"]["total_samples"] == 4
    assert {"id", "epoch", "input", "target", "scores", "completed"} <= contents["summaries.json"][0].keys()
    whole = scored.with_name("toy.json")
    export(scored, whole)
    log = json.loads(whole.read_text())
    assert {name: log[name] for name in header} == header
    assert [sample["id"] for sample in log["samples"]] == [1, 1, 2, 2]


def test_scoring_reads_back_what_was_written(scored: Path) -> None:
    target = scored.with_name("toy.eval")
    export(scored, target)
    rows = [row for block in inspect_logs.read(target) for row in block.rows]
    assert [each["completion"] for each in rows] == [
        f"<answer>{problem}-{sample}</answer>" for problem in (1, 2) for sample in (0, 1)
    ]
    assert [(each["epoch"], each["token_count"], each["finished"]) for each in rows[:2]] == [
        (1, 10, True),
        (2, 11, False),
    ]
    assert rows[0]["prompt"] == [{"role": "user", "content": "problem 1"}]
    assert json.loads(rows[0]["ground_truth"]) == {"target": 1}


def test_what_has_no_score_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "outputs.jsonl"
    path.write_text('{"completion": "1"}\n')
    with pytest.raises(DataError, match=r"outputs\.jsonl:1 has no score; score the file first"):
        export(path, tmp_path / "toy.eval")
    with pytest.raises(DataError, match=r"expected a name that ends in .eval or .json"):
        export(path, tmp_path / "toy.csv")
    assert [file.name for file in tmp_path.iterdir()] == ["outputs.jsonl"]


@pytest.mark.nightly(reason="installs Inspect; the fast tests check what it requires of a log")
@pytest.mark.parametrize("ending", ["eval", "json"])
def test_the_published_inspect_reads_it(scored: Path, ending: str) -> None:
    target = scored.with_name(f"toy.{ending}")
    export(scored, target)
    found = run_script("inspect", Path(__file__).with_name("read_inspect_log.py"), str(target), cwd=scored.parent)
    pairs = [[1, 1], [1, 2], [2, 1], [2, 2]]
    assert found == {
        "header": ["success", "toy", "m", 2],
        "temperature": 0.5,
        "samples": pairs,
        "summaries": [[*pair, value] for pair, value in zip(pairs, "CCIC", strict=True)],
        "metrics": {
            "correct": {"accuracy": 0.75, "stderr": 0.25},
            "score": {"mean": 0.775, "stderr": 0.225},
        },
        "last": {
            "input": "problem 2",
            "target": '{"target": 2}',
            "completion": "<answer>2-1</answer>",
            "stop": "max_tokens",
            "tokens": 11,
            "answer": "2-1",
            "reason": "ok",
            "score": 1.0,
            "parts": {"format": 0.1},
            "key": "k/2",
        },
    }
