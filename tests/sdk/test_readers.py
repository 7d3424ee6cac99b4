"""Outputs of other tools. The files in `readers/` were written by the packages in their names (inspect_ai's .json is
cut down to what is read); verl's are written here, with the keys of its `_dump_generations`; folders by `datasets`.
"""

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tinyzero_sdk import load_task
from tinyzero_sdk.errors import DataError, SettingsError
from tinyzero_sdk.files import BadRow, read_rows
from tinyzero_sdk.readers import READERS, find_reader
from tinyzero_sdk.scoring import score_file

FILES = Path(__file__).parent / "readers"


def read(name: str, path: Path) -> tuple[list[dict[str, Any]], list[BadRow]]:
    """The rows and the bad rows that a reader finds."""
    blocks = list(find_reader(name, path).read(path))
    assert blocks[-1].progress == 1.0
    rows = [row for block in blocks for row in (block.rows if block.table is None else block.table.to_pylist())]
    assert len(rows) == sum(len(block.numbers) for block in blocks)
    return rows, [bad for block in blocks for bad in block.bad]


def verl_line(**changes: Any) -> str:
    return json.dumps(
        {"input": "Say 1.", "output": "<answer>1</answer>", "gts": "1", "score": 0.5, "step": 3, "acc": True} | changes
    )


def test_verl_rollouts_of_all_steps_come_in_the_order_of_the_steps(tmp_path: Path) -> None:
    (tmp_path / "10.jsonl").write_text(verl_line(step=10) + "\n")
    (tmp_path / "9.jsonl").write_text(f"{verl_line(step=9)}\n{verl_line(gts=None)}\n{verl_line()}\n")
    rows, bad = read("verl", tmp_path)
    assert rows[0] == {
        "prompt": "Say 1.",
        "completion": "<answer>1</answer>",
        "ground_truth": "1",
        "verl_score": 0.5,
        "step": 9,
        "acc": True,
    }
    assert [row["step"] for row in rows] == [9, 3, 10]
    assert [(row.number, row.problem[:22]) for row in bad] == [(2, "no ground truth in `gt")]
    numbers = [number for block in find_reader("verl", tmp_path).read(tmp_path) for number in block.numbers]
    assert numbers == [1, 3, 4]


def test_lm_eval_samples_count_once_though_each_filter_logs_them() -> None:
    rows, bad = read("lm-eval", FILES / "lm_eval-0.4.13.jsonl")
    assert bad == []
    assert [(row["completion"][-4:], row["ground_truth"], row["extra_info"]["index"]) for row in rows] == [
        ("# 42", "42", 0),
        ("# 41", "42", 0),
        ("## 7", "7", 1),
        ("## 8", "7", 1),
    ]
    assert rows[0]["prompt"] == "Question: What is 6*7?\nAnswer:"
    assert rows[0]["doc"]["question"] == "What is 6*7?"


def test_lm_eval_samples_of_likelihood_cannot_be_scored(tmp_path: Path) -> None:
    path = tmp_path / "samples_x.jsonl"
    path.write_text(json.dumps({"doc_id": 0, "target": "1", "resps": [[["-1.5", "False"]]], "filter": "none"}))
    _, bad = read("lm-eval", tmp_path)
    assert "those by likelihood" in bad[0].problem


@pytest.mark.parametrize("ending", ["eval", "json"])
def test_inspect_logs_give_a_row_for_each_choice(ending: str) -> None:
    rows, bad = read("inspect", FILES / f"inspect_ai-0.3.285.{ending}")
    assert bad == []
    found = sorted((row["extra_info"]["key"], row["epoch"], row["completion"], row["ground_truth"]) for row in rows)
    texts = [f"I think it is\n#### {n}" for n in (42, 42, 7, 8)]
    assert [(key, epoch, truth) for key, epoch, _, truth in found] == [
        ("a", 1, "42"),
        ("a", 2, "42"),
        ("b", 1, "7"),
        ("b", 2, "7"),
    ]
    assert sorted(text for _, _, text, _ in found) == sorted(texts)
    assert all(row["finished"] and row["token_count"] in (20, 21) for row in rows)
    assert json.loads(next(row for row in rows if row["extra_info"]["key"] == "a")["metadata"]) == {"level": 1}


def test_inspect_samples_without_output_are_bad_and_attachments_are_put_in(tmp_path: Path) -> None:
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
    rows, bad = read("inspect", tmp_path)
    assert [(row["completion"], row["finished"], row["ground_truth"]) for row in rows] == [
        ("<answer>1</answer>", False, "1"),
        ("hm", True, "1"),
    ]
    assert rows[0]["prompt"] == [{"role": "user", "content": "long"}]
    assert [row.number for row in bad] == [2, 3]
    assert "no network" in bad[0].problem


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"PK", b"\xff"])
@pytest.mark.parametrize("name", ["a.eval", "a.json"])
def test_other_files_are_no_logs_of_inspect(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match="no log of Inspect"):
        read("inspect", tmp_path / name)


def test_folder_of_save_to_disk_is_read_in_its_order(tmp_path: Path) -> None:
    rows = {"question": [f"q{n}" for n in range(2500)], "answer": [str(n) for n in range(2500)]}
    rows["response"] = [f"<answer>{n}</answer>" for n in range(2500)]
    made = datasets.Dataset.from_dict(rows)
    made.save_to_disk(tmp_path / "one", num_shards=2)
    datasets.DatasetDict({"train": made, "test": made}).save_to_disk(tmp_path / "two")
    for folder in (tmp_path / "one", tmp_path / "two" / "test"):
        found, bad = read("hf", folder)
        assert bad == []
        assert [(row["completion"], row["ground_truth"]) for row in found] == [
            (f"<answer>{n}</answer>", str(n)) for n in range(2500)
        ]
    with pytest.raises(DataError, match="splits train, test; name one"):
        read("hf", tmp_path / "two")


def test_folder_of_parquet_files_with_lists_of_completions(tmp_path: Path) -> None:
    for place, texts in enumerate([[["a", "b"], []], [["c"]]]):
        pq.write_table(
            pa.table({"generations": texts, "target": ["1", "2"][: len(texts)]}), tmp_path / f"{place}.parquet"
        )
    rows, _ = read("hf", tmp_path)
    assert [(row["completion"], row["ground_truth"]) for row in rows] == [("a", "1"), ("b", "1"), ("c", "1")]
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "9.parquet")
    with pytest.raises(DataError, match="has the columns text; expected one of completion"):
        read("hf", tmp_path)
    with pytest.raises(DataError, match="expects a folder"):
        read("hf", tmp_path / "9.parquet")
    with pytest.raises(DataError, match="has no file like"):
        read("hf", Path(shutil.os.mkdir(tmp_path / "empty") or tmp_path / "empty"))


@pytest.mark.parametrize("into", ["jsonl", "parquet"])
def test_outputs_of_others_are_scored_as_they_are(write_task: Callable[..., str], tmp_path: Path, into: str) -> None:
    code = "@hookimpl\ndef extract_answer(completion):\n    return completion.rpartition('####')[2].strip()\n"
    task = load_task(write_task(extract_answer=code))
    for name, file in (("lm-eval", "lm_eval-0.4.13.jsonl"), ("inspect", "inspect_ai-0.3.285.eval")):
        report = score_file(task, FILES / file, tmp_path / f"out.{into}", format=name)
        assert (report.rows, report.summary and report.summary.prompts) == (4, 2)
        assert {row["task"] for row in read_rows(tmp_path / f"out.{into}")} == {"say"}
        assert report.correct == (2 if name == "lm-eval" else 3)


def test_ground_truth_that_the_task_cannot_use_is_told(write_task: Callable[..., str], tmp_path: Path) -> None:
    code = "@hookimpl\ndef score(answer, ground_truth):\n    return float(ground_truth['target'] == 1)\n"
    task = load_task(write_task(score=code))
    (tmp_path / "1.jsonl").write_text(f"{verl_line()}\n{verl_line()}\n")
    with pytest.raises(DataError, match=r"task 'say' failed on all of the first 2 rows .*'1'.*TypeError"):
        score_file(task, tmp_path / "1.jsonl", tmp_path / "out.jsonl", format="verl")


def test_formats_have_names(tmp_path: Path) -> None:
    assert list(READERS) == ["rows", "verl", "lm-eval", "inspect", "hf"]
    with pytest.raises(SettingsError, match="did you mean lm-eval"):
        find_reader("lmeval", tmp_path)
    with pytest.raises(DataError, match="--format inspect"):
        find_reader(None, tmp_path / "a.eval")
    with pytest.raises(DataError, match="does not exist"):
        find_reader("verl", tmp_path / "none")
