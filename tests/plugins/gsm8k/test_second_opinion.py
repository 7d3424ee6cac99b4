"""Scorer and second opinion agree wherever the latter decides, on mutated answers as on the grammar's."""

import random
import re
from pathlib import Path

import pytest

from tinyzero_gsm8k import second_opinion
from tinyzero_gsm8k.guesses import rules
from tinyzero_gsm8k.numbers import read_number
from tinyzero_gsm8k.second_opinion import _DENIED, _SAID_FIRST, _SAID_LAST, _THINGS, is_right
from tinyzero_sdk import load_task
from tinyzero_sdk.records import Item

TRUTHS = ["42", "7", "1042", "3.5", "0", "-5", "1000000", "12"]
PIECES = [
    *"0123456789.,-+$%/ eExX*()=:!?'\"abkMdollars\n^°×·−–½²≈\t",
    *("\\", "{", "}", " or ", " and ", " not ", "10^", r"\frac", r"\boxed{", " million", "n't", "minus ", "**", "US$"),
    *(" a.m.", "~", "~km", "Rs. ", "¢", "/hr", " per lb", "0,", "m people", "Hundreds: ", " in Debt", "How much is "),
    *("$ million", "Natalia has ", " / ", "Nobody ", "кm", " thousands"),
]


def answer(source, truth):
    """An answer of the grammar, with some pieces put in, taken out or replaced."""
    grammar = rules(truth)

    def expand(name):
        return re.sub(r"<(\w+)>", lambda match: expand(match[1]), source.choice(grammar[name]))

    text = expand("answer")
    for _ in range(source.choice([0, 0, 1, 1, 2, 3, 5])):
        place, piece = source.randrange(len(text) + 1), source.choice(PIECES)
        text = text[:place] + source.choice(["", piece]) + text[place + source.choice([0, 1]) :]
    return text


def compare(count, seed):
    """Compares the two on `count` answers; returns how many the second opinion could decide."""
    source, judged = random.Random(seed), 0
    for _ in range(count):
        truth = source.choice(TRUTHS)
        text = answer(source, truth)
        number = read_number(text)
        if number is not None and number.denominator == 1 and source.random() < 0.5:
            truth = str(number)  # so that odd spellings are right, too
        verdict = is_right(text, truth)
        if verdict is not None:
            assert verdict is (number is not None and number == read_number(truth)), (text, truth, number)
            judged += 1
    return judged


MANY = pytest.mark.nightly(reason="450,000 answers more; every change compares the first 4,000")


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "count"), [(0, 4_000), *(pytest.param(n, 150_000, marks=MANY) for n in (1, 2, 3))])
def test_the_two_agree(seed, count):
    assert compare(count, seed) > 0.6 * count


@pytest.mark.slow
def test_the_two_agree_on_every_phrase_that_the_second_opinion_knows():
    judged = 0
    for first in sorted(_SAID_FIRST):
        for thing in ["", *sorted(_THINGS)[::23]]:
            for last in sorted(_SAID_LAST):
                text = f"{first} 42 {thing} {last}".strip()
                if is_right(text, "42"):
                    assert read_number(text) == 42, text
                    judged += 1
    assert judged > 500


def test_what_the_second_opinion_denies_the_scorer_refuses():
    for word in sorted(_DENIED):
        for text in (f"{word} 42", f"42 {word}", f"42 apples {word}", f"She has 42 {word} apples", f"the {word} is 42"):
            assert read_number(text) != 42, text
            assert is_right(text, "42") is not True, text


def test_the_two_share_no_list():
    assert "tinyzero_gsm8k" not in (Path(second_opinion.__file__).read_text(encoding="utf-8").partition('"""\n\n')[2])


def test_the_second_opinion_can_judge_most_spellings():
    for text in (
        *("1,042", "$42", "18 dollars", "3/4", "1 1/2", "1.5e3", "1.5 × 10^3", r"\boxed{42}", r"\frac{3}{4}", "−5"),
        *("2½", r"2\frac{1}{2}", r"2\tfrac12", "5×10³", r"4.2 \times 10^1", r"42 \text{ apples}", "42 cm^2", "42 m²"),
        *("–5", "{42}", "She has 42 apples left.", "The total cost is $42."),
    ):
        assert is_right(text, str(read_number(text))) is True, text
        assert is_right(text, "17") is False, text


def test_grammar_reaches_right_and_wrong_answers():
    task = load_task("gsm8k", options={"source": "synthetic"})
    item = Item("42", {"question": "?", "answer": "#### 42"})
    grammar = task.grammar(item)
    named = {name for texts in grammar.values() for text in texts for name in re.findall(r"<(\w+)>", text)}
    assert named <= set(grammar)
    source = random.Random(0)
    reasons = {task.score(answer(source, "42"), "42").reason for _ in range(300)}
    assert reasons == {"ok", "wrong", "malformed"}
