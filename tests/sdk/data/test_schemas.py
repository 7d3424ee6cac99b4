"""Rows as other projects publish them: every command that reads a file takes or refuses the same ones, in any format.

The columns are those of the data sets' own cards and of the scripts that write them.
"""

import json
import os
import re
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from tests.sdk.rows import write_rows
from tinyzero_gsm8k.scoring import read_truth
from tinyzero_sdk import load_task
from tinyzero_sdk.adapters.scorer import Scorer
from tinyzero_sdk.data.file_task import load_file_tasks
from tinyzero_sdk.data.files import read_rows
from tinyzero_sdk.data.rows import ground_truth_of, renamed
from tinyzero_sdk.errors import DataError, SettingsError
from tinyzero_sdk.records import Completion
from tinyzero_sdk.scoring.compare import compare_files
from tinyzero_sdk.scoring.rescore import rescore_file
from tinyzero_sdk.scoring.score_file import ScoringOptions, score_file
from tinyzero_sdk.tasks.splits import DEFAULT_TEST_FRACTION

pytestmark = pytest.mark.usefixtures("scored_in_process")

SIZE = 8
HELD_OUT = 3  # the first rows


def countdown(n):
    return {"target": n + 20, "numbers": [n + 17, 3]}


def chat(text, role="user"):
    return [{"role": role, "content": text}]


def verl(n, truth, **info):
    """As verl's `examples/data_preprocess/gsm8k.py` writes it."""
    return {
        "data_source": "openai/gsm8k",
        "prompt": chat(f"What is {n} + 0?"),
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"split": "test" if n < HELD_OUT else "train", "index": n, **info},
    }


def math(n, **columns):
    """A row of DeepScaleR, OpenR1-Math, NuminaMath-1.5 or Big-Math."""
    return {"problem": f"What is {n} + 0?", "answer": str(n), **columns}


def as_text(row):
    """A row of which a table keeps objects and lists as JSON text."""
    return {name: json.dumps(cell) if isinstance(cell, dict | list) else cell for name, cell in row.items()}


def floats(truth):
    """As a table keeps integers that have nulls beside them."""
    return {name: np.array(cell, float).tolist() for name, cell in truth.items()}


MATH = {"prompt": "problem", "ground_truth": "answer"}
SCHEMAS = {  # task, row n, and where it has what is needed
    "verl": ("gsm8k", lambda n: verl(n, str(n), answer=f"{n}\n#### {n}", question="?"), {}),
    "TinyZero": ("countdown", lambda n: verl(n, countdown(n)) | {"target": n + 20, "nums": [n + 17, 3]}, {}),
    "GSM8K": ("gsm8k", lambda n: {"question": f"What is {n} + 0?", "answer": f"It is {n}.\n#### {n}"}, {}),
    "Skywork": ("gsm8k", lambda n: verl(n, json.dumps([str(n)]), model_difficulty={"a": 3}), {}),
    "list of one": ("gsm8k", lambda n: verl(n, [str(n)]), {}),
    "float": ("gsm8k", lambda n: verl(n, float(n)), {}),
    "decimal": ("gsm8k", lambda n: verl(n, Decimal(n)), {}),
    "JSON text": ("countdown", lambda n: verl(n, json.dumps(countdown(n))), {}),
    "floats": ("countdown", lambda n: verl(n, floats(countdown(n))), {}),
    "product as float": ("multiply", lambda n: verl(n, float(n)), {}),
    "text alone": ("gsm8k", lambda n: as_text(verl(n, str(n))), {}),
    "nulls": ("gsm8k", lambda n: {**verl(n, str(n)), "prompt": [{**chat("?")[0], "name": None}, *chat(f"{n}?")]}, {}),
    "TRL": ("gsm8k", lambda n: {"prompt": chat(f"{n}?"), "solution": f"${n}$"}, {"ground_truth": "solution"}),
    "DeepScaleR": ("gsm8k", lambda n: math(n, solution=f"\\boxed{{{n}}}"), MATH),
    "OpenR1-Math": ("gsm8k", lambda n: math(n, generations=["a"], messages=chat("?")), MATH),
    "NuminaMath-1.5": ("gsm8k", lambda n: math(n, solution=f"So {n}.", source="olympiads"), MATH),
    "field": ("gsm8k", lambda n: {"prompt": f"{n}?", "meta": {"gold": float(n)}}, {"ground_truth": "meta.gold"}),
    "solution": ("gsm8k", lambda n: {"question": f"{n}?", "solution": f"It is\n#### {n}"}, {"answer": "solution"}),
}  # fmt: skip
ANSWERS = {"countdown": lambda n: f"{n + 17} + 3", "gsm8k": str, "multiply": str}
# The task makes its problems of these; `score` needs the ground truth alone.
OF_OUTPUTS = {"GSM8K": {"ground_truth": "answer"}, "solution": {"ground_truth": "solution"}}
ENDINGS = ("jsonl", "parquet", "json")


def write(path, rows):
    """Write rows; decimals as numbers where the format has none."""
    if path.suffix == ".parquet":
        return write_rows(path, rows)
    rows = json.loads(json.dumps(list(rows), default=float))
    if path.suffix == ".json":
        path.write_text(json.dumps(rows))
        return path
    return write_rows(path, rows)


def trained(task, path, columns):
    """What `train` and `eval` see: prompts and ground truths of both splits."""
    (of_file,) = load_file_tasks({"t": task}, str(path), test_fraction=0.3, columns=columns).values()
    fraction = DEFAULT_TEST_FRACTION if of_file.has_own_splits else 0.3
    return {
        split: [
            (of_file.make_prompt(item, "chat"), item.ground_truth)
            for item in of_file.dataset(split, test_fraction=fraction)
        ]
        for split in ("train", "test")
    }


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_read_alike_by_every_command_in_any_format(tmp_path, name):
    task_name, row, columns = SCHEMAS[name]
    task, seen, files = load_task(task_name), [], []
    of_outputs = OF_OUTPUTS.get(name, columns)
    answers = [f"<answer>{ANSWERS[task_name](n) if n % 2 else 1000003}</answer>" for n in range(SIZE)]
    for ending in ("json", "parquet") if name == "field" else ("jsonl", "parquet"):
        seen.append(trained(task, write(tmp_path / f"problems.{ending}", map(row, range(SIZE))), columns))
        assert len(seen[-1]["train"]) + len(seen[-1]["test"]) == SIZE
        if "extra_info" in row(0):
            assert len(seen[-1]["test"]) == HELD_OUT
        assert all(task.is_valid(truth) for split in seen[-1].values() for _, truth in split)
        rows = [{**row(n), "completion": text, "extra_info": {"key": str(n)}} for n, text in enumerate(answers)]
        files.append(tmp_path / f"scored_{ending}.{'parquet' if ending == 'parquet' else 'jsonl'}")
        outputs = write(tmp_path / f"outputs.{ending}", rows)
        report = score_file(task, outputs, files[-1], ScoringOptions(columns=of_outputs))
        assert (report.bad, dict(report.reasons)) == ([], {"ok": SIZE // 2, "wrong": SIZE // 2})
        assert [row["correct"] for row in read_rows(files[-1])] == [n % 2 == 1 for n in range(SIZE)]
        truths = [ground_truth_of(renamed(row, of_outputs)) for row in rows]
        scores = Scorer(task).score(list(map(Completion, answers)), truths)
        assert [score.correct for score in scores] == [n % 2 == 1 for n in range(SIZE)]
    assert seen[0] == seen[1]
    assert rescore_file(task, files[1]).changed == 0
    compared = compare_files(files)
    assert (compared.problems, compared.problems_by) == (SIZE, "extra_info.key")
    assert [(comparison.better, comparison.worse) for comparison in compared.comparisons] == [(0, 0)]


REFUSED = {
    "null content": ({"prompt": chat(None)}, "expected text, or messages with role and content"),
    "null content as JSON text": ({"prompt": json.dumps(chat(None))}, "expected text, or messages with role and cont"),
    "Python's repr": ({"prompt": str(chat("2+2?"))}, "messages as Python writes them; write a list, or one as JSON"),
    "numpy's str": ({"prompt": str(np.array(chat("2?") * 2))}, "messages as Python writes them; write a list, or one"),
    "numpy's repr": ({"prompt": repr(np.array(chat("2?"), object))}, "messages as Python writes them; write a list"),
    "no prompt": ({"prompt": None, "problem": "2?"}, "in the column `prompt`; if `problem` has it: data.columns"),
    "prefill": ({"prompt": [*chat("2?"), *chat("<think>", "assistant")]}, "ends in a message of the assistant"),
    "prefill as JSON text": ({"prompt": json.dumps(chat("<think>", "assistant"))}, "ends in a message of the assis"),
    "role": ({"prompt": chat("2?", "human")}, "a message has the role 'human', expected one of system"),
    "extra_info as repr": ({"extra_info": str({"split": "test"})}, "extra_info is \"{'split': 'test'}\", which is n"),
    "no ground truth": ({"reward_model": None, "answer": "5"}, "data.columns.ground_truth=answer (score: --column gr"),
    "no objects": ({"data_source": ["x"], "reward_model": 5, "extra_info": 7}, "no ground truth; expected it in the"),
    "reward_model as repr": ({"reward_model": str({"ground_truth": "5"})}, "no ground truth; expected it in the colu"),
    "two truths": ({"reward_model": {"ground_truth": ["5", "6"]}}, "no such ground truth: ['5', '6'] (list)"),
    "text": ({"reward_model": {"ground_truth": '["5", "six"]'}}, "no such ground truth: '[\"5\", \"six\"]' (str)"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_row_that_cannot_be_read_is_refused_with_its_number_and_the_reason(tmp_path, name):
    change, message = REFUSED[name]
    for ending in ENDINGS:  # a column of Parquet has one type, so that all rows are changed
        path = write(tmp_path / f"rows.{ending}", [{**verl(n, str(n)), **change} for n in range(SIZE)])
        with pytest.raises(DataError, match=rf"rows.{ending}:1: .*{re.escape(message)}"):
            trained(load_task("gsm8k"), path, {})


@pytest.mark.parametrize(("split", "ending"), [("test", "jsonl"), ("Test", "parquet"), ("validation", "json")])
def test_a_row_that_says_that_it_is_held_out_is_never_trained_on(tmp_path, split, ending):
    rows = [
        verl(n, str(n))
        | {"extra_info": {"split": split if n < 3 else "train", "taken": date(2026, 1, 1), "image": b"."}}
        for n in range(9)
    ]
    if ending != "parquet":
        rows = [{**row, "extra_info": {}, "split": row["extra_info"]["split"]} for row in rows]
    seen = trained(load_task("gsm8k"), write(tmp_path / f"rows.{ending}", rows), {})
    assert sorted(truth for _, truth in seen["test"]) == ["0", "1", "2"]


def test_a_column_that_is_not_there_is_named(tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"question": "2?", "solution": "5", "completion": "5"}])
    message = r"rows.jsonl has no column 'solutoin'; did you mean solution\? it has question, solution, completion"
    for read in (trained, lambda task, path, columns: score_file(task, path, None, ScoringOptions(columns=columns))):
        with pytest.raises(DataError, match=message):
            read(load_task("gsm8k"), path, {"ground_truth": "solutoin"})
    with pytest.raises(SettingsError, match="columns are mapped in our own format, and hf has its own"):
        score_file(load_task("gsm8k"), tmp_path, None, ScoringOptions(columns={"a": "b"}), format="hf")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", r"rows.json:1: a int; expected a JSON object"),
        ('[{"a": 1}, {"a": NaN}]', r"cannot read .*rows.json: NaN, which JSON does not have"),
        ('[{"a": 1},', r"cannot read .*rows.json: not JSON: .* at column 11"),
        ('[{"a": "\\ud800"}]', r"cannot read .*rows.json: a lone surrogate"),
        ('{"a": 1}\n[]', r"rows.json:2: a list; expected a JSON object"),
    ],
)
def test_a_json_array_that_holds_no_rows_is_refused(tmp_path, text, message):
    (tmp_path / "rows.json").write_text(text)
    with pytest.raises(DataError, match=message):
        list(read_rows(tmp_path / "rows.json"))


@pytest.mark.slow
def test_the_published_gsm8k_gives_the_same_problems_as_published_and_as_verl_keeps_it(tmp_path):
    if not (folder := os.environ.get("TINYZERO_GSM8K")):
        pytest.skip("the published problems are not here: name their folder with TINYZERO_GSM8K")
    published = list(read_rows(Path(folder, "test.jsonl")))
    kept = [
        {**verl(n, row["answer"].rpartition("#### ")[2]), "prompt": chat(row["question"]), "extra_info": row}
        for n, row in enumerate(published)
    ]
    found = {}
    for name, rows, columns in (
        ("own", published, {"prompt": "question", "ground_truth": "answer"}),
        ("verl", kept, {}),
    ):
        for ending in ENDINGS:
            seen = trained(load_task("gsm8k"), write(tmp_path / f"{name}.{ending}", rows), columns)
            found[name, ending] = {
                str(prompt if isinstance(prompt, str) else prompt[0]["content"]): read_truth(truth)
                for split in seen.values()
                for prompt, truth in split
            }
    assert len(found["own", "json"]) == len(published)
    assert all(problems == found["own", "json"] for problems in found.values())
