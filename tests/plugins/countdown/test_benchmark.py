"""The benchmark measures what it says: its workloads, its contestants, and that no exploit is paid here."""

import importlib.util
from collections import Counter
from pathlib import Path

import pytest

from tinyzero_sdk import load_task

SCRIPT = Path(__file__).parents[3] / "benchmarks/score.py"
spec = importlib.util.spec_from_file_location("benchmarks_score", SCRIPT)
score = importlib.util.module_from_spec(spec)
spec.loader.exec_module(score)

task = load_task("countdown")


@pytest.mark.slow
def test_workloads_are_as_long_and_as_mixed_as_they_should_be():
    workloads = score.make_workloads(400)
    reasons = {
        name: Counter(task.score_completion(*asked).reason for asked in workload)
        for name, workload in workloads.items()
    }
    assert reasons["right answers"] == {"ok": 400}
    for kind, reason in {"right": "ok", "wrong": "wrong", "malformed": "malformed", "no tag": "no_answer"}.items():
        assert reasons["mix"][reason] == 400 * score.SHARES[kind]
    assert {len(completion) for workload in workloads.values() for completion, _ in workload} == {score.LENGTH}
    for completion, ground_truth in workloads["right answers"]:
        assert score.tinyzero_method(completion, ground_truth) == 1.0


@pytest.mark.parametrize(("answer", "numbers", "target"), score.EXPLOITS)
def test_no_exploit_is_paid(answer, numbers, target):
    for reward in ("binary", "tinyzero"):
        graded = load_task("countdown", options={"reward": reward})
        verdict = graded.score_completion(f"<answer>{answer}</answer>", {"target": target, "numbers": numbers})
        assert verdict.value == (0.1 if verdict.reason == "wrong" and reward == "tinyzero" else 0.0)


@pytest.mark.parametrize(("completion", "what"), score.HONEST)
def test_right_answers_are_paid(completion, what):
    assert task.score_completion(completion, {"target": 15, "numbers": [17, 5, 3]}).value == 1.0
