"""Files of labelled completions."""

import json

import pytest

from tinyzero_sdk import load_task
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.testing.cases import Case, cases_path, read_cases, write_cases


def test_cases_survive_a_file(tmp_path):
    cases = [
        Case("<answer>1</answer>", {"target": 1, "numbers": [1]}, True, "plain"),
        Case("\ud800 \u202e \x00 \u2028", "7", False),
    ]
    write_cases(tmp_path / "cases.jsonl", cases)
    assert read_cases(tmp_path / "cases.jsonl") == cases


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"completion": 1, "ground_truth": 1, "correct": true}', "[" * 9999])
def test_a_bad_line_is_named(tmp_path, line):
    path = tmp_path / "cases.jsonl"
    path.write_text(json.dumps({"completion": "a", "ground_truth": 1, "correct": False}) + f"\n\n{line}\n")
    with pytest.raises(DataError, match=r"cases\.jsonl:3 is no case"):
        read_cases(path)


def test_where_the_cases_of_a_task_are(write_task, install, task_source, tmp_path):
    assert cases_path(load_task(write_task())) == tmp_path / "say.cases.jsonl"
    install("tz-say", modules={"say_module": task_source()}, tasks={"say": "say_module"})
    assert cases_path(load_task("say")) == tmp_path / "cases.jsonl"
