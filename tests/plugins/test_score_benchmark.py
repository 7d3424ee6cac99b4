"""The comparison of scorers counts what it says: the mixes it measures on, and verdicts that hang, raise or end it."""

import os
import sys
import time
from collections import Counter

import pytest

from benchmarks.scoring import reasoning_gym, tinyzero
from benchmarks.scoring.verdicts import judge_cases, payments
from benchmarks.scoring.workloads import LENGTH, OPTIONS, SHARES, make_workloads
from tinyzero_sdk import load_task
from tinyzero_sdk.testing.cases import Case

REASONS = {"right": "ok", "wrong": "wrong", "malformed": "malformed", "no tag": "no_answer"}


@pytest.mark.parametrize("name", ["multiply", "gsm8k"])
def test_the_mix_is_what_its_shares_say(name):
    task = load_task(name)
    workloads = make_workloads(200, name)
    reasons = {
        kind: Counter(task.score_completion(*asked).reason for asked in workload)
        for kind, workload in workloads.items()
    }
    assert reasons["right answers"] == {"ok": 200}
    assert reasons["mix"] == {REASONS[kind]: 200 * share for kind, share in SHARES.items()}
    assert {len(completion) for workload in workloads.values() for completion, _ in workload} == {LENGTH}
    assert all(tinyzero.REWARDS[name](*asked) == 1.0 for asked in workloads["right answers"])


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
def test_a_reward_that_hangs_raises_or_dies_gives_no_score_and_is_asked_on(capfd):
    asked = [(text, "good") for text in ("good", "hang", "raise", "print", "die", "leave", "good")]
    assert payments(fickle, asked, limit=0.3) == [1.0, None, None, 0.0, None, None, 1.0]
    assert "printed" not in capfd.readouterr().out


def test_wrong_scores_are_counted_by_their_kind():
    cases = [
        *(Case("good", "good", True), Case("good", "good", False), Case("bad", "good", False)),
        *(Case("bad", "good", True), Case("worse", "good", True), Case("raise", "good", True)),
    ]
    counted = judge_cases(fickle, cases, limit=5)
    assert (counted.cases, counted.false_accepts, counted.false_rejects, counted.failures) == (6, 1, 2, 1)
    assert counted.wrong == 4


def test_every_task_has_the_method_of_tinyzero_with_its_faults():
    assert set(tinyzero.REWARDS) == set(OPTIONS)
    truth = {"target": 4, "numbers": [2, 3, 4]}
    assert tinyzero.countdown("<answer>2**3-4</answer>", truth) == 1.0
    assert tinyzero.countdown("<answer>2+3-4</answer>\n", truth) == 0.0
    product = {"num1": 123, "num2": 456, "product": 56088}
    answers = {"56088": 1.0, "56_088": 1.0, "５６０８８": 1.0, "56,088": 0.0, "\n56088\n": 0.0, "56089": 0.1}
    assert {answer: tinyzero.multiply(f"<answer>{answer}</answer>", product) for answer in answers} == answers
    assert tinyzero.multiply("<answer>56088</answer>", 56088) == 1.0
    endings = {"#### 42": 1.0, "#### 1 no, #### 42": 0.0, "#### 42.0": 0.0, "#### $42": 0.0, "####  42": 0.0, "42": 0.0}
    assert {ending: tinyzero.gsm8k(ending, "42") for ending in endings} == endings


def test_the_stand_in_for_reasoning_gym_pays_what_the_package_was_seen_to_pay():
    truth = {"target": 4, "numbers": [2, 3, 4]}
    assert reasoning_gym.stand_in("<answer>2**3-4</answer>", truth) == 1.0
    assert reasoning_gym.stand_in("<answer>2+3</answer>", truth) == 0.05
    assert reasoning_gym.stand_in("", truth) == 0.01
