"""The labelled cases that countdown and multiply ship: there are enough, of many kinds, and both verdicts agree."""

import pytest

from tinyzero_sdk import load_task
from tinyzero_sdk.testing.cases import cases_path, read_cases

CASES = {name: read_cases(cases_path(load_task(name))) for name in ("countdown", "multiply")}


@pytest.mark.parametrize("name", CASES)
def test_there_are_many_cases_of_many_kinds(name):
    cases = CASES[name]
    assert len(cases) >= 320
    assert 0.3 <= sum(case.correct for case in cases) / len(cases) <= 0.7
    assert len({case.note for case in cases}) >= 100
    assert all(case.note for case in cases)
    assert len({(case.completion, str(case.ground_truth)) for case in cases}) == len(cases)


@pytest.mark.parametrize("name", CASES)
def test_every_case_gets_its_score_from_the_scorer_and_from_the_oracle(name):
    task = load_task(name)
    for case in CASES[name]:
        score = task.score_completion(case.completion, case.ground_truth)
        assert (score.correct, score.reason == "ok", score.value == 1.0) == (case.correct,) * 3, case
        if score.answer is not None:
            assert task.oracle(score.answer, case.ground_truth) is case.correct, case
    assert task.error_count == 0
