import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.sdk.rows import write_rows
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.report.completions import read_completions
from tinyzero_sdk.report.runs import open_run
from tinyzero_sdk.scoring.compare import compare_files
from tinyzero_sdk.scoring.statistics import interval_of_mean_rate, wilson

ROW = {"completion": "so <answer>7</answer>", "ground_truth": {"target": 7}, "score": 1.0, "correct": True}
ROW |= {"answer": "7", "reason": "ok", "task": "sum", "prompt": "3 + 4?", "tokens": 9, "finished": False}


@pytest.fixture(scope="module")
def completions(run_path):
    return read_completions(open_run(run_path).completion_files())


@pytest.mark.parametrize(
    ("filters", "passes"),
    [
        ({"reason": ["wrong", "malformed"]}, lambda row: row["reason"] in ("wrong", "malformed")),
        ({"split": ["heldout"], "step": [5, 9]}, lambda row: row["split"] == "heldout" and 5 <= row["step"] <= 9),
        ({"score": [None, 0.5], "difficulty": [4, None]}, lambda row: row["score"] <= 0.5 and row["difficulty"] >= 4),
        ({"cut_off": True}, lambda row: not row["finished"]),
        ({"text": "I DO NOT"}, lambda row: row["reason"] == "no_answer"),
        ({"text": "I do not", "step": [3, 3]}, lambda row: row["reason"] == "no_answer" and row["step"] == 3),
        ({"text": "in no text at all"}, lambda row: False),
    ],
)
def test_filters_leave_the_rows_that_pass(completions, filters, passes):
    every = completions.rows(np.arange(len(completions)))
    found = completions.rows(completions.select(filters))
    assert [row["id"] for row in found] == [row["id"] for row in every if passes(row)]


def test_rows_are_sorted_and_found_again_by_their_ids(completions):
    rows = completions.rows(completions.select({"sort": "num_tokens", "descending": True}))
    assert [row["num_tokens"] for row in rows] == sorted((row["num_tokens"] for row in rows), reverse=True)
    picked = [rows[0]["id"], rows[-1]["id"], "train_00000001_00000020:99999", "elsewhere:0"]
    first, last, *gone = completions.texts(picked)
    assert gone == [None, None]
    assert (first["id"], last["num_tokens"]) == (picked[0], rows[-1]["num_tokens"])
    assert first["token_ends"][-1] == len(first["completion"])
    assert set(first["parts"]) == {"task", "format"}


def test_an_evaluation_is_a_step_of_held_out_completions(completions):
    evaluations = completions.evaluations()
    assert [one["step"] for one in evaluations] == list(range(21))
    last = evaluations[-1]
    assert last["problems"] == last["completions"] == sum(last["reasons"].values()) == 64
    assert (last["low"], last["high"]) == pytest.approx(wilson(last["accuracy"], 64))
    assert {name: level["completions"] for name, level in last["levels"].items()} == {"3": 22, "4": 21, "5": 21}


def test_ranges_of_difficulty_have_the_names_that_compare_gives_them(tmp_path):
    levels = [3.09, 3.3, 3.5, 3.8, 4.0, 4.25, 4.5, 4.75, 5.0, 5.5]
    rows = [ROW | {"task": None, "extra_info": {"key": str(level), "difficulty": level}} for level in levels]
    path = write_rows(tmp_path / "scored.jsonl", rows)
    (evaluation,) = read_completions([path]).evaluations()
    (comparison,) = compare_files([path, path]).comparisons
    assert list(evaluation["levels"]) == [one.name for one in comparison.by_difficulty]
    assert next(iter(evaluation["levels"])) == "3.09 to 3.3"


def test_evaluations_of_several_samples_have_pass_at_k_and_tasks_are_apart(tmp_path):
    rows = [ROW | {"extra_info": {"key": key}, "correct": right, "task": task} for task, key, right in SAMPLES]
    path = write_rows(tmp_path / "scored.jsonl", rows)
    first, second = read_completions([path]).evaluations()
    assert (first["task"], first["pass_at"], first["passed"]) == ("sum", 2, 0.75)
    assert first["accuracy"] == pytest.approx(1 / 3)
    assert first["passed_interval"] == pytest.approx(interval_of_mean_rate(np.array([0.5, 1.0]), np.array([4, 2])))
    assert (second["task"], second["accuracy"], "pass_at" in second) == ("product", 1.0, False)


SAMPLES = [("sum", "a", right) for right in (True, False, False, False)] + [("product", "a", True)]
SAMPLES += [("sum", "b", right) for right in (True, False)] + [("product", "b", True)]


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_scored_file_of_other_columns_is_read_as_far_as_it_goes(tmp_path, ending):
    rows = [ROW | {"extra_info": {"key": key, "difficulty": 2.5}} for key in ("a", "b")]
    path = write_rows(tmp_path / f"scored.{ending}", rows)
    completions = read_completions(open_run(path).completion_files())
    (row,) = completions.texts(["scored:1"])
    expected = {"problem": "b", "difficulty": 2.5, "num_tokens": 9, "finished": False, "task": "sum", "step": None}
    assert {name: row[name] for name in expected} == expected
    assert (row["completion"], row["advantage"], row["logprobs"]) == (ROW["completion"], None, None)
    assert completions.evaluations()[0]["accuracy"] == 1


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_rows_without_a_score_are_left_out_and_counted(tmp_path, ending):
    path = tmp_path / f"scored.{ending}"
    rows = [ROW | {"score": None}, ROW, {"completion": "not scored"}, ROW | {"completion": "last"}]
    if ending == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"score": NaN}')
    else:
        pq.write_table(pa.Table.from_pylist([*rows, ROW | {"score": np.nan}]), path)
    completions = read_completions([path])
    assert [row["completion"] for row in completions.texts(["scored:0", "scored:1"])] == [ROW["completion"], "last"]
    assert (len(completions), completions.evaluations()[0]["completions"]) == (2, 2)
    counts = [2, 1] if ending == "jsonl" else [3]
    assert sorted(int(what.split()[0]) for what in completions.left_out) == sorted(counts)
    assert f"row{'s' * (counts[0] > 1)} of scored.{ending} without a score" in completions.left_out[-1]


@pytest.mark.parametrize(("parts", "shown"), [({"format": 0.1}, {"format": 0.1}), ("none", {}), ([1], {})])
def test_parts_are_shown_where_there_are_any(tmp_path, parts, shown):
    path = tmp_path / "scored.jsonl"
    path.write_text(json.dumps(ROW | {"parts": parts}))
    assert read_completions([path]).texts(["scored:0"])[0]["parts"] == shown


def test_a_file_that_cannot_be_read_is_an_error_alone_and_left_out_among_others(tmp_path, run_path):
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"broken\.parquet is not Parquet"):
        read_completions([broken])
    good = open_run(run_path).completion_files()
    assert len(read_completions([broken, *good])) == len(read_completions(good))


def test_a_text_is_found_in_a_table_without_prompts(tmp_path):
    rows = [{name: cell for name, cell in ROW.items() if name != "prompt"}]
    path = write_rows(tmp_path / "scored.parquet", rows)
    assert len(read_completions([path]).select({"text": "SO <answer>"})) == 1


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_messages_and_objects_are_shown_as_json(tmp_path, ending):
    row = ROW | {"prompt": [{"role": "user", "content": "é?"}]}
    path = write_rows(tmp_path / f"scored.{ending}", [row])
    (shown,) = read_completions([path]).texts(["scored:0"])
    assert [json.loads(shown[name]) for name in ("prompt", "ground_truth")] == [row["prompt"], row["ground_truth"]]
