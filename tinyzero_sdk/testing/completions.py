"""Texts to test a scorer with: changed answers, and malformed and hostile completions. Nothing here knows a task.

Most changes keep an answer readable, so that they reach the code behind the parser; those that break it come from
`SYMBOLS` and `STRANGE`. Every choice is left to a `Choose`.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tinyzero_sdk.testing.gold import Gold
from tinyzero_sdk.testing.grammar import Choose
from tinyzero_sdk.testing.neighbours import partitions

Tokens = list[str]
tokenize = re.compile(r"[0-9]+|[A-Za-z]+|[ ]+|.", re.DOTALL).findall
"""Runs of digits, of letters and of spaces; anything else by itself. Joined they are the text again."""

SYMBOLS = (
    *("+", "-", "*", "/", "**", "//", ".", ",", "=", "%", "^", "!", "(", ")", "#", "_", "e", "E", "j", " ", "\n", "|"),
    *("&", "~", "<<", ">>", "==", "$", "\\", "×", "÷", "−", "·", ":", ";", "'", '"'),
)
"""Separators and operators between two numbers, in any notation."""

STRANGE = (
    *("\x00", "\t", "\r\n", "\u200b", "\u00a0", "\u2028", "\u202e", "\ufeff", "\ud800", "π", "½", "²", "①", "٣", "５"),
    *("Ⅳ", "∞", "nan", "inf", "None", "True", "x", "\\frac{", "\\boxed{", "}", "{", "[", "]", "$$", "**", "<answer>"),
    *("</answer>", "</think>", "####", "1e999", "0x", "0b1", "1_", "_0", ",000", "е", "𝟗", "\u200e", "1/0", "or"),
)
"""Pieces that a parser may misread."""

_DIGITS = "0123456789"
_JOINTS = (".", ".", ".", ".", "", " ", ",", "_", "e", "**", "//", "^", "%", "0", "=", " or ")
_OPERATORS = ("+", "-", "*", "/")
_OTHER_DIGITS = [{ord("0") + digit: zero + digit for digit in range(10)} for zero in (0x660, 0x966, 0xFF10, 0x1D7CE)]
_SPELLINGS: tuple[Callable[[str], str], ...] = (
    *(spelling.format for spelling in ("+{}", "-{}", "0{}", "{}.", "{}.0", ".{}", "{}e0", "{}00e-2")),
    lambda n: f"{n[0]},{n[1:]}",
    lambda n: f"{n[:-3]},{n[-3:]}",
    lambda n: f"{n[0]}_{n[1:]}",
    *(spelling.format for spelling in ("{}/1", "({})", "{{{}}}", "${}", "{}%", "{}.0000001", "{}.0009", "{}e1")),
    lambda n: f"0x{_whole_part(n):x}",
    lambda n: f"{_whole_part(n) - 1}.9999999",
    *("abs({})".format, "int('{}')".format),
    lambda n: n[::-1],
    *(lambda n, table=table: n.translate(table) for table in _OTHER_DIGITS),
)


def _whole_part(number: str) -> int:
    return int(number.partition(".")[0][:18])


@dataclass(slots=True)
class Stock:
    """The material of mutations."""

    choose: Choose
    numbers: Sequence[str] = ("0", "1")
    """Numbers of the ground truth, and a few common ones."""

    answers: Sequence[str] = ("1",)
    """Other answers to splice with."""

    def pick(self, things: Sequence[str]) -> str:
        return things[self.choose(len(things))]


def edit_character(tokens: Tokens, stock: Stock) -> Tokens:
    """One character deleted, inserted, replaced, or swapped with the next, whatever token it is in."""
    text = "".join(tokens)
    kind, place = stock.choose(4), stock.choose(len(text))
    if kind == 1:
        place = stock.choose(2) * len(text) or place  # at the end as often as anywhere else
    after = text[place:] if kind == 1 else text[place + 1 :]
    if kind == 3:
        return [text[:place], after[:1], text[place], after[1:]]
    return [text[:place], stock.pick((*_DIGITS, *SYMBOLS, *STRANGE)) if kind else "", after]


def _number_places(tokens: Tokens) -> list[int]:
    return [place for place, token in enumerate(tokens) if "0" <= token[0] <= "9"]


def _symbol_places(tokens: Tokens) -> list[int]:
    return [place for place, token in enumerate(tokens) if not (token[0].isalnum() or token[0] in " ()")]


def change_number(tokens: Tokens, stock: Stock) -> Tokens:
    places = _number_places(tokens)
    if places:
        tokens[places[stock.choose(len(places))]] = stock.pick(stock.numbers)
    return tokens


def change_digit(tokens: Tokens, stock: Stock) -> Tokens:
    """A digit of a number inserted, deleted or replaced."""
    places = _number_places(tokens)
    if places:
        place = places[stock.choose(len(places))]
        digits, at, width = tokens[place], stock.choose(len(tokens[place]) + 1), stock.choose(2)
        tokens[place] = digits[:at] + stock.pick(_DIGITS)[: stock.choose(3)] + digits[at + width :] or "0"
    return tokens


def lengthen_two(tokens: Tokens, stock: Stock) -> Tokens:
    """The same digit before, or after, two of the numbers, which keeps a difference: 5 - 3 becomes 15 - 13."""
    places = _number_places(tokens)
    if places:
        digit, in_front = stock.pick("123456789"), stock.choose(2) == 0
        for place in {places[stock.choose(len(places))], places[stock.choose(len(places))]}:
            tokens[place] = digit + tokens[place] if in_front else tokens[place] + digit
    return tokens


def change_operators(tokens: Tokens, stock: Stock) -> Tokens:
    return [stock.pick(_OPERATORS) if token in _OPERATORS else token for token in tokens]


def respell_number(tokens: Tokens, stock: Stock) -> Tokens:
    """A number in another notation, with the same value or nearly so."""
    places = _number_places(tokens)
    if places:
        place = places[stock.choose(len(places))]
        tokens[place] = _SPELLINGS[stock.choose(len(_SPELLINGS))](tokens[place])
    return tokens


def join_numbers(tokens: Tokens, stock: Stock) -> Tokens:
    """Two neighbouring numbers with one symbol between them, whatever was there."""
    places = _number_places(tokens)
    if len(places) > 1:
        at = stock.choose(len(places) - 1)
        joint = stock.pick(_JOINTS if stock.choose(10) < 7 else SYMBOLS)
        tokens[places[at] + 1 : places[at + 1]] = [joint]
    return tokens


def change_symbol(tokens: Tokens, stock: Stock) -> Tokens:
    places = _symbol_places(tokens)
    if places:
        tokens[places[stock.choose(len(places))]] = stock.pick(SYMBOLS[: 6 if stock.choose(2) == 0 else None])
    return tokens


def put_in(tokens: Tokens, stock: Stock) -> Tokens:
    place = stock.choose(len(tokens) + 1)
    tokens.insert(place, stock.pick(SYMBOLS if stock.choose(10) < 7 else stock.numbers))
    return tokens


def put_in_strange(tokens: Tokens, stock: Stock) -> Tokens:
    """A strange piece inserted, or in place of a token."""
    place = stock.choose(len(tokens) + 1)
    tokens[place : place + stock.choose(2)] = [stock.pick(STRANGE)]
    return tokens


def put_in_step(tokens: Tokens, stock: Stock) -> Tokens:
    """A neutral operation after a number, or a number without effect."""
    places = _number_places(tokens)
    if places:
        step = stock.pick((" + 0", " - 0", " * 1", " / 1", "**1", "//1", "e0", ".0", " % 1000", "!", ",", " or 1", "#"))
        tokens.insert(places[stock.choose(len(places))] + 1, step)
    return tokens


def take_out(tokens: Tokens, stock: Stock) -> Tokens:
    place = stock.choose(len(tokens))
    del tokens[place : place + 1 + stock.choose(3)]
    return tokens


def repeat_span(tokens: Tokens, stock: Stock) -> Tokens:
    """A span of the answer repeated, in place or elsewhere."""
    start = stock.choose(len(tokens))
    place = stock.choose(len(tokens) + 1)
    tokens[place:place] = tokens[start : start + 1 + stock.choose(5)]
    return tokens


def exchange_parts(tokens: Tokens, stock: Stock) -> Tokens:
    """Two lines, list items, words, terms or numbers exchanged."""
    ways = [*partitions("".join(tokens))]
    if not ways:
        return tokens
    _, pieces, join = ways[stock.choose(len(ways))]
    first, second = (2 * stock.choose(len(pieces) // 2 + 1) for _ in range(2))
    pieces[first], pieces[second] = pieces[second], pieces[first]
    return [join(pieces)]


def bracket_span(tokens: Tokens, stock: Stock) -> Tokens:
    """Brackets around two neighbouring numbers, or more."""
    places = _number_places(tokens)
    if len(places) > 1:
        first = stock.choose(len(places) - 1)
        last = first + 1 + stock.choose(len(places) - first - 1)
        tokens.insert(places[last] + 1, ")")
        tokens.insert(places[first], "(")
    return tokens


def drop_brackets(tokens: Tokens, stock: Stock) -> Tokens:
    return [token for token in tokens if token not in "()"]


def splice(tokens: Tokens, stock: Stock) -> Tokens:
    """The beginning of this answer and the end of another."""
    other = tokenize(stock.pick(stock.answers))
    return tokens[: stock.choose(len(tokens) + 1)] + other[stock.choose(len(other) + 1) :]


def claim_result(tokens: Tokens, stock: Stock) -> Tokens:
    """A result claimed after the answer, or before it."""
    sign, number = stock.pick(("=", " = ", " == ", "\n= ", " or ", ", ", " ")), stock.pick(stock.numbers)
    return [*tokens, sign, number] if stock.choose(10) < 7 else [number, sign, *tokens]


def wrap(tokens: Tokens, stock: Stock) -> Tokens:
    left, right = _MARKS[stock.choose(len(_MARKS))]
    return [left, *tokens, right]


_MARKS = [
    ("$", "$"), ("$$", "$$"), ("\\(", "\\)"), ("\\[", "\\]"), ("\\boxed{", "}"), ("**", "**"), ("`", "`"), ("(", ")"),
    ("[", "]"), ("{", "}"), ("'", "'"), ('"', '"'), ("", "."), ("", ";"), ("x = ", ""), ("The answer is ", ""),
    ("-(", ")"), ("-(-(", "))"), ("\n", "\n"), ("\t", ""), ("", " dollars"), ("#", ""), ("", "#"), ("", "\\,"),
    ("+", ""), ("-", ""), ("", ".0"), ("", "/1"), ("", " = ?"), ("", "%"), ("0", ""), ("0x", ""), ("", "e0"),
]  # fmt: skip

MUTATORS: tuple[Callable[[Tokens, Stock], Tokens], ...] = (
    *(change_number, change_digit, edit_character, lengthen_two, lengthen_two, exchange_parts),
    *(respell_number, join_numbers, join_numbers, change_symbol, change_symbol, change_operators, put_in),
    *(put_in_strange, put_in_step, take_out, repeat_span, bracket_span, drop_brackets, splice, claim_result, wrap),
)
"""The mutations of answers; those that find faults most often are listed twice."""

LONGEST = 4000  # characters of the longest answer that a mutation may leave


def mutate(answer: str, stock: Stock) -> str:
    """The answer after one change, or a few."""
    while True:
        tokens = tokenize(answer) or [stock.pick(stock.numbers)]
        answer = "".join(MUTATORS[stock.choose(len(MUTATORS))](tokens, stock))[:LONGEST]
        if stock.choose(2) == 0:
            return answer


def near_miss(answer: str, others: Sequence[str], choose: Choose) -> str:
    """`answer` after changes that a model might make, in error or to game the reward; rarely another answer."""
    if others and choose(8) == 0:
        return others[choose(len(others))]
    return mutate(answer, Stock(choose, answers=others or [answer]))


_SIGNS = ("+", "-", "*", "/", "+", "-", "*", "/", "*", "/", "**", "//", ".", ".", ".", ".", ".", "%", "^", "")


def rearrange(text: str, choose: Choose) -> str:
    """The numbers of `text` in any order, with any signs between them and brackets around some: 4 + 5 - 2 may become
    5/(2.4)."""
    tokens = tokenize(text)
    numbers = [tokens[place] for place in _number_places(tokens)]
    for place in range(len(numbers) - 1, 0, -1):
        other = choose(place + 1)
        numbers[place], numbers[other] = numbers[other], numbers[place]
    while len(numbers) > 1:
        place = choose(len(numbers) - 1)
        joined = numbers[place] + _SIGNS[choose(len(_SIGNS))] + numbers[place + 1]
        numbers[place : place + 2] = [f"({joined})" if len(numbers) > 2 and choose(2) else joined]
    return numbers[0] if numbers else text


def simple_answers(answer: str, numbers: Sequence[str]) -> list[str]:
    """What a careless scorer may take for the answer, in a fixed order: one of the given numbers, the answer with
    a sign doubled, parts of it, its numbers with one sign between them, each with a digit more, and no brackets."""
    tokens = tokenize(answer)
    places = _number_places(tokens)
    own = [tokens[place] for place in places]
    signs = dict.fromkeys(_SIGNS if len(own) < 3 else _OPERATORS)  # no towers of powers, which hang
    parts = [part for place in places for part in (tokens[: place + 1], tokens[place:])]
    doubled = [[*tokens[:place], *tokens[place:][:1], *tokens[place:]] for place in _symbol_places(tokens)[:8]]
    answers = [*numbers, *own, *map("".join, [*doubled, *parts])]
    answers += [sign.join(row) for sign in signs for row in (own, own[::-1])]
    answers += [re.sub("[0-9]+", form, answer) for form in (r"1\g<0>", r"\g<0>0")]
    answers.append("".join(token for token in tokens if token not in "()"))
    return [other for other in dict.fromkeys(answers) if other != answer]


# Whole completions

MALFORMED = [
    "{}", "<answer>{}", "{}</answer>", "<answer>{}</answer", "</answer>{}<answer>", "<answer><answer>{}</answer>",
    "<answer>{}</answer></answer>", "<ANSWER>{}</ANSWER>", "< answer >{}< /answer >", "<answer/>{}", "&lt;answer&gt;{}",
    r"\boxed{{{}}}", r"\boxed{{{}", "#### {}", "####", "**{}**", "```\n{}\n```", "<answer>\n\n{}\n\n</answer>\n\n",
    "<think><answer>{}</answer>", "<answer>{}</answer><think>", '{{"answer": "{}"}}', "The answer is {}.",
]  # fmt: skip
"""Ways to get the form of an answer wrong, and some that are right; `{}` stands for the answer."""


def malformed(gold: Gold, choose: Choose) -> str:
    """A completion with something wrong in its form: tags missing, doubled or broken, a part cut out or repeated."""
    kind, text = choose(5), gold.completion
    if kind == 0:
        return MALFORMED[choose(len(MALFORMED))].format(gold.answer)
    if kind == 1:
        return text[: choose(len(text) + 1)]
    if kind == 2:
        return gold.before + MALFORMED[choose(len(MALFORMED))].format(gold.answer) + gold.after
    start, end = sorted((choose(len(text) + 1), choose(len(text) + 1)))
    return text[:start] + text[end:] if kind == 3 else text[:end] + text[start:]


HOSTILE = [
    "(", "[", "{", "-", "9", "0", " ", "\n", "a", "1+", "<answer>", "</answer>", "<think>", "</think>", "####",
    "9**9**9", "9^9^9", "9**99999999", "2**(2**(2**(2**9)))", "1e999999999", "1e-999999999", "9999999999!", "1/0",
    "0/0", "nan", "inf", "-inf", "NaN", "Infinity", "1e400", "-0", "1_000", "0x1F", "0b1", "1j", "1/3", "True", "None",
    "\ud800", "\udfff", "\0", "\u202e", "\u200f", "\u2066", "\u200b", "\u200d", "\ufeff", "\u0301", "\u2028", "\x85",
    "\r", "\x0b", "\x1b[2J", "٣", "３", "४", "²", "½", "Ⅷ", "𝟗", "一", "−", "٫", "٬", "İ", "ß", "ﬁ",
    "<|im_end|>", "<|endoftext|>", "<|im_start|>assistant\n", "</s>", "<eos>", "<pad>", "<｜end▁of▁sentence｜>",
    "<end_of_turn>", "<answer", "answer>", "<answer/>", "\\", "\\frac{", "\\left(", "\\boxed{", "\\begin{matrix}", "$",
    "%s", "%n", "{0}", "{}", "{0.__class__}", "$(true)", "`true`", "'", '"', '"""', "#", ";", "`", "//", "**", "=",
    "print(1)", "__import__('os').getcwd()", "().__class__.__mro__", "lambda: 0", "exit()", "(lambda f: f(f))(0)",
    "[0]*10**10", "'a'*10**10", "import os", "os.getcwd()", "x", "E", "I", "pi", "factorial(9)", "zoo", "1,", ",1",
    "(?:.?){20000}!", "(.*)*(.*)*(.*)*(.*)*!",
]  # fmt: skip
"""What has broken scorers: deep nesting, towers of powers, numbers without end, text that is no text, code, and
patterns that try for minutes to match even one character."""

_NESTS = [
    ("(", ")"), ("[", "]"), ("{", "}"), (r"\frac{", "}{1}"), ("-(", ")"), ("1+(", ")"), ("<answer>", "</answer>"),
    ("<think>", "</think>"), (r"\boxed{", "}"), ("9**", ""), ("abs(", ")"), ("<", ">"), ("1/(", ")"),
]  # fmt: skip

TIMES = (1, 2, 3, 30, 500, 5000)  # how often a piece stands in a row
MEGABYTE = 2**20


def hostile_text(choose: Choose, times: Sequence[int] = TIMES) -> str:
    """One to three pieces that have broken scorers, alone, in a row or nested."""
    pieces = []
    for _ in range(1 + choose(3)):
        count = times[choose(len(times))]
        if choose(3) < 2:
            pieces.append(HOSTILE[choose(len(HOSTILE))] * count)
        else:
            pieces.append(_nested(_NESTS[choose(len(_NESTS))], count))
    return "".join(pieces)


def _nested(brackets: tuple[str, str], count: int) -> str:
    left, right = brackets
    count = min(count, MEGABYTE // len(left + right))
    return left * count + "1" + right * count


def huge_text(choose: Choose) -> str:
    if choose(2) == 0:
        piece = HOSTILE[choose(len(HOSTILE))]
        return piece * (MEGABYTE // len(piece))
    return _nested(_NESTS[choose(len(_NESTS))], MEGABYTE)


def every_piece(gold: Gold, times: Sequence[int]) -> Iterator[str]:
    """Every hostile piece and nest in the place of gold's answer, each as often as `times`; pieces after it too."""
    for piece in HOSTILE:
        for count in times:
            yield gold.with_answer(piece * min(count, MEGABYTE // len(piece)))
        yield gold.with_answer(gold.answer + piece)
    for brackets in _NESTS:
        for count in times:
            yield gold.with_answer(_nested(brackets, count))


def place(text: str, gold: Gold, choose: Choose) -> str:
    """A completion with `text` in the place of gold's answer, next to it, around it, or alone."""
    before, answer, after = gold.before, gold.answer, gold.after
    ways = (
        gold.with_answer(text),
        text,
        before + answer + text + after,
        before + text + answer + after,
        text + before + answer + after,
        before + answer + after + text,
        before + text,
    )
    return ways[choose(len(ways))]
