"""A good task has every property; a task that lacks one fails its check, with a small example."""

import re
from pathlib import Path

import pytest

from tests.sdk.testing.broken_tasks import BREAKERS, MORE_BREAKERS, SCORE, scores
from tests.sdk.testing.conftest import HOOKS
from tinyzero_sdk import load_task
from tinyzero_sdk.testing import PROPERTIES, check_task, sandbox
from tinyzero_sdk.testing.gold import TestCompletion
from tinyzero_sdk.testing.properties import robustness
from tinyzero_sdk.testing.property import Failure, Property
from tinyzero_sdk.testing.task_under_test import TaskUnderTest

DOCUMENT = (Path(__file__).parents[3] / "docs/tasks/conformance.md").read_text(encoding="utf-8")


@pytest.fixture
def limits(request, monkeypatch):
    """A scorer that hangs for good is taken to hang sooner, and many calls may take long on a busy machine."""
    monkeypatch.setattr(robustness, "_MANY_SECONDS", 60.0)
    seconds = {"bounded-time": 0.3, "bounded-memory": 60.0}  # what hangs is not measured, and that is another property
    monkeypatch.setattr(sandbox, "TIMEOUT", seconds.get(request.getfixturevalue("prop"), sandbox.TIMEOUT))


def failure_of(path, prop):
    report = check_task(load_task(path), properties=[prop], cases=[])
    assert not report.passed
    return report[prop].failure


def test_every_property_has_a_task_that_lacks_it_and_a_section_in_the_documentation():
    names = [prop.name for prop in PROPERTIES]
    assert {*BREAKERS, "labelled-cases"} == {*names}
    assert re.findall(r"^### `(.+)`$", DOCUMENT, re.MULTILINE) == names


@pytest.mark.parametrize("prop", PROPERTIES, ids=lambda prop: prop.name)
def test_property_is_documented(prop):
    section = " ".join(DOCUMENT.partition(f"\n### `{prop.name}`\n")[2].partition("\n### ")[0].split())
    assert prop.text in section
    assert prop.reason in section
    assert all(f"`{hook}`" in section.partition("*Needs*")[2] for hook in prop.needs)
    assert bool(prop.examine or prop.completions or prop.draw)


@pytest.mark.slow
@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("prop", BREAKERS)
def test_a_failed_check_shows_a_small_example(write_sum, prop):
    failure = failure_of(write_sum(**BREAKERS[prop]), prop)
    assert failure.sample is None or len(failure.sample.completion) <= 75, failure.sample


@pytest.mark.slow
@pytest.mark.nightly(reason="each check has failed once in the test above")
@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize(("prop", "hooks"), MORE_BREAKERS.values(), ids=MORE_BREAKERS)
def test_a_check_fails_in_other_ways(write_sum, prop, hooks):
    assert failure_of(write_sum(**hooks), prop)


@pytest.mark.slow
@pytest.mark.nightly(reason="five whole checks; every change checks sound tasks")
@pytest.mark.parametrize(
    ("header", "statement"),
    [
        ("from time import monotonic", "end = monotonic() + 0.9\n    if monotonic() > end: return 0.5"),
        ("import time", "start = time.time()\n    if time.time() - start > 0.9: return 0.5"),
        ("from datetime import datetime", "start = datetime.now()\n    if (datetime.now() - start).days: return 0.5"),
        ("from datetime import datetime", "datetime.strptime('2026-01-31', '%Y-%m-%d')"),
        ("", "random.seed(answer); random.random()"),
    ],
)
def test_what_no_score_depends_on_may_be_read(write_sum, header, statement):
    report = check_task(load_task(write_sum(**scores(statement, header))), properties=["deterministic"], cases=[])
    assert report["deterministic"].failure is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "status"),
    [
        (r'if "\\" in answer and not printed: printed.append(print("a backslash"))', "failed"),
        ('warnings.warn("not so", UserWarning)', "failed"),
        ('warnings.warn("not so", DeprecationWarning)', "passed"),
    ],
)
def test_what_is_printed_once_counts_whichever_check_comes_first(write_sum, statement, status):
    """Warnings count where Python shows them."""
    path = write_sum(header=HOOKS["header"] + "import warnings\nprinted = []\n", score=SCORE.format(statement))
    report = check_task(load_task(path), properties=["never-raises", "never-prints"], cases=[])
    assert (report["never-raises"].status, report["never-prints"].status) == ("passed", status)


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


FEW = """
@hookimpl
def generate_dataset(split, size, seed, start):
    for number in range(start, start + size):
        yield Item({"numbers": [10, number % 2], "total": 10 + number % 2})
"""


@pytest.mark.slow
def test_a_task_of_few_problems_is_checked_on_what_there_is(write_sum):
    report = check_task(
        load_task(write_sum(generate_dataset=FEW)),
        properties=["other-seed-other-data", "splits-disjoint", "prompts-complete", "every-item-solvable"],
        cases=[],
    )
    assert [result.status for result in report.results] == ["not checked", "failed", "passed", "passed"]
    assert "no problem is held out: the task has" in report.failed[0].describe()


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
    report = check_task(load_task(write_sum()), cases=[], examples=50)
    assert [result.prop.name for result in report.results if result.status != "passed"] == ["labelled-cases"]
    assert report.passed


RARE = """
@hookimpl
def score_group(answers, scores):
    return [score.value / answers.count(answer) for answer, score in zip(answers, scores)]
"""
RANKS = """
@hookimpl
def score_group(answers, scores):
    shorter = [sum(len(other) < len(answer) for other in answers) for answer in answers]
    return [score.value / (1 + rank) for rank, score in zip(shorter, scores)]
"""


@pytest.mark.slow
@pytest.mark.parametrize("code", [RARE, RANKS], ids=["rare", "ranks"])
def test_sound_comparisons_pass_the_checks_of_groups(write_sum, code):
    names = [prop.name for prop in PROPERTIES if prop.about_needs]
    report = check_task(load_task(write_sum(score_group=code)), properties=names, cases=[], examples=50)
    assert {result.prop.name: (result.status, result.failure) for result in report.results} == dict.fromkeys(
        names, ("passed", None)
    )


@pytest.mark.slow
def test_a_task_without_optional_hooks_learns_what_to_add(write_sum):
    report = check_task(load_task(write_sum(solve=None, oracle=None, grammar=None)), cases=[], examples=50)
    assert report.passed
    common = [prop for prop in PROPERTIES if not (prop.about_needs or prop.needs_judge)]
    unknown = {"labelled-cases", "numbers-count", "parts-count", "order-counts", "letters-count"}  # no right answer is
    skipped = [prop.name for prop in common if prop.needs or prop.name in unknown]
    assert [result.prop.name for result in report.results if result.status == "not checked"] == skipped
    assert report["correct-means-right"].why == "no oracle; add the hook `oracle`"
