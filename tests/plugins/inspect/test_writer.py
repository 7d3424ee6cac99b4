"""Scored completions as a log of Inspect: what its viewer needs is there, and the published package reads it."""

import json
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.environments import run_script
from tinyzero_inspect import export, read
from tinyzero_sdk import load_task
from tinyzero_sdk.data.rows import item_to_row
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.scoring.compare import compare_files
from tinyzero_sdk.scoring.score_file import score_file


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
    assert export(scored, target) == {target: 4}
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


@pytest.mark.usefixtures("scored_in_process")
@pytest.mark.parametrize(
    ("name", "ending", "log"),
    [("countdown", "parquet", "eval"), ("multiply", "jsonl", "json"), ("gsm8k", "jsonl", "eval")],
)
def test_scoring_a_log_gives_the_scores_and_problems_it_was_written_from(
    tmp_path: Path, name: str, ending: str, log: str
) -> None:
    task = load_task(name, options={"source": "synthetic"} if name == "gsm8k" else {})
    outputs, scored = tmp_path / "outputs.jsonl", tmp_path / f"scored.{ending}"
    items = [(index, item) for index, item in enumerate(task.dataset("test", 3)) for _ in range(2)]
    rows = [item_to_row(task, item, index=index, split="test") for index, item in items]
    for place, row in enumerate(rows):
        row["completion"] = task.solve(items[place][1]) if place % 3 else "no answer"
    outputs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first = score_file(task, outputs, scored)
    export(scored, tmp_path / f"it.{log}")
    back = score_file(task, tmp_path / f"it.{log}", tmp_path / "back.jsonl", format="inspect")
    assert (first.correct, first.rows, dict(first.reasons)) == (back.correct, back.rows, dict(back.reasons))
    report = compare_files([scored, tmp_path / "back.jsonl"])
    assert (report.problems, report.differing) == (3, {})
    assert report.comparisons[0].better + report.comparisons[0].worse == 0


def test_of_several_tasks_each_has_a_log(scored: Path) -> None:
    rows = [row(1, 0, correct=True), row(1, 0, correct=False) | {"task": "family/other"}]
    rows[1]["extra_info"]["difficulty"] = float("nan")  # which Parquet has, and JSON lacks
    pq.write_table(pa.Table.from_pylist(rows), scored := scored.with_suffix(".parquet"))
    written = export(scored, scored.with_name("both.eval"))
    assert {path.name: completions for path, completions in written.items()} == {
        "both-family-other.eval": 1,
        "both-toy.eval": 1,
    }
    (block, _) = read(scored.with_name("both-family-other.eval"))
    assert [(each["task"], each["extra_info"]["key"]) for each in block.rows()] == [("family/other", "k/1")]
    assert block.rows()[0]["extra_info"]["difficulty"] is None
    with pytest.raises(DataError, match=r"both-family-other\.eval already exists; choose another --output"):
        export(scored, scored.with_name("both.eval"), overwrite=False)


def test_what_has_no_score_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "outputs.jsonl"
    path.write_text('{"completion": "1"}\n')
    with pytest.raises(DataError, match=r"outputs\.jsonl:1: no score, correct, reason; mend or score the file first"):
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
