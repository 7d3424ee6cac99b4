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


def one_of_ten(text):
    try:
        return abs(float(text) - 1.234) < 0.01
    except ValueError:
        return False


@pytest.mark.parametrize(
    ("scorer", "gold", "answer", "unread"),
    [
        (first_number, "120", "not 120", "not"),
        (first_number, "120", "120, not 120", "not"),
        (first_number, "120", "-120", "-"),
        (first_number, "120", "= - 120", "-"),
        (first_number, "120", "≠ 120", "≠"),
        (first_number, "120", "120 or 130", "or"),
        (first_number, "120", "120 130", "130"),
        (first_number, "120", "120\n120", "120"),
        (first_number, "120", "120 thousand", "thousand"),
        (first_number, "120", "120.00", None),
        (first_number, "120", "The answer is **120**.", None),
        (first_number, "120", "$120%", None),
        (letters, "A → B", "not A → B", "not"),
        (letters, "A → B", "¬A → B", "¬"),
        (letters, "A → B", "not B → A", "not"),
        (letters, "A → B", "A → B 7", "7"),
        (letters, "A → B", "B -> A", None),
        (letters, "A → B", "- A, B", None),
        (turns, "R", "R4 R", None),
        (turns, "R", "R2 R3", None),
        (one_of_ten, "1.234", "1.2345", None),
        (one_of_ten, "1.234", "+1.23", None),
    ],
)
def test_a_right_answer_is_read_to_its_end(scorer, gold, answer, unread):
    assert scorer(answer)
    assert find_unread(answer, [gold], scorer) == unread


@pytest.mark.parametrize(
    ("answer", "holds"),
    [("not 12", True), ("12 OR 13", True), ("-12", True), ("127", True), ("12", False), (" 12\n", False), ("1", False)],
)
def test_an_answer_that_holds_the_known_one_and_more(answer, holds):
    assert holds_more(answer, ["12"]) == holds
    assert not holds_more(answer, [])


def test_the_scorer_is_called_a_bounded_number_of_times():
    calls = []
    find_unread(" ".join(map(str, range(10_000))), [], lambda text: bool(calls.append(text)))
    assert len(calls) == 200
