"""Every law is kept by a good task, and broken by one that does what the law forbids, with a small example."""

from collections.abc import Callable

import pytest

from tests.sdk.testing.broken_tasks import BREAKERS, MORE_BREAKERS, SCORE
from tests.sdk.testing.conftest import HOOKS
from tinyzero_sdk import load_task
from tinyzero_sdk.testing import LAWS, Result, check_task
from tinyzero_sdk.testing.completions import Sample
from tinyzero_sdk.testing.property import Law, Problem
from tinyzero_sdk.testing.task_under_test import Bench

WriteSum = Callable[..., str]


def broken(path: str, law: str) -> Result:
    report = check_task(load_task(path), laws=[law], cases=[])
    assert not report.passed
    result = report[law]
    assert result.failure
    return result


def test_every_law_has_a_task_that_breaks_it() -> None:
    assert {*BREAKERS, "labelled-cases"} == {law.name for law in LAWS}


@pytest.mark.slow
@pytest.mark.parametrize("law", BREAKERS)
def test_law_is_broken_with_a_small_example(write_sum: WriteSum, law: str) -> None:
    failure = broken(write_sum(**BREAKERS[law]), law).failure
    assert failure is not None
    if failure.sample:
        assert len(failure.sample.completion) <= 75, failure.sample


@pytest.mark.slow
@pytest.mark.parametrize(
    ("law", "hooks"), [case[1:] for case in MORE_BREAKERS], ids=[case[0] for case in MORE_BREAKERS]
)
def test_law_is_broken_in_another_way(write_sum: WriteSum, law: str, hooks: dict[str, str | None]) -> None:
    broken(write_sum(**hooks), law)


WARNS_ONCE = """
said = []
@hookimpl
def score(answer, ground_truth):
    if "\\\\" in answer and not said:
        said.append(1)
        print("a backslash")
    return float(answer == str(ground_truth["total"]))
"""


@pytest.mark.slow
def test_what_is_printed_once_is_not_lost_to_another_law(write_sum: WriteSum) -> None:
    report = check_task(load_task(write_sum(score=WARNS_ONCE)), laws=["never-raises", "never-prints"], cases=[])
    assert [result.law.name for result in report.broken] == ["never-prints"]


WARNS = """
@hookimpl
def score(answer, ground_truth):
    warnings.warn("not so", {category})
    return float(answer == str(ground_truth["total"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("category", "status"), [("UserWarning", "broken"), ("DeprecationWarning", "kept")])
def test_warnings_count_where_python_shows_them(write_sum: WriteSum, category: str, status: str) -> None:
    path = write_sum(header=HOOKS["header"] + "import warnings\n", score=WARNS.format(category=category))
    report = check_task(load_task(path), laws=["never-raises", "never-prints"], cases=[])
    assert report["never-prints"].status == status


def test_a_failure_that_does_not_repeat_is_told_as_such(write_sum: WriteSum) -> None:
    problems = [Problem("a mishap", "none")]
    law = Law(
        name="fickle",
        text="",
        reason="",
        problem=lambda bench, sample: problems.pop() if problems else None,
        listed=lambda bench: [Sample("x", None)],
    )
    with Bench(load_task(write_sum())) as bench:
        failure = bench.search(law)
    assert failure is not None
    assert "does not when it is judged again" in failure.got


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_chance_in_a_reward_breaks_laws_and_not_the_check(write_sum: WriteSum, seed: int) -> None:
    path = write_sum(score=SCORE.format("if random.random() < 0.01: return 1.0"))
    report = check_task(load_task(path), laws=["never-raises", "deterministic", "correct-means-right"], seed=seed)
    assert "deterministic" in [result.law.name for result in report.broken]
    assert " / " in report["deterministic"].failure.got or " and " in report["deterministic"].failure.got


FEW = """
@hookimpl
def generate_dataset(split, size, seed, start):
    for number in range(start, start + size):
        yield Item({"numbers": [10, number % 5], "total": 10 + number % 5})
"""


@pytest.mark.slow
def test_a_task_of_few_problems_is_checked_on_what_there_is(write_sum: WriteSum) -> None:
    report = check_task(
        load_task(write_sum(generate_dataset=FEW)),
        laws=["other-seed-other-data", "splits-disjoint", "prompts-complete", "every-item-solvable"],
        cases=[],
    )
    assert [result.status for result in report.results] == ["not checked", "not checked", "kept", "kept"]


FEW_ANSWERS = {
    "score": """
@hookimpl
def score(answer, ground_truth):
    return float(answer.strip("().").lower() == ("yes" if ground_truth["total"] % 2 else "no"))
""",
    "solve": """
@hookimpl
def solve(item):
    return f"<answer>{'yes' if item.ground_truth['total'] % 2 else 'no'}</answer>"
""",
    "make_prompt": """
@hookimpl
def make_prompt(item, template):
    return f"Is the sum of {item.ground_truth['numbers']} odd? Write yes or no between <answer> and </answer>."
""",
    "oracle": None,
    "grammar": None,
}


@pytest.mark.slow
def test_a_task_of_few_answers_has_no_skeleton_key(write_sum: WriteSum) -> None:
    report = check_task(load_task(write_sum(**FEW_ANSWERS)), laws=["no-skeleton-key", "echo-pays-nothing"], cases=[])
    assert [result.status for result in report.results] == ["kept", "kept"]


@pytest.mark.slow
def test_a_good_task_keeps_all_laws(write_sum: WriteSum) -> None:
    report = check_task(load_task(write_sum()), cases=[])
    assert [result.law.name for result in report.results if result.status != "kept"] == ["labelled-cases"]
    assert report.passed


@pytest.mark.slow
def test_a_task_without_optional_hooks_is_told_what_to_add(write_sum: WriteSum) -> None:
    report = check_task(load_task(write_sum(solve=None, oracle=None, grammar=None)), cases=[])
    assert report.passed
    for result in report.results:
        assert result.status == ("not checked" if result.law.needs or result.law.name == "labelled-cases" else "kept")
    assert report["correct-means-right"].why == "no oracle; add the hook `oracle`"
