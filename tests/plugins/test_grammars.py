"""The rules that countdown and multiply give a fuzzer: that they end, and reach what rewards trip over."""

import random
import re

import pytest

from tinyzero_sdk import load_task
from tinyzero_sdk.testing.grammar import Grammar

REACHED = {
    "countdown": [r"\*\*", r"//", r"\d\.\d", r"\de\d", r"\^", r"[*+(]-\d", r"0x", r"\d_\d", r", ", r" or ", r"\n"],
    "multiply": [r"\*\*", r"/", r"\d\.\d", r"\de\d", r"\^", r"--", r"0x", r"\d_\d", r", ", r" or ", r"\n"],
}
COMMON = [r"\\boxed", r"\$", r"\\times", "[٠-٩]", "[０-９]", "²", r"\.$", "=", "\u202e", "\x00"]


@pytest.mark.slow
@pytest.mark.parametrize("name", REACHED)
def test_the_rules_reach_what_rewards_trip_over_and_both_scores_agree_on_it(name):
    task, rng = load_task(name), random.Random(0)
    item = next(iter(task.dataset("train", 1)))
    rules = task.grammar(item)
    assert {ref for texts in rules.values() for text in texts for ref in re.findall(r"<([^<>]+)>", text)} <= set(rules)
    grammar = Grammar(rules)
    answers = {grammar.draw(rng.randrange) for _ in range(6000)}
    for pattern in (*REACHED[name], *COMMON):
        assert any(re.search(pattern, answer) for answer in answers), pattern
    scores = {answer: task.score(answer, item.ground_truth) for answer in answers}
    assert {score.reason for score in scores.values()} == {"ok", "wrong", "malformed"}
    for answer, score in scores.items():
        assert task.oracle(answer, item.ground_truth) is score.correct, answer
    product = item.ground_truth.get("product")
    if product is not None:
        assert any(re.search(rf"{product}\d|\d{product}", answer) for answer in answers)  # longer numbers
