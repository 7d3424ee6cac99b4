"""Logs of Inspect as outputs. Those in this folder are by inspect_ai; the .json is cut down to what is read."""

import json
import zipfile
from pathlib import Path

import pytest

from tests.sdk.rows import read_format
from tinyzero_sdk import load_task
from tinyzero_sdk.data.files import read_rows
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.scoring.score_file import score_file

FILES = Path(__file__).parent
INSPECT = {"id": 1, "target": "1", "output": {"choices": [{"message": {"content": "1"}}]}}


def test_logs_of_inspect_in_one_folder_keep_their_samples_apart(tmp_path):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps({"eval": {"task": name}, "samples": [INSPECT, INSPECT | {"epoch": 2}]}))
    rows, _ = read_format("inspect", tmp_path)
    assert [row["extra_info"]["key"] for row in rows] == ["a.json:1"] * 2 + ["b.json:1"] * 2


@pytest.mark.parametrize(
    "odd",
    [
        *({"output": {"choices": odd}} for odd in (["x"], 5, [{"message": None}], [{"message": {"content": ["x"]}}])),
        {"input": ["x"]},
        {"attachments": ["x"], "input": "attachment://x"},
    ],
)
def test_one_odd_sample_of_inspect_costs_itself_only(tmp_path, odd):
    log = {"eval": {"task": "t"}, "samples": [INSPECT, INSPECT | odd, "x", INSPECT]}
    (tmp_path / "a.json").write_text(json.dumps(log))
    rows, bad = read_format("inspect", tmp_path)
    assert [row["completion"] for row in rows] == ["1", "1"]
    assert [row.number for row in bad] == [2, 3]
    assert "is not a sample of Inspect" in bad[0].error
    assert "a str; expected a sample" in bad[1].error


@pytest.mark.parametrize("ending", ["eval", "json"])
def test_inspect_logs_give_a_row_for_each_choice(ending):
    rows, bad = read_format("inspect", FILES / f"inspect_ai-0.3.285.{ending}")
    assert bad == []
    found = sorted((row["extra_info"]["key"], row["epoch"], row["completion"], row["ground_truth"]) for row in rows)
    assert [(key.partition(":")[2], epoch, truth) for key, epoch, _, truth in found] == [
        ("a", 1, "42"), ("a", 2, "42"), ("b", 1, "7"), ("b", 2, "7"),
    ]  # fmt: skip
    assert {key.partition(":")[0] for key, *_ in found} == {f"inspect_ai-0.3.285.{ending}"}
    assert sorted(text for _, _, text, _ in found) == sorted(f"I think it is\n#### {n}" for n in (42, 42, 7, 8))
    assert all(row["finished"] and row["token_count"] in (20, 21) for row in rows)
    assert json.loads(next(row for row in rows if row["extra_info"]["key"].endswith(":a"))["metadata"]) == {"level": 1}


def test_inspect_samples_without_output_are_bad_and_attachments_are_put_in(tmp_path):
    good = {
        "id": 1,
        "epoch": 1,
        "input": [{"role": "user", "content": "attachment://x"}],
        "target": ["1"],
        "attachments": {"x": "long", "y": "<answer>1</answer>"},
        "output": {
            "choices": [
                {"message": {"content": "attachment://y"}, "stop_reason": "max_tokens"},
                {
                    "message": {"content": [{"type": "reasoning"}, {"type": "text", "text": "hm"}]},
                    "stop_reason": "stop",
                },
            ]
        },
    }
    failed = {"id": 2, "target": "1", "output": {"choices": []}, "error": {"message": "no network"}}
    with zipfile.ZipFile(tmp_path / "a.eval", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", "{}")
        for name, sample in {"1": json.dumps(good), "2": json.dumps(failed), "3": "{"}.items():
            archive.writestr(f"samples/{name}_epoch_1.json", sample)
    rows, bad = read_format("inspect", tmp_path)
    assert [(row["completion"], row["finished"], row["ground_truth"]) for row in rows] == [
        ("<answer>1</answer>", False, "1"),
        ("hm", True, "1"),
    ]
    assert rows[0]["prompt"] == [{"role": "user", "content": "long"}]
    assert [row.number for row in bad] == [2, 3]
    assert "no network" in bad[0].error


@pytest.mark.parametrize("content", [b"", b"{}", b"PK"])
@pytest.mark.parametrize("name", ["a.eval", "a.json"])
def test_other_files_are_no_logs_of_inspect(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match="not a log of Inspect"):
        read_format("inspect", tmp_path / name)


@pytest.mark.usefixtures("scored_in_process")
@pytest.mark.parametrize("into", ["jsonl", "parquet"])
def test_outputs_of_inspect_are_scored_as_they_are(tmp_path, into):
    task, output = load_task("gsm8k", options={"source": "synthetic"}), tmp_path / f"out.{into}"
    report = score_file(task, FILES / "inspect_ai-0.3.285.eval", output, format="inspect")
    assert (report.rows, report.correct, report.summary and report.summary.prompts) == (4, 3, 2)
    assert {row["task"] for row in read_rows(output)} == {"gsm8k"}
