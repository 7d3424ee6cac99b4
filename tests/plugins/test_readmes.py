"""What countdown, multiply and gsm8k have in common: the table of scores in the README, labelled cases, prompts, and
answers and ground truths that are malformed, of the wrong type or hostile.
"""

import re
from pathlib import Path
from random import Random

import pytest

from tests.relative_time import relative_time
from tinyzero_sdk import load_task
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.testing.cases import cases_path, read_cases

PLUGINS = Path(__file__).parents[2] / "plugins"
TASKS = {
    "countdown": load_task("countdown"),
    "multiply": load_task("multiply"),
    "gsm8k": load_task("gsm8k", options={"source": "synthetic"}),
}
TINYZERO = {"weights": {"correct": 0.9, "format": 0.1}}
GRADED = {name: load_task(name, options=TINYZERO) for name in ("countdown", "multiply")}
READMES = {name: (PLUGINS / name / "README.md").read_text(encoding="utf-8") for name in TASKS}
ROW = re.compile(
    r"^\| ([-\d ,./]+?) (?:\| (-?\d+) )?\| (?:`` |`)(.*?)(?: ``|`) \| (ok|wrong|malformed) \|", re.MULTILINE
)
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


TRUTHS = {
    "countdown": {"target": 15, "numbers": [5, 17, 3]},
    "multiply": {"num1": 123, "num2": 456, "product": 56088},
    "gsm8k": "42",
}
MALFORMED = {
    "countdown": [
        *("17-5+3\x00", "\u202e17-5+3", "17\u200b-5+3", "17-5+\ud8003", "17-5\\,\u200b+3", "17-5+-3", "17-5+3=--15"),
        *("17-5" + " " * 300 + "+3", "1" * 300),
    ],
    "multiply": [
        *("56088\x00", "\u202e56088", "56\u200b088", "560\ud80088", "1" * 129, "+ 56088", "56088 apples", "1e999999"),
        *("=", "==", ".", "+", "$$", "**", r"\boxed{}", "5.6088 × 10^4", "56088/1", "56088%", "true", "nan"),
    ],
    "gsm8k": [
        *("42\x00", "\x0042", "\u202e24", "4\u200b2", "42\u0338", "42\ud800", "\ufeff42", "42\x1b[0m", "\u0664\u0662"),
        *("9" * 41, "1e41", "1e-41", "10^999999999", "1" * 5000, "42" + " " * 512 + "x", "42" + "." * 512, "Ⅻ 42"),
        *("(" * 200 + "42" + ")" * 400, "1/" + "0" * 30, "\\frac" * 100, "{" * 300 + "42"),
    ],
}


@pytest.mark.parametrize("name", TASKS)
def test_what_a_table_cannot_show_is_malformed_too(name):
    for answer in MALFORMED[name]:
        assert TASKS[name].score(answer, TRUTHS[name]).reason == "malformed", answer
        right = TASKS[name].oracle(answer, TRUTHS[name])
        assert right is False or (right is None and name == "gsm8k"), answer


NUMBERS = [3, 7, 12]
WRONG_TYPES = {
    "countdown": [
        *({"target": 48, "numbers": numbers} for numbers in (["3", "7", "12"], "3 7 12", 3)),
        *({"target": "48", "numbers": numbers} for numbers in (["3", "7", "12"], NUMBERS)),
        *({"target": target, "numbers": [True, 48]} for target in (48, True)),
        {"target": None, "numbers": NUMBERS},
        {"target": 48, "numbers": {3: 7, 12: 1}},
        *("48", 48, None, NUMBERS, {}, {"target": 48}),
    ],
    "multiply": [
        *(None, 56088.5, "56,088", "56_088", "５６０８８", "٥٦٠٨٨", [123, 456], {"product": 56088}),
        *(True, {"num1": True, "num2": 56088, "product": 56088}),
        *({"num1": "123", "num2": 456, "product": 56088}, {"num1": 123, "num2": 456, "product": 56089}),
    ],
    "gsm8k": ["forty-two", "", None, True, [42, 43], ("42",), b"42", {"target": 42}, "42 or 43", float("nan")],
}


@pytest.mark.parametrize(
    ("name", "answers"),
    [
        ("countdown", ["(7-3)*12", "(7-3)*12=48", "True*48", "48/True", "?"]),
        ("multiply", ["56088", "56089", "?"]),
        ("gsm8k", ["42", "True", "1", "nan", ""]),
    ],
)
def test_a_ground_truth_of_the_wrong_type_is_an_error_and_not_a_wrong_answer(name, answers):
    task = load_task(name, options={"source": "synthetic"} if name == "gsm8k" else {})
    for truth in WRONG_TYPES[name]:
        for answer in answers:
            assert task.score_completion(f"<answer>{answer}</answer>", truth).reason == "error", (truth, answer)
        assert not task.is_valid(truth)


PIECES = [
    "<answer>", "</answer>", "<think>", "</think>", "\\boxed{", "\\boxed", "\\frac{", "\\text{", "\\left(",
    *"{}#$*`()[]\\<", "####", "#### ", "\n", "\r\n", "\t", " ", "$$", "**", "</", "<|", "|>", "<|a", "</s>", "<pad>",
    *"19xax=+-/~%", "12,345", "0.", "1/", "e9", "10^", "apples ", "answer ", "Natalia ", "is ", "not ", "and ",
    "per ", "n't", *"é½²", "\x00", "\u202e", "\ud800",
]  # fmt: skip
MEGABYTES = 10**7


def hostile(random, depth=3):
    """A text of tokens that the readers know: repeated, nested in each other, interleaved."""
    if depth == 0:
        return random.choice(PIECES)
    parts = [hostile(random, depth - 1) for _ in range(random.randint(1, 3))]
    count = random.choice([2, 120, 30_000, MEGABYTES])

    def repeated(text, count):
        return (text * min(count, MEGABYTES // len(text) + 1))[:MEGABYTES]

    match random.randrange(3):
        case 0:
            return repeated("".join(parts), count)
        case 1:
            return repeated(parts[0], count // 2) + random.choice(PIECES) + repeated(parts[-1], count // 2)
    return "".join(parts)[:MEGABYTES]


def time_of(name, text):
    """The time of an answer's reading and scoring in tens of milliseconds, on a machine like the benchmarks'."""
    hooks = TASKS[name].plugin_manager.get_plugin("task")

    def call():
        answer = hooks.extract_answer(text)
        if answer is not None:
            hooks.score(answer, TRUTHS[name])

    return relative_time(call, attempts=1) / 2


@pytest.mark.slow
def test_ten_megabytes_of_any_text_take_less_than_fifty_milliseconds():
    for seed in range(60):
        random = Random(seed)
        text = (hostile(random) + hostile(random))[:MEGABYTES]
        text = text.rjust(MEGABYTES) if seed % 4 == 0 else (text * (MEGABYTES // len(text) + 1))[-MEGABYTES:]
        text += random.choice(["", "", "</answer>", "}", "\\boxed{", "\n#### 42", "</s>\n"])
        for name in TASKS:
            assert any(time_of(name, text) < 5 for _ in range(4)), (name, seed, text[:60], text[-60:])


@pytest.mark.parametrize("name", TASKS)
def test_an_answer_behind_reasoning_of_any_length_is_found(name):
    gold = {"countdown": "17-5+3", "multiply": "56088", "gsm8k": "42"}[name]
    for reasoning in ("Let me see. " * 10**5, "{" * 10**6, "<answer>1</answer> #### 7\n" * 10**5 + "</think>"):
        assert TASKS[name].score_completion(f"{reasoning}<answer>{gold}</answer>", TRUTHS[name]).correct
