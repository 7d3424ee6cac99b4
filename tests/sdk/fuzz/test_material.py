"""The parts of a search: grammars, mutations, presentations, and the guess at a reward."""

import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_sdk.fuzz import presentations
from tinyzero_sdk.fuzz.reward_guess import guess_value
from tinyzero_sdk.records import Item
from tinyzero_sdk.testing.completions import LONGEST, MUTATORS, Stock, mutate, near_miss, tokenize
from tinyzero_sdk.testing.gold import Gold
from tinyzero_sdk.testing.grammar import Grammar

ITEM = Item(1)
RULES = {"sum": ["<n>", "<n> + <sum>", "(<sum>)"], "n": ["1", "20", "<m> <n"], "never": ["<never>"]}


@given(
    st.integers(),
    st.dictionaries(st.sampled_from("abc"), st.lists(st.text("abc<>1", max_size=8), min_size=1), min_size=1),
)
def test_any_grammar_ends_and_depends_on_the_generator_alone(seed, rules):
    grammar = Grammar(rules)
    drawn = grammar.draw(random.Random(seed).randrange)
    assert drawn == Grammar(rules).draw(random.Random(seed).randrange)
    assert len(drawn) < 10**6


def test_a_grammar_gives_what_its_rules_say_and_leaves_other_text_alone():
    drawn = {Grammar(RULES).draw(random.Random(seed).randrange) for seed in range(300)}
    assert {"1", "20", "(1)", "1 + 1", "<m> <n"} <= drawn
    assert all(set(text) <= set("120 +()<mn>") for text in drawn)
    assert Grammar({"a": ["x<a>"]}).draw(random.Random(0).randrange) == "x" * 12  # a rule that never ends


@given(st.text())
def test_tokens_joined_are_the_text(text):
    assert "".join(tokenize(text)) == text


@given(st.text(), st.integers())
def test_every_mutation_of_any_text_is_a_text_and_repeats(text, seed):
    for mutator in MUTATORS:
        tokens = tokenize(text) or ["1"]
        once, again = (mutator([*tokens], Stock(random.Random(seed).randrange)) for _ in range(2))
        assert once == again
        assert isinstance("".join(once), str)
    assert len(mutate(text, Stock(random.Random(seed).randrange))) <= LONGEST
    assert near_miss(text, [], random.Random(seed).randrange) == near_miss(text, [], random.Random(seed).randrange)


@pytest.mark.parametrize("mutator", sorted({*MUTATORS}, key=lambda mutator: mutator.__name__), ids=lambda m: m.__name__)
def test_every_mutation_changes_something(mutator):
    rng = random.Random(0)
    stock = Stock(rng.randrange, ("3", "12"), ("7 * 8",))
    assert any("".join(mutator(tokenize("(17 + 4) / 35"), stock)) != "(17 + 4) / 35" for _ in range(20))


@given(st.text("0123456789 +", min_size=1), st.text("0123456789", min_size=1), st.integers())
def test_the_answer_that_counts_comes_last(right, wrong, seed):
    gold = Gold(ITEM, "<answer>", "1", "</answer>")
    rng = random.Random(seed)
    for attempt, intended in (
        (presentations.honest(gold, right, wrong, rng), right),
        (presentations.spray(gold, right, wrong, rng), wrong),
    ):
        assert attempt.intended == intended
        last = attempt.text.rpartition("<answer>")[2].partition("</answer>")[0]
        assert last.strip() == intended.strip()
        assert attempt.plain == gold.with_answer(intended)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(17 - 5) + 3 = 15", 15), ("4.5*2", 9), ("2**3-4", 4), ("-2**2", -4), ("2**3**0", 2), ("7//2+1", 4),
        ("1 − 2 × 3 ÷ 4", Fraction(-1, 2)), ("5%3 # rest", 2), (".5", Fraction(1, 2)),
        *((text, None) for text in ("", "1/0", "x", "1 2", "(1", "1)", "9**9**9", "1" * 81, "٣", "1+", "99**-1**.5")),
    ],
)  # fmt: skip
def test_a_careless_reader(text, value):
    assert guess_value(text) == value


@given(st.text("0123456789.+-*/%^()[] =", max_size=90))
def test_the_careless_reader_survives_everything(text):
    value = guess_value(text)
    assert value is None or abs(value) <= 10**9
