"""Every law is kept by a good task, and broken by one that does what the law forbids, with a small example."""

from collections.abc import Callable

import pytest

from tinyzero_sdk import load_task
from tinyzero_sdk.testing import LAWS, Result, check_task

WriteSum = Callable[..., str]

BREAKERS: dict[str, dict[str, str | None]] = {
    "same-seed-same-data": {
        "generate_dataset": """
counter = 0

@hookimpl
def generate_dataset(split, size, seed, start):
    global counter
    for number in range(start, start + size):
        counter += 1
        numbers = [10 + counter % 500, 10 + derive_seed(seed, split, number) % 999]
        yield Item({"numbers": numbers, "total": sum(numbers)})
"""
    },
    "other-seed-other-data": {
        "generate_dataset": """
@hookimpl
def generate_dataset(split, size, seed, start):
    for number in range(start, start + size):
        chance = random.Random(seed + number)
        numbers = [chance.randrange(10, 1000), chance.randrange(10, 1000)]
        yield Item({"numbers": numbers, "total": sum(numbers)})
"""
    },
    "splits-disjoint": {
        "generate_dataset": """
@hookimpl
def has_own_splits():
    return True

@hookimpl
def generate_dataset(split, size, seed, start):
    for number in range(start, start + size):
        chance = random.Random(derive_seed("sum", seed, number))
        numbers = [chance.randrange(10, 1000), chance.randrange(10, 1000)]
        yield Item({"numbers": numbers, "total": sum(numbers)})
"""
    },
    "prompts-complete": {
        "make_prompt": """
@hookimpl
def make_prompt(item, template):
    return f"What is {item.ground_truth['numbers'][0] // 500} plus something?"
"""
    },
    "difficulty-defined": {
        "difficulty": "@hookimpl\ndef difficulty(item): return float('nan') if item.ground_truth['total'] % 3 else 1.0"
    },
    "every-item-solvable": {
        "solve": """
@hookimpl
def solve(item):
    total = item.ground_truth["total"]
    return None if total % 5 == 0 else f"<answer>{total}</answer>"
"""
    },
    "gold-scores-full": {
        "score": """
@hookimpl
def score(answer, ground_truth):
    return float(answer == str(ground_truth["total"]) and len(answer) < 4)
"""
    },
    "formatting-is-free": {
        "extract_answer": """
@hookimpl
def extract_answer(completion):
    found = re.findall(r"<answer>(.*?)</answer>", completion)
    return found[-1].strip(" ") if found else None
"""
    },
    "only-the-answer-counts": {
        "extract_answer": """
@hookimpl
def extract_answer(completion):
    return last_tagged(completion.splitlines()[0]) if len(completion) > 30 else last_tagged(completion)
""",
        "solve": """
@hookimpl
def solve(item):
    return f"<answer>{item.ground_truth['total']}</answer>"
""",
    },
    "last-answer-counts": {
        "extract_answer": """
@hookimpl
def extract_answer(completion):
    rest = completion.rpartition("</think>")[2].partition("<answer>")[2]
    return rest.partition("</answer>")[0].strip() if "</answer>" in rest else None
"""
    },
    "truth-survives-files": {
        "generate_dataset": """
@hookimpl
def generate_dataset(split, size, seed, start):
    for number in range(start, start + size):
        chance = random.Random(derive_seed("sum", split, seed, number))
        numbers = chance.randrange(10, 1000), chance.randrange(10, 1000)
        yield Item({"numbers": numbers, "total": sum(numbers)})
""",
        "score": """
@hookimpl
def score(answer, ground_truth):
    return float(isinstance(ground_truth["numbers"], tuple) and answer == str(ground_truth["total"]))
""",
    },
    "bounded-time": {
        "score": """
@hookimpl
def score(answer, ground_truth):
    while answer.count("(") > 20:
        pass
    return float(answer == str(ground_truth["total"]))
"""
    },
    "bounded-memory": {
        "score": """
@hookimpl
def score(answer, ground_truth):
    if "9**" in answer:
        len(b"x" * (300 << 20))
    return float(answer == str(ground_truth["total"]))
"""
    },
    "never-raises": {
        "score": """
@hookimpl
def score(answer, ground_truth):
    return float(int(answer) == ground_truth["total"] and answer == str(int(answer)))
"""
    },
    "never-prints": {
        "score": """
@hookimpl
def score(answer, ground_truth):
    if answer.endswith("0"):
        import os
        os.write(2, b"a multiple of ten")
    return float(answer == str(ground_truth["total"]))
"""
    },
    "runs-no-code": {
        "score": """
@hookimpl
def score(answer, ground_truth):
    try:
        return float(eval(answer) == ground_truth["total"] and answer == str(ground_truth["total"]))
    except Exception:
        return 0.0
"""
    },
    "keeps-ground-truth": {
        "score": """
@hookimpl
def score(answer, ground_truth):
    ground_truth["numbers"].sort()
    ground_truth["seen"] = True
    return float(answer == str(ground_truth["total"]))
"""
    },
    "deterministic": {
        "score": """
@hookimpl
def score(answer, ground_truth):
    if answer == str(ground_truth["total"]):
        return 1.0
    return 0.1 if hash(answer) % 2 else 0.0
"""
    },
    "score-is-valid": {
        "score": """
@hookimpl
def score(answer, ground_truth):
    return 1.0 if answer == str(ground_truth["total"]) else -0.5 * answer.count("-")
"""
    },
    "wrong-pays-less": {
        "score": """
@hookimpl
def score(answer, ground_truth):
    right = answer == str(ground_truth["total"])
    return Score(1.0 if right or answer.startswith("<") else 0.0, right)
"""
    },
    "one-edit-loses": {
        "score": """
@hookimpl
def score(answer, ground_truth):
    return float(answer.startswith(str(ground_truth["total"])) and len(answer) < 6)
"""
    },
    "correct-means-right": {
        "score": """
@hookimpl
def score(answer, ground_truth):
    return float(answer in (str(ground_truth["total"]), str(ground_truth["total"] + 7)))
"""
    },
    "right-means-correct": {
        "oracle": """
@hookimpl
def oracle(answer, ground_truth):
    return answer.removesuffix(".0") == str(ground_truth["total"])
"""
    },
    "spraying-pays-nothing": {
        "score": """
@hookimpl
def score(answer, ground_truth):
    return float(str(ground_truth["total"]) in answer.split())
"""
    },
    "echo-pays-nothing": {
        "score": """
@hookimpl
def score(answer, ground_truth):
    if answer == str(ground_truth["total"]):
        return 1.0
    return 0.1 * sum(str(number) in answer for number in ground_truth["numbers"])
"""
    },
    "emptiness-pays-nothing": {
        "score": """
@hookimpl
def score(answer, ground_truth):
    return 1.0 if answer == str(ground_truth["total"]) else 0.1
"""
    },
    "leaks-pay-nothing": {
        "extract_answer": """
@hookimpl
def extract_answer(completion):
    return completion
""",
        "score": """
@hookimpl
def score(answer, ground_truth):
    return float(str(ground_truth["total"]) in answer)
""",
        "oracle": None,
        "solve": """
@hookimpl
def solve(item):
    return f"{item.ground_truth['total']}"
""",
    },
}
"""For each law, hooks that break it."""


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
