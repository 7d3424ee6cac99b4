"""What countdown, multiply and gsm8k have in common: the table of scores in the README, labelled cases, and prompts."""

import re
from pathlib import Path

import pytest

from tinyzero_sdk import load_task
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.testing.cases import cases_path, read_cases

PLUGINS = Path(__file__).parents[2] / "plugins"
TASKS = {
    "countdown": load_task("countdown"),
    "multiply": load_task("multiply"),
    "gsm8k": load_task("gsm8k", options={"source": "synthetic"}),
}
GRADED = {name: load_task(name, options={"reward": "tinyzero"}) for name in ("countdown", "multiply")}
READMES = {name: (PLUGINS / name / "README.md").read_text(encoding="utf-8") for name in TASKS}
ROW = re.compile(r"^\| ([-\d ,./]+?) (?:\| (\d+) )?\| (?:`` |`)(.*?)(?: ``|`) \| (ok|wrong|malformed) \|", re.MULTILINE)
TABLE = [(name, *row) for name, readme in READMES.items() for row in ROW.findall(readme)]
CASES = {name: read_cases(cases_path(task)) for name, task in TASKS.items()}


@pytest.mark.parametrize("name", TASKS)
def test_the_readme_has_a_table_of_scores(name):
    rows = [row for row in TABLE if row[0] == name]
    assert {row[-1] for row in rows} == {"ok", "wrong", "malformed"}
    assert len(rows) == len(re.findall(r"^\| [-\d]", READMES[name], re.MULTILINE)) > 60


def ground_truth(name, problem, target):
    """A problem as it is written in the table: its numbers and the target, two factors, or the number itself."""
    if name == "gsm8k":
        return problem
    numbers = [int(number) for number in problem.split()]
    if name == "countdown":
        return {"target": int(target), "numbers": numbers}
    return {"num1": numbers[0], "num2": numbers[1], "product": numbers[0] * numbers[1]}


@pytest.mark.parametrize(("name", "problem", "target", "answer", "reason"), TABLE)
def test_score_of_the_readme(name, problem, target, answer, reason):
    truth = ground_truth(name, problem, target)
    completion = f"<think>Let me see: 3 * 4 = 12.</think>\n<answer>{answer.replace('⏎', chr(10))}</answer>"
    score = TASKS[name].score_completion(completion, truth)
    assert (score.reason, score.correct, score.value) == (reason, reason == "ok", float(reason == "ok"))
    right = TASKS[name].oracle(score.answer or "", truth)
    assert right is score.correct or (right is None and name == "gsm8k")
    if name in GRADED:
        value = {"ok": 1.0, "wrong": 0.1, "malformed": 0.0}[reason]
        assert GRADED[name].score_completion(completion, truth).value == value


@pytest.mark.parametrize("name", TASKS)
def test_there_are_many_cases_of_many_kinds(name):
    cases = CASES[name]
    assert len(cases) >= 320
    assert 0.3 <= sum(case.correct for case in cases) / len(cases) <= 0.7
    assert len({case.note for case in cases}) >= (40 if name == "gsm8k" else 100)
    assert all(case.note for case in cases)
    assert len({(case.completion, str(case.ground_truth)) for case in cases}) == len(cases)


def test_the_readme_of_gsm8k_counts_its_cases():
    assert f"\n{len(CASES['gsm8k'])} labelled completions" in READMES["gsm8k"]


@pytest.mark.parametrize("name", TASKS)
def test_every_case_gets_its_score_from_the_scorer_and_from_the_oracle(name):
    task = TASKS[name]
    for case in CASES[name]:
        score = task.score_completion(case.completion, case.ground_truth)
        assert (score.correct, score.reason == "ok", score.value == 1.0) == (case.correct,) * 3, case
        assert (score.reason == "no_answer") == (score.answer is None), case
        right = None if score.answer is None else task.oracle(score.answer, case.ground_truth)
        assert right is case.correct or (right is None and (score.answer is None or name == "gsm8k")), case
    assert task.error_count == 0


@pytest.mark.parametrize("name", TASKS)
def test_prompts_state_the_problem_and_are_no_answer(name):
    task = TASKS[name]
    item = next(task.dataset("train"))
    stated = {
        "countdown": lambda data: [*data["nums"], data["target"]],
        "multiply": lambda data: [data["num1"], data["num2"]],
        "gsm8k": lambda data: [data["question"]],
    }[name](item.data)
    for template in ("base", "chat", "compact"):
        prompt = str(task.make_prompt(item, template))
        assert all(str(part) in prompt for part in stated)
        assert name != "multiply" or str(item.ground_truth["product"]) not in prompt
        assert name != "gsm8k" or item.data["answer"] not in prompt
        assert not task.score_completion(prompt, item.ground_truth).correct
    with pytest.raises(TinyZeroError, match="base, chat, compact"):
        task.make_prompt(item, "compct")
