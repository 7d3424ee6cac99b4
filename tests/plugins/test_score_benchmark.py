"""The comparison of scorers: its workloads, rewards that hang, raise or die, and no exploit is rewarded here."""

import os
import sys
import time
from collections import Counter

import pytest

from benchmarks.scoring import rewards
from benchmarks.scoring.outcomes import judge_cases, rewards_of
from benchmarks.scoring.workloads import LENGTH, MIX, OPTIONS, make_workloads
from tinyzero_sdk import load_task
from tinyzero_sdk.testing.cases import Case

REASONS = {"right": "ok", "wrong": "wrong", "malformed": "malformed", "no tag": "no_answer"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["countdown", "multiply", "gsm8k"])
def test_the_mix_has_its_fractions(name):
    task = load_task(name)
    workloads = make_workloads(200, name)
    reasons = {
        kind: Counter(task.score_completion(*asked).reason for asked in workload)
        for kind, workload in workloads.items()
    }
    assert reasons["right answers"] == {"ok": 200}
    assert reasons["mix"] == {REASONS[kind]: 200 * fraction for kind, fraction in MIX.items()}
    assert {len(completion) for workload in workloads.values() for completion, _ in workload} == {LENGTH}
    assert all(rewards.TINYZERO[name](*asked) == 1.0 for asked in workloads["right answers"])


def fickle(completion, ground_truth):
    """A reward that does what the completion says."""
    match completion:
        case "hang":
            time.sleep(60)
        case "raise":
            raise ValueError
        case "die":
            os._exit(3)
        case "leave":
            sys.exit("bye")
        case "print":
            print("printed by a reward")
    return float(completion == ground_truth)


@pytest.mark.slow
def test_a_reward_that_hangs_raises_or_dies_gives_no_score_and_the_next_answer_is_scored(capfd):
    asked = [(text, "good") for text in ("good", "hang", "raise", "print", "die", "leave", "good")]
    assert rewards_of(fickle, asked, timeout=0.3) == [1.0, None, None, 0.0, None, None, 1.0]
    assert "printed" not in capfd.readouterr().out


def test_wrong_scores_are_counted_by_their_kind():
    cases = [
        *(Case("good", "good", True), Case("good", "good", False), Case("bad", "good", False)),
        *(Case("bad", "good", True), Case("worse", "good", True), Case("raise", "good", True)),
    ]
    counted = judge_cases(fickle, cases, timeout=5)
    assert [*counted.items()] == [
        *(("wrong of 6", 4), ("wrong answers accepted", 1)),
        *(("right answers rejected", 2), ("no score (hangs, raises)", 1)),
    ]


def test_other_methods_have_their_faults():
    assert set(rewards.TINYZERO) == set(OPTIONS)
    truth = {"target": 4, "numbers": [2, 3, 4]}
    assert rewards.tinyzero_countdown("<answer>2**3-4</answer>", truth) == 1.0
    assert rewards.tinyzero_countdown("<answer>2+3-4</answer>\n", truth) == 0.0
    product = {"num1": 123, "num2": 456, "product": 56088}
    answers = {"56088": 1.0, "56_088": 1.0, "５６０８８": 1.0, "56,088": 0.0, "\n56088\n": 0.0, "56089": 0.1}
    assert {answer: rewards.tinyzero_multiply(f"<answer>{answer}</answer>", product) for answer in answers} == answers
    assert rewards.tinyzero_multiply("<answer>56088</answer>", 56088) == 1.0
    endings = {"#### 42": 1.0, "#### 1 no, #### 42": 0.0, "#### 42.0": 0.0, "#### $42": 0.0, "####  42": 0.0, "42": 0.0}
    assert {ending: rewards.tinyzero_gsm8k(ending, "42") for ending in endings} == endings
    assert rewards.reasoning_gym_countdown("<answer>2**3-4</answer>", truth) == 1.0
    assert rewards.reasoning_gym_countdown("<answer>2+3</answer>", truth) == 0.05
    assert rewards.reasoning_gym_countdown("", truth) == 0.01
