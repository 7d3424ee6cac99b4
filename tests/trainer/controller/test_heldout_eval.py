"""The result of an evaluation in training is the one that `tinyzero eval` gives."""

import pytest

from tinyzero_sdk import Item, Score
from tinyzero_sdk.evaluation.protocol import EvaluationResult
from tinyzero_trainer.controller.heldout_eval import _summary
from tinyzero_trainer.types import Generation, Prompt, Rollout


def made(prompt, correct, length):
    score = Score(float(correct), correct, "ok" if correct else "wrong")
    return Rollout(prompt, Generation([1] * length, [0.0] * length, True), "", score)


def test_completions_of_one_problem_are_not_independent():
    first, second = (Prompt(Item(None), "", [1]) for _ in range(2))
    completed = [made(first, True, 2), made(first, True, 4), made(second, False, 6), made(second, True, 8)]
    result = _summary(completed, 2, 10.0)
    assert type(result) is EvaluationResult
    assert (result.problems, result.samples, result.accuracy, result.mean_score) == (2, 2, 0.75, 0.75)
    assert result.standard_error == pytest.approx(0.25)  # of the shares 1 and 1/2
    assert (dict(result.by_reason), result.mean_length, result.tokens_per_second) == ({"ok": 3, "wrong": 1}, 5.0, 2.0)


def test_of_one_problem_no_error_can_be_told():
    result = _summary([made(Prompt(Item(None), "", [1]), True, 1)], 1, 1.0)
    assert (result.accuracy, result.standard_error) == (1.0, 0.0)
