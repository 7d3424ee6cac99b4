"""A task with every property, "add two numbers", whose hooks a test can break one at a time."""

import pytest

from tests.sdk.conftest import HOOKS as SAY

HOOKS = {
    "header": """
import json, random, re
from tinyzero_sdk import Item, Score, TaskInfo, hookimpl
from tinyzero_sdk.seeds import derive_seed
from tinyzero_sdk.text import last_tagged
""",
    "generate_dataset": """
@hookimpl
def generate_dataset(split, size, seed, start):
    for number in range(start, start + size):
        chance = random.Random(derive_seed("sum", split, seed, number))
        numbers = [chance.randrange(10, 1000), chance.randrange(10, 1000)]
        yield Item({"numbers": numbers, "total": sum(numbers)})
""",
    "make_prompt": """
@hookimpl
def make_prompt(item, template):
    left, right = item.ground_truth["numbers"]
    return f"What is {left} + {right}? Write it between <answer> and </answer>."
""",
    "extract_answer": SAY["extract_answer"],
    "score": """
@hookimpl
def score(answer, ground_truth):
    if not re.fullmatch("[0-9]{1,9}", answer) or str(int(answer)) != answer:
        return Score(0.0, False, "malformed")
    right = int(answer) == ground_truth["total"]
    return Score(1.0 if right else 0.1, right)
""",
    "difficulty": """
@hookimpl
def difficulty(item):
    return len(str(item.ground_truth["total"]))
""",
    "solve": """
@hookimpl
def solve(item):
    left, right = item.ground_truth["numbers"]
    return f"<think>{left} and {right}</think>\\n<answer>{left + right}</answer>"
""",
    "oracle": """
@hookimpl
def oracle(answer, ground_truth):
    return answer == str(ground_truth["numbers"][0] + ground_truth["numbers"][1])
""",
    "grammar": """
@hookimpl
def grammar(item):
    return {"start": ["<digit>", "<digit><start>", str(item.ground_truth["total"])], "digit": [*"0123456789"]}
""",
}


@pytest.fixture
def write_sum(tmp_path):
    """Write that task with some hooks written differently, left out (None) or added, and return its path."""

    def write(**changes):
        path = tmp_path / "sum.py"
        path.write_text("\n".join(code for code in {**HOOKS, **changes}.values() if code), encoding="utf-8")
        return str(path)

    return write
