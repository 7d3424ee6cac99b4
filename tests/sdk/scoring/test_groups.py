"""Which rows are completions of one problem: one rule, wherever problems are counted."""

import json

import pytest

from tests.sdk.rows import write_rows
from tinyzero_inspect import export
from tinyzero_sdk import load_task
from tinyzero_sdk.data.files import read_blocks
from tinyzero_sdk.report.completions import read_completions
from tinyzero_sdk.scoring.compare import compare_files
from tinyzero_sdk.scoring.outputs import read_outputs, whole_groups
from tinyzero_sdk.scoring.provenance import accept_any
from tinyzero_sdk.scoring.score_file import score_file

pytestmark = pytest.mark.usefixtures("scored_in_process")


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("columns", "by", "problems"),
    [
        (lambda n: {"prompt": f"{'ab'[n // 6]} {n % 3}", "extra_info": {"index": n % 3}}, "prompt", 6),  # two data sets
        (lambda n: {"prompt": [{"role": "user", "content": f"{n % 2}"}]}, "prompt", 2),
        (lambda n: {"prompt": "same", "extra_info": {"key": f"key {n % 4}", "index": n}}, "extra_info.key", 4),
        (lambda n: {"prompt": None, "extra_info": {"index": n % 3}}, "extra_info.index", 3),
        (lambda n: {"problem": f"What is {n % 2}?", "prompt": f"{n}"}, "problem", 2),
        (lambda n: {"ground_truth": [n % 5]}, "ground_truth", 5),
        (lambda n: {}, "row", 12),  # a bare ground truth may be that of many problems
    ],
)
def test_a_file_has_as_many_problems_wherever_they_are_counted(write_task, tmp_path, columns, by, problems, ending):
    rows = [{"completion": f"<answer>{n % 2}</answer>", "ground_truth": "1"} | columns(n) for n in range(12)]
    source, path = write_rows(tmp_path / f"in.{ending}", rows), tmp_path / f"scored.{ending}"
    report = score_file(load_task(write_task()), source, path)
    summary = report.summary
    assert (summary.prompts_by, summary.prompts, bool(summary.at_k)) == (by, problems, problems < 12)
    (evaluation,) = read_completions([path]).evaluations()
    assert evaluation["problems"] == problems
    assert (evaluation["low"], evaluation["high"]) == pytest.approx(report.summary.interval)
    export(path, tmp_path / "log.json")
    log = json.loads((tmp_path / "log.json").read_text())
    assert log["eval"]["dataset"]["samples"] == problems
    if problems < 12:
        assert compare_files([path, path]).problems == problems


def test_one_prompt_with_another_ground_truth_is_another_problem(tmp_path):
    rows = [{"prompt": "p", "completion": "c", "ground_truth": truth} for truth in (1, 1, 2, 2, 2, [1], [1])]
    parquet, lines = write_rows(tmp_path / "in.parquet", rows[:5]), write_rows(tmp_path / "in.jsonl", rows)
    for path, sizes in ((parquet, [2, 3]), (lines, [2, 3, 2])):
        batches = whole_groups(read_outputs(read_blocks(path), path, accept_any), path, None)
        assert [size for batch in batches for size in batch.groups] == sizes
