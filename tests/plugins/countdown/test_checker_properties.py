"""What the checker calls right is right, and all that is right it calls so: against trees, the oracle and Python."""

import ast
from fractions import Fraction
from operator import add, mul, sub, truediv

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.plugins.countdown.expressions import leaves_of, trees, value_of, write
from tinyzero_countdown.expression import MAX_LENGTH
from tinyzero_countdown.scoring import longest_answer, score_answer
from tinyzero_countdown.second_opinion import is_right
from tinyzero_sdk.records import REASONS

randoms = st.randoms(use_true_random=False)
PIECES = [
    *"0123456789", *"+-*/()[]{}=$ .,^_eE", *"×·⋅∗÷−–", "**", "//", "10", "24", "\n", "\x00", "\u202e", "１", "²",
    r"\times", r"\cdot", r"\div", r"\frac{", "}{", r"\left(", r"\right)", r"\boxed{", r"\(", r"\)", r"\left", "\\",
    r"\,", r"\!", "\u00a0", "\u202f", "\x1c", "`", "$$",
]  # fmt: skip


def truth(target, numbers):
    return {"target": target, "numbers": numbers}


@pytest.mark.slow
@given(trees(), randoms)
def test_every_right_expression_scores_full(tree, random):
    value = value_of(tree)
    assume(value is not None and value.denominator == 1)
    numbers = leaves_of(tree)
    text = write(tree, random, claim=int(value) if random.random() < 0.3 else None)
    assume(len(text) <= longest_answer(int(value), numbers))
    random.shuffle(numbers)
    assert score_answer(text, truth(int(value), numbers)).correct
    assert is_right(text, truth(int(value), numbers))


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(st.integers(0, 10**40), min_size=1, max_size=40), randoms, st.data())
def test_what_can_be_an_answer_is_bounded_by_the_puzzle(numbers, random, data):
    tree = data.draw(trees(numbers))
    value = value_of(tree)
    assume(value is not None and value.denominator == 1)
    text = write(tree, random, claim=int(value))
    if len(text) <= longest_answer(int(value), numbers):
        assert score_answer(text, truth(int(value), numbers)).correct
        assert is_right(text, truth(int(value), numbers))
    assert score_answer(text.replace(str(value), str(-value)), truth(int(value), numbers)).correct is (value == 0)


@pytest.mark.slow
@given(trees(), randoms, st.integers(-200, 200))
def test_another_value_or_other_numbers_are_wrong(tree, random, target):
    text, numbers = write(tree, random), leaves_of(tree)
    assume(len(text) <= MAX_LENGTH)
    if value_of(tree) != target:
        assert score_answer(text, truth(target, numbers)).reason == "wrong"
    other = [*numbers[:-1], numbers[-1] + 1]
    for changed in (other, [*numbers, 1], numbers[:-1]):
        assert score_answer(text, truth(int(value_of(tree) or 0), changed)).reason == "wrong"


@pytest.mark.slow
@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join), st.lists(st.integers(0, 24), max_size=4))
@settings(max_examples=300)
@example("1", [1])  # few others are right
def test_any_text_gets_the_oracle_s_score(text, numbers):
    for target in (1, 10, 24):
        score = score_answer(text, truth(target, numbers))
        right = is_right(text, truth(target, numbers))
        assert right == score.correct == ("correct" in score.parts) == (score.reason == "ok")
        assert score.reason in REASONS


@given(st.text("0123456789+-*/() ", max_size=20))
@settings(max_examples=100)
def test_plain_expressions_mean_what_they_mean_in_python(text):
    numbers, value = _python_value(text)
    if value is None or value.denominator != 1:
        assert not any(score_answer(text, truth(target, numbers)).correct for target in range(30))
    else:
        assert score_answer(text, truth(int(value), numbers)).correct


OPERATORS = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: truediv}


def _python_value(text):
    """Numbers and value by Python's own grammar, without evaluating; None where our language is narrower."""
    numbers: list[int] = []

    def visit(node):
        match node:
            case ast.Constant(value=int() as number) if node.end_col_offset - node.col_offset == len(str(number)):
                numbers.append(number)
                return Fraction(number)
            case ast.BinOp(left, operator, right) if type(operator) in OPERATORS:
                return OPERATORS[type(operator)](visit(left), visit(right))
        raise SyntaxError

    try:
        value = visit(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ZeroDivisionError):
        return numbers, None
    return numbers, value
