"""Changes to an answer: each takes its tokens and returns others. Nothing here knows a task.

Most changes keep an answer readable, so that they reach the code behind the reader; those that break it come from
`SYMBOLS` and `STRANGE`. All randomness is the given generator's.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Tokens = list[str]
tokenize = re.compile(r"[0-9]+|[A-Za-z]+|[ ]+|.", re.DOTALL).findall
"""Runs of digits, of letters and of spaces; anything else by itself. Joined they are the text again."""

SYMBOLS = (
    *("+", "-", "*", "/", "**", "//", ".", ",", "=", "%", "^", "!", "(", ")", "#", "_", "e", "E", "j", " ", "\n", "|"),
    *("&", "~", "<<", ">>", "==", "$", "\\", "×", "÷", "−", "·", ":", ";", "'", '"'),
)
"""What may stand between two numbers in one language or another."""

STRANGE = (
    *("\x00", "\t", "\r\n", "\u200b", "\u00a0", "\u2028", "\u202e", "\ufeff", "\ud800", "π", "½", "²", "①", "٣", "５"),
    *("Ⅳ", "∞", "nan", "inf", "None", "True", "x", "\\frac{", "\\boxed{", "}", "{", "[", "]", "$$", "**", "<answer>"),
    *("</answer>", "</think>", "####", "1e999", "0x", "0b1", "1_", "1/0", "or", "and", "if"),
)
"""What a reader may take for something it is not."""

_JOINTS = ("", ".", ".", ",", "_", "e", " ", "**", "//", "^", "%", "0")
_OPERATORS = ("+", "-", "*", "/")
_OTHER_DIGITS = [{ord("0") + digit: zero + digit for digit in range(10)} for zero in (0x660, 0x966, 0xFF10, 0x1D7CE)]
_SPELLINGS: tuple[Callable[[str], str], ...] = (
    lambda n: f"+{n}",
    lambda n: f"-{n}",
    lambda n: f"0{n}",
    lambda n: f"{n}.",
    lambda n: f"{n}.0",
    lambda n: f".{n}",
    lambda n: f"{n}e0",
    lambda n: f"{n}00e-2",
    lambda n: f"{n[0]},{n[1:]}",
    lambda n: f"{n[:-3]},{n[-3:]}",
    lambda n: f"{n[0]}_{n[1:]}",
    lambda n: f"{n}/1",
    lambda n: f"({n})",
    lambda n: f"{{{n}}}",
    lambda n: f"${n}",
    lambda n: f"{n}%",
    lambda n: f"{n}.0000001",
    lambda n: f"{n}.0009",
    lambda n: f"{n}e1",
    lambda n: f"0x{_whole_part(n):x}",
    lambda n: f"{_whole_part(n) - 1}.9999999",
    lambda n: f"abs({n})",
    lambda n: f"int('{n}')",
    lambda n: n[::-1],
    *(lambda n, table=table: n.translate(table) for table in _OTHER_DIGITS),
)


def _whole_part(number: str) -> int:
    return int(number.partition(".")[0][:18])


@dataclass(slots=True)
class Stock:
    """What mutations are made from."""

    rng: random.Random
    numbers: Sequence[str] = ("0", "1")
    """The ground truth's, and a few of use everywhere."""
    answers: Sequence[str] = field(default_factory=lambda: ("1",))
    """Others to splice with."""

    def below(self, limit: int) -> int:
        return int(self.rng.random() * limit)

    def pick(self, things: Sequence[str]) -> str:
        return things[int(self.rng.random() * len(things))]


def _number_places(tokens: Tokens) -> list[int]:
    return [place for place, token in enumerate(tokens) if "0" <= token[0] <= "9"]


def _symbol_places(tokens: Tokens) -> list[int]:
    return [place for place, token in enumerate(tokens) if not (token[0].isalnum() or token[0] in " ()")]


def change_number(tokens: Tokens, stock: Stock) -> Tokens:
    """Another of the problem's numbers in the place of one."""
    places = _number_places(tokens)
    if places:
        tokens[places[stock.below(len(places))]] = stock.pick(stock.numbers)
    return tokens


def change_digit(tokens: Tokens, stock: Stock) -> Tokens:
    """A digit put in, taken out or replaced."""
    places = _number_places(tokens)
    if places:
        place = places[stock.below(len(places))]
        digits, at, width = tokens[place], stock.below(len(tokens[place]) + 1), stock.below(2)
        tokens[place] = digits[:at] + stock.pick("0123456789")[: stock.below(3)] + digits[at + width :] or "0"
    return tokens


def lengthen_two(tokens: Tokens, stock: Stock) -> Tokens:
    """The same digit before, or behind, two of the numbers: where they cancel out, the result stays."""
    places = _number_places(tokens)
    if len(places) > 1:
        digit, in_front = stock.pick("123456789"), stock.rng.random() < 0.5
        for place in stock.rng.sample(places, 2):
            tokens[place] = digit + tokens[place] if in_front else tokens[place] + digit
    return tokens


def swap_numbers(tokens: Tokens, stock: Stock) -> Tokens:
    """Two numbers in each other's place."""
    places = _number_places(tokens)
    if len(places) > 1:
        one, other = places[stock.below(len(places))], places[stock.below(len(places))]
        tokens[one], tokens[other] = tokens[other], tokens[one]
    return tokens


def shuffle_numbers(tokens: Tokens, stock: Stock) -> Tokens:
    """All numbers in another order."""
    places = _number_places(tokens)
    numbers = [tokens[place] for place in places]
    stock.rng.shuffle(numbers)
    for place, number in zip(places, numbers, strict=True):
        tokens[place] = number
    return tokens


def change_operators(tokens: Tokens, stock: Stock) -> Tokens:
    """Every operator drawn anew."""
    return [stock.pick(_OPERATORS) if token in _OPERATORS else token for token in tokens]


def respell_number(tokens: Tokens, stock: Stock) -> Tokens:
    """A number written otherwise, with the same value or nearly so."""
    places = _number_places(tokens)
    if places:
        place = places[stock.below(len(places))]
        tokens[place] = _SPELLINGS[stock.below(len(_SPELLINGS))](tokens[place])
    return tokens


def join_numbers(tokens: Tokens, stock: Stock) -> Tokens:
    """Two neighbouring numbers with one symbol between them, whatever was there."""
    places = _number_places(tokens)
    if len(places) > 1:
        at = stock.below(len(places) - 1)
        joint = stock.pick(_JOINTS if stock.rng.random() < 0.7 else SYMBOLS)
        tokens[places[at] + 1 : places[at + 1]] = [joint]
    return tokens


def change_symbol(tokens: Tokens, stock: Stock) -> Tokens:
    """A symbol replaced."""
    places = _symbol_places(tokens)
    if places:
        tokens[places[stock.below(len(places))]] = stock.pick(SYMBOLS[: 6 if stock.rng.random() < 0.5 else None])
    return tokens


def double_token(tokens: Tokens, stock: Stock) -> Tokens:
    """A token twice."""
    places = _symbol_places(tokens) or range(len(tokens))
    if places:
        place = places[stock.below(len(places))]
        tokens.insert(place, tokens[place])
    return tokens


def put_in(tokens: Tokens, stock: Stock) -> Tokens:
    """A symbol or a number put in."""
    place = stock.below(len(tokens) + 1)
    tokens.insert(place, stock.pick(SYMBOLS if stock.rng.random() < 0.7 else stock.numbers))
    return tokens


def put_in_strange(tokens: Tokens, stock: Stock) -> Tokens:
    """Something strange put in, or in the place of a token."""
    place = stock.below(len(tokens) + 1)
    tokens[place : place + stock.below(2)] = [stock.pick(STRANGE)]
    return tokens


def put_in_step(tokens: Tokens, stock: Stock) -> Tokens:
    """A neutral step behind a number, or a number that takes part in nothing."""
    places = _number_places(tokens)
    if places:
        step = stock.pick((" + 0", " - 0", " * 1", " / 1", "**1", "//1", "e0", ".0", " % 1000", "!", ",", " or 1", "#"))
        tokens.insert(places[stock.below(len(places))] + 1, step)
    return tokens


def take_out(tokens: Tokens, stock: Stock) -> Tokens:
    """A few tokens less."""
    place = stock.below(len(tokens))
    del tokens[place : place + 1 + stock.below(3)]
    return tokens


def repeat_span(tokens: Tokens, stock: Stock) -> Tokens:
    """A part of the answer again, here or elsewhere."""
    start = stock.below(len(tokens))
    place = stock.below(len(tokens) + 1)
    tokens[place:place] = tokens[start : start + 1 + stock.below(5)]
    return tokens


def bracket_span(tokens: Tokens, stock: Stock) -> Tokens:
    """Brackets around two neighbouring numbers, or more."""
    places = _number_places(tokens)
    if len(places) > 1:
        first = stock.below(len(places) - 1)
        last = first + 1 + stock.below(len(places) - first - 1)
        tokens.insert(places[last] + 1, ")")
        tokens.insert(places[first], "(")
    return tokens


def drop_brackets(tokens: Tokens, stock: Stock) -> Tokens:
    """All brackets gone."""
    return [token for token in tokens if token not in "()"]


def splice(tokens: Tokens, stock: Stock) -> Tokens:
    """The beginning of this answer and the end of another."""
    other = tokenize(stock.pick(stock.answers))
    return tokens[: stock.below(len(tokens) + 1)] + other[stock.below(len(other) + 1) :]


def claim_result(tokens: Tokens, stock: Stock) -> Tokens:
    """A result, or two, behind the answer or in front of it."""
    sign, number = stock.pick(("=", " = ", " == ", "\n= ", " or ", ", ", " ")), stock.pick(stock.numbers)
    return [*tokens, sign, number] if stock.rng.random() < 0.7 else [number, sign, *tokens]


def wrap(tokens: Tokens, stock: Stock) -> Tokens:
    """Marks around the answer."""
    left, right = _MARKS[stock.below(len(_MARKS))]
    return [left, *tokens, right]


_MARKS = (
    *(
        ("$", "$"),
        ("$$", "$$"),
        ("\\(", "\\)"),
        ("\\[", "\\]"),
        ("\\boxed{", "}"),
        ("**", "**"),
        ("`", "`"),
        ("(", ")"),
    ),
    *(("[", "]"), ("{", "}"), ("'", "'"), ('"', '"'), ("", "."), ("", ";"), ("x = ", ""), ("The answer is ", "")),
    *(("-(", ")"), ("-(-(", "))"), ("\n", "\n"), ("\t", ""), ("", " dollars"), ("#", ""), ("", "#"), ("", "\\,")),
)

MUTATORS: tuple[Callable[[Tokens, Stock], Tokens], ...] = (
    *(change_number, change_digit, lengthen_two, lengthen_two, swap_numbers, shuffle_numbers, respell_number),
    *(join_numbers, join_numbers, change_symbol, change_symbol, change_operators, double_token, put_in, put_in_strange),
    *(put_in_step, take_out, repeat_span, bracket_span, drop_brackets, splice, claim_result, wrap),
)
"""All of them; some twice, which lead to holes most often."""

LONGEST = 4000
"""Characters of the longest answer that a mutation may leave."""


def mutate(answer: str, stock: Stock) -> str:
    """The answer after one change, or a few."""
    while True:
        tokens = tokenize(answer) or [stock.pick(stock.numbers)]
        answer = "".join(MUTATORS[stock.below(len(MUTATORS))](tokens, stock))[:LONGEST]
        if stock.rng.random() < 0.5:
            return answer
