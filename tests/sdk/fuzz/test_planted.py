"""The planted holes are found, each by its name, with a fixed seed and within a bound."""

from pathlib import Path

import pytest

from tests.sdk.fuzz.test_fuzz import until
from tinyzero_sdk import load_task
from tinyzero_sdk.fuzz import fuzz

BROKEN = Path(__file__).parents[2] / "broken_rewards"
HOLES = {
    "eval_power": ("wrong_rewarded", lambda text: "**" in text or "//" in text),
    "split_decimals": ("wrong_rewarded", lambda text: "." in text),
    "last_line_only": ("right_unrewarded", lambda text: "\n" in text),
    "longer_number": ("wrong_rewarded", lambda text: True),
    "float_tolerance": ("wrong_rewarded", lambda text: "/" in text or "÷" in text),
    "any_numbers": ("wrong_rewarded", lambda text: True),
    "first_of_two": ("wrong_rewarded", lambda text: text.count("<answer>") > 1),
    "tinyzero": ("wrong_rewarded", lambda text: True),
    "reasoning_gym": ("wrong_rewarded", lambda text: True),
}


def broken(name):
    return load_task(BROKEN / f"{name}.py")


SLOW_TO_IMPORT = pytest.param("reasoning_gym", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [*sorted({*HOLES} - {"reasoning_gym"}), SLOW_TO_IMPORT])
def test_gold_is_rewarded(name):
    task = broken(name)
    for item in task.dataset("train", 20):
        assert task.score_completion(task.solve(item), item.ground_truth).correct


OTHERS = pytest.mark.nightly(reason="other rewards with faults of the same kinds; mutations change rarely")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("eval_power", "last_line_only", "longer_number", "first_of_two"),
        *(pytest.param(name, marks=OTHERS) for name in ("split_decimals", "float_tolerance", "any_numbers")),
        *(pytest.param(name, marks=OTHERS) for name in ("tinyzero", "reasoning_gym")),
    ],
)
def test_every_planted_hole_is_found(name):
    kind, shows = HOLES[name]
    task = broken(name)

    def is_found(report):
        return any(finding.kind == kind and shows(finding.completion) for finding in report.findings)

    report = fuzz(task, seconds=120, seed=0, timeout=5, on_progress=until(is_found))
    assert is_found(report), report.findings
    for finding in (finding for finding in report.findings if finding.kind == kind):
        assert len(finding.completion) < 120
        assert task.oracle(finding.answer or "", finding.ground_truth) is not None


@pytest.mark.slow
@pytest.mark.nightly(reason="a longer search; every change searches a clean task and each broken reward")
def test_countdown_is_clean():
    report = fuzz(load_task("countdown"), seconds=120, seed=3, on_progress=until(lambda report: report.tried > 50_000))
    assert report.findings == []
    assert report.tried > 50_000
