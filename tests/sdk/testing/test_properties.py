"""A good task has every property; a task that lacks one fails its check, with a small example."""

import pytest

from tests.sdk.testing.broken_tasks import BREAKERS, MORE_BREAKERS, SCORE
from tests.sdk.testing.conftest import HOOKS
from tinyzero_sdk import load_task
from tinyzero_sdk.testing import PROPERTIES, check_task, sandbox
from tinyzero_sdk.testing.gold import TestCompletion
from tinyzero_sdk.testing.property import Failure, Property
from tinyzero_sdk.testing.task_under_test import TaskUnderTest


@pytest.fixture
def impatient(request, monkeypatch):
    """A scorer that hangs for good is taken to hang sooner, which is most of such a test's time."""
    if request.getfixturevalue("prop") == "bounded-time":
        monkeypatch.setattr(sandbox, "TIMEOUT", 0.3)


def failed(path, prop):
    report = check_task(load_task(path), properties=[prop], cases=[])
    assert not report.passed
    result = report[prop]
    assert result.failure
    return result


def test_every_property_has_a_task_that_lacks_it():
    assert {*BREAKERS, "labelled-cases"} == {prop.name for prop in PROPERTIES}


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("prop", BREAKERS)
def test_a_failed_check_shows_a_small_example(write_sum, prop):
    failure = failed(write_sum(**BREAKERS[prop]), prop).failure
    assert failure is not None
    if failure.sample:
        assert len(failure.sample.completion) <= 75, failure.sample


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("prop", "hooks"), [case[1:] for case in MORE_BREAKERS], ids=[case[0] for case in MORE_BREAKERS]
)
def test_a_check_fails_in_other_ways(write_sum, prop, hooks):
    failed(write_sum(**hooks), prop)


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
def test_what_is_printed_once_is_not_lost_to_another_check(write_sum):
    report = check_task(load_task(write_sum(score=WARNS_ONCE)), properties=["never-raises", "never-prints"], cases=[])
    assert [result.prop.name for result in report.failed] == ["never-prints"]


WARNS = """
@hookimpl
def score(answer, ground_truth):
    warnings.warn("not so", {category})
    return float(answer == str(ground_truth["total"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("category", "status"), [("UserWarning", "failed"), ("DeprecationWarning", "passed")])
def test_warnings_count_where_python_shows_them(write_sum, category, status):
    path = write_sum(header=HOOKS["header"] + "import warnings\n", score=WARNS.format(category=category))
    report = check_task(load_task(path), properties=["never-raises", "never-prints"], cases=[])
    assert report["never-prints"].status == status


def test_a_failure_that_does_not_repeat_is_reported_as_such(write_sum):
    failures = [Failure("a mishap", "none")]
    prop = Property(
        name="fickle",
        text="",
        reason="",
        test=lambda subject, sample, outcome: failures.pop() if failures else None,
        completions=lambda subject: [TestCompletion("x", None)],
    )
    with TaskUnderTest(load_task(write_sum())) as subject:
        failure = subject.search(prop)
    assert failure is not None
    assert "passes when it is tested again" in failure.got


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_chance_in_a_reward_fails_checks_and_does_not_stop_them(write_sum, seed):
    path = write_sum(score=SCORE.format("if random.random() < 0.01: return 1.0"))
    report = check_task(load_task(path), properties=["never-raises", "deterministic", "correct-means-right"], seed=seed)
    assert "deterministic" in [result.prop.name for result in report.failed]
    assert " / " in report["deterministic"].failure.got or " and " in report["deterministic"].failure.got


FEW = """
@hookimpl
def generate_dataset(split, size, seed, start):
    for number in range(start, start + size):
        yield Item({"numbers": [10, number % 5], "total": 10 + number % 5})
"""


@pytest.mark.slow
def test_a_task_of_few_problems_is_checked_on_what_there_is(write_sum):
    report = check_task(
        load_task(write_sum(generate_dataset=FEW)),
        properties=["other-seed-other-data", "splits-disjoint", "prompts-complete", "every-item-solvable"],
        cases=[],
    )
    assert [result.status for result in report.results] == ["not checked", "not checked", "passed", "passed"]


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
def test_a_task_of_few_answers_has_no_skeleton_key(write_sum):
    report = check_task(
        load_task(write_sum(**FEW_ANSWERS)), properties=["no-skeleton-key", "echo-pays-nothing"], cases=[]
    )
    assert [result.status for result in report.results] == ["passed", "passed"]


@pytest.mark.slow
def test_a_good_task_passes_all_checks(write_sum):
    report = check_task(load_task(write_sum()), cases=[])
    assert [result.prop.name for result in report.results if result.status != "passed"] == ["labelled-cases"]
    assert report.passed


@pytest.mark.slow
def test_a_task_without_optional_hooks_learns_what_to_add(write_sum):
    report = check_task(load_task(write_sum(solve=None, oracle=None, grammar=None)), cases=[])
    assert report.passed
    for result in report.results:
        assert result.status == (
            "not checked" if result.prop.needs or result.prop.name == "labelled-cases" else "passed"
        )
    assert report["correct-means-right"].why == "no oracle; add the hook `oracle`"
