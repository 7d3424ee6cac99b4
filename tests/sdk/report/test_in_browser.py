"""The page in a real browser: a report and `view` must work, and answer alike."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from tests.dummy_runs import LEVELS, write_run
from tests.environments import run_script
from tinyzero_sdk.report.page import report
from tinyzero_sdk.report.runs import open_run
from tinyzero_sdk.scoring.compare import compare_files, remark

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.slow
@pytest.mark.minutes
@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")
def test_a_reader_filters_follows_a_problem_and_compares_runs(tmp_path):
    paths = [write_run(tmp_path / name, steps=20, completions=1500, seed=seed) for seed, name in enumerate("ab")]
    script = Path(__file__).with_name("in_browser.py")
    found = run_script("playwright", script, CHROMIUM, *map(str, paths), cwd=tmp_path)
    assert found["errors"] == []
    report = found["report"]
    ours, theirs = (found[name]["others"].pop("compared") for name in ("report", "view"))
    assert report == found["view"]
    whole = compare_files(paths)
    (comparison,) = whole.comparisons
    for shown in (ours, theirs):
        assert shown["problems"] == whole.problems == 64
        assert shown["remarks"] == [remark(comparison.better + comparison.worse), remark(0)]
        expected = [comparison.accuracy, *comparison.metrics, *comparison.by_reason]
        expected = [asdict(one) for one in expected if not one.name.startswith(("pass@", "part "))]
        assert [one["name"] for one in shown["metrics"]] == [one["name"] for one in expected]
        for one, other in zip(shown["metrics"], expected, strict=True):
            digits = 1e-7 if one["name"] == "mean score" else 1e-12  # a report rounds scores
            assert one.pop("interval") == pytest.approx(other.pop("interval"), abs=digits)
            assert one == pytest.approx(other, abs=digits)
        assert [shown["better"][0], shown["worse"][0]] == [comparison.better, comparison.worse]
        for name, changes in (("better", comparison.gains), ("worse", comparison.losses)):
            rates = [np.divide(one.correct, one.completions).tolist() for one in changes[:3]]
            listed = [[one.problem, own, [one.problem] * 2] for one, own in zip(changes, rates, strict=False)]
            assert shown[name][1] == listed
    counts = [text for text, _ in report["filters"].values()]
    assert counts[0] == "1–50 of 1,496 completions"
    assert counts[-1] == ""
    assert len(set(counts)) == len(counts)  # each filter leaves fewer
    assert all("wrong" in row for row in report["filters"]["wrong"][1])
    assert report["problem"]["marks"] > 1 < report["problem"]["beside"] == report["problem"]["beside again"]
    assert report["problem"]["addresses"] == 3
    assert "On 64 problems that both have, accuracy changes by" in report["others"]["comparison"]
    assert set(report["others"]["differences"]) == {"run.output", "run.seed", "optimizer.learning_rate"}
    by_level = [f"Accuracy by difficulty, training: level {level}" for level in LEVELS]  # of two runs, a chart for each
    assert [title for title in report["others"]["titles"] if "difficulty" in title] == by_level


ATTACKS = (
    "</script><script>window.pwned = 1</script>",
    '"><img src=x onerror="window.pwned = 2">',
    "<svg onload=window.pwned=3><iframe srcdoc='<script>parent.pwned=4</script>'></iframe>",
    "<!-- <script> %%SCRIPT%% ${window.pwned = 5} {{7*7}} javascript:window.pwned=6 \u2028 \ud800",
)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")
def test_hostile_texts_do_nothing_in_a_page_whose_policy_stops_what_they_would_do(tmp_path):
    columns = ("completion", "prompt", "ground_truth", "answer", "task", "data_source", "reasoning_content")
    rows = [dict.fromkeys(columns, attack) | {"score": 0.0, "correct": False, "reason": "wrong"} for attack in ATTACKS]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row | {"parts": {row["task"]: 1.0}, "difficulty": 1.0}) + "\n" for row in rows))
    page = tmp_path / "page.html"
    page.write_text(report([open_run(path, ATTACKS[1]), open_run(path, ATTACKS[0])], most=100), encoding="utf-8")
    found = run_script("playwright", Path(__file__).with_name("hostile_page.py"), CHROMIUM, str(page), cwd=tmp_path)
    stopped, address = found.pop("stopped"), found.pop("address")
    assert found == {"pwned": None, "elements": 0, "outside": [], "pwned after": None}
    assert address.startswith(page.as_uri())
    expected = {"script-src-elem", "script-src-attr", "script-src", "img-src", "frame-src", "object-src"}
    assert {"connect-src", "base-uri", "form-action", "worker-src"} | expected <= set(stopped)
