"""Checking as its users see it: results, waivers, cases, replay, the command line and the pytest plugin."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sdk.testing.broken_tasks import BREAKERS, HOOK
from tinyzero_sdk import load_task
from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.tasks.registry import load_task_from_line
from tinyzero_sdk.testing import PROPERTIES, Checker, check_task, known_cases
from tinyzero_sdk.testing.cases import Case, read_cases, write_cases

EMPTY_IS_REWARDED = BREAKERS["emptiness-pays-nothing"]["score"]
WAIVED = """
@hookimpl
def info():
    return TaskInfo(waivers={waivers})
"""


ARGUMENTS = {"generate_dataset": "", "extract_answer": "completion", "score": "answer, ground_truth"}
ARGUMENTS |= {"oracle": "answer, ground_truth", "is_valid": "ground_truth"}


def returns(hook, value):
    """A hook that returns an expression."""
    return {hook: f"{HOOK}{hook}({ARGUMENTS.get(hook, 'item')}): return {value}"}


@pytest.fixture(autouse=True)
def _folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_a_failure_is_shown_and_its_command_replays_it(run, write_sum):
    path = write_sum(score=EMPTY_IS_REWARDED)
    code, out, err = run("check", path, "--only", "emptiness-pays-nothing", "--save")
    assert code == 1
    assert "  completion    '<answer></answer>'\n" in out
    assert "  got           score 0.1, wrong, for the answer ''\n" in out
    assert all(len(line) < 80 for line in out.splitlines() if "tinyzero check" not in line)
    assert "1 new case in sum.cases.jsonl" in err
    [case] = read_cases(Path("sum.cases.jsonl"))
    assert (case.completion, case.correct) == ("<answer></answer>", False)

    [command] = [line.strip() for line in out.splitlines() if "tinyzero check" in line]
    again = run(*shlex.split(command)[1:])
    assert again[0] == 1
    assert "'<answer></answer>'" in again[1]

    write_sum()
    assert run(*shlex.split(command)[1:])[0] == 0
    code, out, _ = run("check", path, "--only", "labelled-cases", "--json")
    assert (code, json.loads(out)["checks"][0]["tried"]) == (0, 1)


@pytest.mark.slow
def test_waived_checks_are_shown_with_their_reason(write_sum):
    waivers = {"emptiness-pays-nothing": "intended", "prompts-complete": "not needed"}
    path = write_sum(score=EMPTY_IS_REWARDED, info=WAIVED.format(waivers=waivers))
    report = check_task(load_task(path), properties=list(waivers), cases=[])
    assert report.passed
    waived, needless = report["emptiness-pays-nothing"], report["prompts-complete"]
    assert (waived.status, waived.why, waived.is_needless_waiver) == ("waived", "intended", False)
    assert waived.failure
    assert (needless.status, needless.is_needless_waiver) == ("waived", True)


@pytest.mark.parametrize(
    ("waivers", "message"),
    [
        ({"gold-score-full": "because"}, "did you mean gold-scores-full?"),
        ({"gold-scores-full": " "}, "without a reason"),
    ],
)
def test_bad_waivers_are_refused(write_sum, waivers, message):
    with pytest.raises(SettingsError, match=message.replace("?", r"\?")):
        Checker(load_task(write_sum(info=WAIVED.format(waivers=waivers))))


def pytest_in(directory, *words):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", *words]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_pytest_plugin_needs_no_code(write_sum, tmp_path):
    waivers = {"prompts-complete": "not needed"}
    path = write_sum(score=EMPTY_IS_REWARDED, info=WAIVED.format(waivers=waivers), oracle=None)
    empty = tmp_path / "empty"
    empty.mkdir()
    done = pytest_in(empty, "--tinyzero-task", path, "-k", "emptiness or splits or prompts or right-means", "-rs")
    common = sum(not (prop.about_needs or prop.needs_judge) for prop in PROPERTIES)
    assert f"1 failed, 1 passed, 2 skipped, {common - 4} deselected" in done.stdout, done.stdout
    assert "  completion    '<answer></answer>'\n" in done.stdout
    assert "not checked: no oracle; add the hook `oracle`" in done.stdout
    assert "waived, but passes; remove the waiver: not needed" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("countdown task=3", "unknown key 'task'; known here: task.KEY"),
        ("countdown other.key=3", "unknown key"),
        ("countdown 'task.numbers=[3]", "No closing quotation"),
        ("", "not enough values"),
    ],
)
def test_what_is_no_task_is_an_error_in_one_line(words, message):
    with pytest.raises(SettingsError) as error:
        load_task_from_line(words)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


CAUSES = {
    "same-seed-same-data": [
        returns("generate_dataset", "[{'ground_truth': n} for n in range(9)]"),
        returns("generate_dataset", "None"),
        returns("generate_dataset", "[]"),
        returns("generate_dataset", "1 / 0"),
        returns("item_key", "1 / 0"),
    ],
    "prompts-complete": [returns("make_prompt", "1 / 0"), returns("make_prompt", "None"), returns("make_prompt", "''")],
    "difficulty-defined": [returns("difficulty", "1 / 0"), returns("difficulty", "None")],
    "every-item-solvable": [returns("solve", "1 / 0"), returns("solve", "3")],
    "gold-scores-full": [
        returns("solve", "str(item.ground_truth['total'])"),
        *[returns("extract_answer", value) for value in ("1 / 0", "3", "None")],
        *[returns("score", value) for value in ("1 / 0", "'right'", "float('nan')", "2.0", "None")],
    ],
    "correct-means-right": [returns("oracle", "1 / 0"), returns("grammar", "1 / 0"), returns("is_valid", "1 / 0")],
}


@pytest.mark.slow
@pytest.mark.nightly(reason="a minute in all; every change tells one cause once through pytest")
@pytest.mark.parametrize(("prop", "hooks"), [(prop, hooks) for prop, tasks in CAUSES.items() for hooks in tasks])
def test_one_cause_is_one_failure(write_sum, prop, hooks):
    names = {
        *CAUSES,
        "other-seed-other-data",
        "truth-survives-files",
        "never-raises",
        "score-is-valid",
        "right-means-correct",
    }
    report = check_task(load_task(write_sum(**hooks)), properties=[*names], cases=[], examples=5)
    assert [result.prop.name for result in report.failed] == [prop]
    others = {result.why for result in report.results if "the same reason" in result.why}
    assert others <= {f"{prop} fails for the same reason"}


@pytest.mark.slow
def test_the_pytest_plugin_is_light_until_it_is_used():
    code = "import sys, tinyzero_sdk.pytest_plugin; print({'hypothesis', 'tinyzero_sdk.testing'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


SOUND = pytest.mark.nightly(reason="all checks of a task; those of countdown run with README's commands")


@SOUND
def test_the_reward_of_tinyzero_fails_with_a_small_example():
    report = check_task(load_task(Path(__file__).parents[2] / "broken_rewards/tinyzero.py"), cases=[])
    assert report.failed
    for result in report.failed:
        is_small = len(result.failure.sample.completion) < 120
        assert is_small or result.prop.name in ("bounded-time", "bounded-memory", "never-raises"), result  # of numbers


@pytest.mark.slow
@pytest.mark.parametrize("name", ["any_numbers", "eval_power"])
def test_a_hole_near_gold_is_found_soon(name):
    task = load_task(Path(__file__).parents[2] / f"broken_rewards/{name}.py")
    [result] = check_task(task, properties=["correct-means-right"], cases=[]).results
    assert result.status == "failed"
    assert result.tried < 2000  # of 200,000


@SOUND
@pytest.mark.parametrize(
    "words", ["multiply", "countdown", "countdown task.weights.format=0.1", "gsm8k task.source=synthetic"]
)
def test_shipped_tasks_pass(run, words):
    code, out, _ = run("check", *words.split())
    assert code == 0, out


def test_a_file_of_cases_is_read_once(write_sum, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task, case = load_task(write_sum()), Case("<answer>3</answer>", {"numbers": [1, 2], "total": 3}, True)
    for name in ("sum.cases.jsonl", "more.jsonl"):
        write_cases(Path(name), [case])
    assert known_cases(task, Path("sum.cases.jsonl").absolute()) == [case]
    assert known_cases(task, Path("more.jsonl")) == [case, case]


@pytest.mark.slow
def test_a_check_that_was_asked_for_and_cannot_run_is_no_success(run, write_task):
    path = write_task(
        generate_dataset="@hookimpl\ndef generate_dataset(size): return [Item(n % 3) for n in range(size)]"
    )
    code, out, _ = run("check", path, "--only", "labelled-cases")
    assert (code, "not checked labelled-cases" in out) == (1, True)
    code, _, err = run("check", write_task(), "--only", "emptiness-pays-nothing", "--examples", 5)
    assert (code, err) == (0, "")
