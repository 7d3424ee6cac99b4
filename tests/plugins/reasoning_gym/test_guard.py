"""The guard around foreign scorers, on fake ones; `test_tasks.py` has those of reasoning-gym."""

import re

import pytest

from tinyzero_reasoning_gym.guard import find_unread, holds_more


def first_number(text):
    """As `gsm_symbolic` reads."""
    found = re.search(r"\b-?\d+(?:\.\d+)?\b", text)
    return found is not None and float(found[0]) == 120


def letters(text):
    """As `quantum_lock` and `sokoban` read."""
    return re.findall("[A-C]", text) in (["A", "B"], ["B", "A"])


def turns(text):
    """As `rubiks_cube` reads: quarter turns of one side, of which any number that leaves one is right."""
    moves = re.fullmatch(r"(?:R\d* ?)+", text) and re.findall(r"R(\d*)", text)
    return bool(moves) and sum(int(move or 1) for move in moves) % 4 == 1


def within_a_hundredth(text):
    try:
        return abs(float(text) - 1.234) < 0.01
    except ValueError:
        return False


@pytest.mark.parametrize(
    ("scorer", "gold", "answers"),
    [
        (first_number, "120", {
            "not 120": "not", "120, not 120": "not", "-120": "-", "= - 120": "-", "≠ 120": "≠", "120 or 130": "or",
            "120 130": "130", "120\n120": "120", "120 thousand": "thousand", "120.00": None, "$120%": None,
            "The answer is **120**.": None,
        }),
        (letters, "A → B", {
            "not A → B": "not", "¬A → B": "¬", "not B → A": "not", "A → B 7": "7", "B -> A": None, "- A, B": None,
        }),
        (turns, "R", {"R4 R": None, "R2 R3": None}),
        (within_a_hundredth, "1.234", {"1.2345": None, "+1.23": None}),
    ],
)  # fmt: skip
def test_a_right_answer_is_read_to_its_end(scorer, gold, answers):
    assert all(map(scorer, answers))
    assert {answer: find_unread(answer, [gold], scorer) for answer in answers} == answers


def test_an_answer_that_holds_the_known_one_and_more():
    assert all(holds_more(answer, ["12"]) for answer in ("not 12", "12 OR 13", "-12", "127"))
    assert not any(holds_more(answer, known) for answer in ("12", " 12\n", "1") for known in (["12"], []))


def test_the_scorer_is_called_a_bounded_number_of_times():
    calls = []
    find_unread(" ".join(map(str, range(10_000))), [], lambda text: bool(calls.append(text)))
    assert len(calls) == 200
