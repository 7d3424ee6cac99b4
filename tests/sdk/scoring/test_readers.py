"""Outputs of other tools. The file in `readers/` was written by the package in its name; verl's are written here, with
the keys of its `_dump_generations`; folders by `datasets`.
"""

import json
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.sdk.rows import read_format
from tinyzero_sdk import load_task
from tinyzero_sdk.data.files import read_rows
from tinyzero_sdk.errors import DataError, SettingsError
from tinyzero_sdk.scoring.provenance import Provenance
from tinyzero_sdk.scoring.readers import READERS, find_reader
from tinyzero_sdk.scoring.score_file import score_file

pytestmark = pytest.mark.usefixtures("scored_in_process")

FILES = Path(__file__).parent / "readers"


def verl_line(**changes):
    return json.dumps(
        {"input": "Say 1.", "output": "<answer>1</answer>", "gts": "1", "score": 0.5, "step": 3, "acc": True} | changes
    )


def test_verl_rollouts_of_all_steps_come_in_the_order_of_the_steps(tmp_path):
    (tmp_path / "10.jsonl").write_text(verl_line(step=10) + "\n")
    (tmp_path / "9.jsonl").write_text(f"{verl_line(step=9)}\n{verl_line(gts=None)}\n{verl_line()}\n")
    rows, bad = read_format("verl", tmp_path)
    ours = {"prompt": "Say 1.", "completion": "<answer>1</answer>", "ground_truth": "1"}
    assert rows[0] == ours | {"verl_score": 0.5, "step": 9, "acc": True}
    assert [row["step"] for row in rows] == [9, 3, 10]
    assert [(row.number, row.error[:22]) for row in bad] == [(2, "no ground truth in `gt")]
    numbers = [number for block in find_reader("verl", tmp_path).read(tmp_path) for number in block.numbers]
    assert numbers == [1, 3, 4]


def test_lm_eval_samples_count_once_though_each_filter_logs_them():
    rows, bad = read_format("lm-eval", FILES / "lm_eval-0.4.13.jsonl")
    assert bad == []
    found = [(row["completion"][-4:], row["ground_truth"], row["extra_info"]["index"]) for row in rows]
    assert found == [("# 42", "42", 0), ("# 41", "42", 0), ("## 7", "7", 1), ("## 8", "7", 1)]
    assert rows[0]["prompt"] == "Question: What is 6*7?\nAnswer:"
    assert rows[0]["doc"]["question"] == "What is 6*7?"


def test_columns_of_verl_that_are_ours_too_are_kept_under_another_name(write_task, tmp_path):
    names = ["prompt", "completion", "ground_truth", "score", "correct", "reason", "answer", *Provenance._fields]
    source, output = tmp_path / "1.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(verl_line(**{name: "theirs"}) + "\n" for name in names))
    score_file(load_task(write_task()), source, output, format="verl")
    for name, row in zip(names, read_rows(output), strict=True):
        assert row[f"verl_{name}"] == "theirs"
        assert row[name] != "theirs", name


LM_EVAL = {"doc_id": 0, "target": "1", "resps": [["1"]], "filter": "none"}


def test_tasks_of_lm_eval_in_one_folder_have_filters_and_keys_of_their_own(tmp_path):
    for task, names in {"gsm8k": ("strict", "flexible"), "svamp": ("none",), "mixed": ("a", "none")}.items():
        lines = [LM_EVAL | {"filter": name, "doc_id": number} for name in names for number in (0, 1)]
        if task == "mixed":
            lines = [line for line in lines if (line["filter"], line["doc_id"]) != ("a", 1)]
        path = tmp_path / f"samples_{task}_2026-01-02T03-04-05.678.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows, bad = read_format("lm-eval", tmp_path)
    assert [row["extra_info"]["key"] for row in rows] == [
        f"{task}:{number}" for task in ("gsm8k", "mixed", "svamp") for number in (0, 1)
    ]
    assert bad == []


@pytest.mark.parametrize("resps", [None, "42", [[]], [[["-1.5", "False"]]]])
def test_one_odd_sample_of_lm_eval_costs_itself_only(tmp_path, resps):
    lines = [LM_EVAL, LM_EVAL | {"resps": resps}, LM_EVAL]
    (tmp_path / "samples_x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows, bad = read_format("lm-eval", tmp_path)
    assert [row["completion"] for row in rows] == ["1", "1"]
    assert [row.number for row in bad] == [2]
    assert "resps" in bad[0].error or "likelihood" in bad[0].error


def test_folder_of_save_to_disk_is_read_in_its_order(tmp_path):
    rows = {"question": [f"q{n}" for n in range(2500)], "answer": [str(n) for n in range(2500)]}
    rows["response"] = [f"<answer>{n}</answer>" for n in range(2500)]
    made = datasets.Dataset.from_dict(rows)
    made.save_to_disk(tmp_path / "one", num_shards=2)
    datasets.DatasetDict({"train": made, "test": made}).save_to_disk(tmp_path / "two")
    for folder in (tmp_path / "one", tmp_path / "two" / "test"):
        found, bad = read_format("hf", folder)
        assert bad == []
        assert [(row["completion"], row["ground_truth"]) for row in found] == [
            (f"<answer>{n}</answer>", str(n)) for n in range(2500)
        ]
    with pytest.raises(DataError, match="splits test, train; name the folder of one"):
        read_format("hf", tmp_path / "two")


def write_lists(folder, *files, kind=None):
    """A folder of Parquet files of lists of completions."""
    for place, texts in enumerate(files):
        table = pa.table({"completions": pa.array(texts, kind), "target": ["1"] * len(texts)})
        pq.write_table(table, folder / f"{place}.parquet")
    return folder


def test_folders_that_cannot_be_read_are_reported(tmp_path):
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "9.parquet")
    (tmp_path / "empty").mkdir()
    for path, problem in {
        tmp_path: "has the columns text; expected one of completion",
        tmp_path / "9.parquet": "expects a folder",
        tmp_path / "empty": "has no file like",
    }.items():
        with pytest.raises(DataError, match=problem):
            read_format("hf", path)


def test_completions_of_a_record_have_its_number_as_their_key(tmp_path):
    rows, _ = read_format("hf", write_lists(tmp_path, [["a", "b"], ["c"]], [["d", "e"]]))
    assert [(row["completion"], row["extra_info"]["key"]) for row in rows] == list(zip("abcde", "11233", strict=True))
    own = pa.table({"completions": [["a", "b"]], "target": ["1"], "extra_info": [{"key": "own"}]})
    (tmp_path / "own").mkdir()
    pq.write_table(own, tmp_path / "own" / "0.parquet")
    assert [row["extra_info"] for row in read_format("hf", tmp_path / "own")[0]] == [{"key": "own"}] * 2


@pytest.mark.parametrize("name", ["question", "problem", "query"])
def test_a_question_is_a_prompt(tmp_path, name):
    pq.write_table(pa.table({"output": ["1"], "target": ["1"], name: ["Say 1."]}), tmp_path / "0.parquet")
    [row], _ = read_format("hf", tmp_path)
    assert row == {"completion": "1", "target": "1", name: "Say 1.", "prompt": "Say 1.", "ground_truth": "1"}


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"], "test, train"),
        (["train", "validation"], "train, validation"),
        (["easy-00000-of-00001", "hard-00000-of-00001"], "easy, hard"),
        (["train-00000-of-00002", "train-00001-of-00002"], None),
        (["0", "1"], None),
        (["test_a", "other"], None),
    ],
)
def test_splits_in_one_folder_are_not_mixed(tmp_path, names, splits):
    for name in names:
        pq.write_table(pa.table({"output": ["1"], "target": ["1"]}), tmp_path / f"{name}.parquet")
    if splits is None:
        assert len(read_format("hf", tmp_path)[0]) == len(names)
        return
    with pytest.raises(DataError, match=f"has the splits {splits}; name the folder of one"):
        read_format("hf", tmp_path)


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list])
def test_rows_without_a_completion_are_listed_and_the_numbers_stay(tmp_path, kind):
    write_lists(tmp_path, [["a"], [], None, ["b", "c"], []], [["d"], None], kind=kind(pa.string()))
    blocks = list(find_reader("hf", tmp_path).read(tmp_path))
    assert [number for block in blocks for number in block.numbers] == [1, 4, 4, 6]
    rows, bad = read_format("hf", tmp_path)
    assert [(row.number, row.error) for row in bad] == [(number, "no completion") for number in (2, 3, 5, 7)]
    assert [row["completion"] for row in rows] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("into", ["jsonl", "parquet"])
def test_outputs_of_others_are_scored_as_they_are(write_task, tmp_path, into):
    code = "@hookimpl\ndef extract_answer(completion):\n    return completion.rpartition('####')[2].strip()\n"
    task = load_task(write_task(extract_answer=code))
    report = score_file(task, FILES / "lm_eval-0.4.13.jsonl", tmp_path / f"out.{into}", format="lm-eval")
    assert (report.rows, report.correct, report.summary and report.summary.prompts) == (4, 2, 2)
    assert {row["task"] for row in read_rows(tmp_path / f"out.{into}")} == {"say"}


def test_formats_have_names(tmp_path):
    assert list(READERS) == ["rows", "verl", "lm-eval", "hf"]
    with pytest.raises(SettingsError, match="did you mean lm-eval"):
        find_reader("lmeval", tmp_path)
    with pytest.raises(DataError, match="--format inspect"):
        find_reader(None, tmp_path / "a.eval")
    with pytest.raises(DataError, match="does not exist"):
        find_reader("verl", tmp_path / "none")
