"""Making completions: every choice is left to a `Choose`, so that chance can make them, and hypothesis too.

A choice of 0 is the simplest everywhere, which is where hypothesis shrinks to. `strategies.py` makes strategies of
these functions; the bulk search for wrong verdicts draws from them by the hundred thousand.
"""

import re
from collections.abc import Iterator, Sequence

from tinyzero_sdk.testing.gold import Gold
from tinyzero_sdk.testing.grammar import Choose

EDIT_PIECES = [
    *"0123456789", *" .,-+*/()=_%$!^eExX'\"", *"abn", *"\n\t\0", "**", "//", ".0", "_0", ",000",
    "\u200b", "\u200e", "\ufeff", "\u00a0", "٣", "３", "²", "½", "−", "ⅷ", "𝟗", "е",
]  # fmt: skip
"""What is put into an answer: digits and signs, and what only looks like them."""

_JOINTS = [".", ".", ".", ".", "", " ", ",", "_", "e", "**", "//", "=", " or "]
_AROUND = [
    ("(", ")"), ("$", "$"), (r"\boxed{", "}"), ("+", ""), ("-", ""), ("", "."), ("", ".0"), ("", "/1"), ("", " = ?"),
    ("the answer is ", ""), ("", "%"), ("0", ""), ("0x", ""), ("", "e0"), ("'", "'"), ("[", "]"), ("**", "**"),
]  # fmt: skip
_tokens_of = re.compile(r"[0-9]+|[A-Za-z]+|\s+|.", re.DOTALL).findall


def one_edit(text: str, choose: Choose) -> str:
    """`text` with one character deleted, put in, replaced, or swapped with the next."""
    if not text:
        return EDIT_PIECES[choose(len(EDIT_PIECES))]
    kind, place = choose(4), choose(len(text))
    if kind == 0:
        return text[:place] + text[place + 1 :]
    if kind == 1:
        place = choose(2) * len(text) or place  # at the end as often as anywhere else
        return text[:place] + EDIT_PIECES[choose(len(EDIT_PIECES))] + text[place:]
    if kind == 2:
        return text[:place] + EDIT_PIECES[choose(len(EDIT_PIECES))] + text[place + 1 :]
    return text[:place] + text[place + 1 : place + 2] + text[place] + text[place + 2 :]


def near_miss(answer: str, others: Sequence[str], choose: Choose) -> str:
    """`answer` after one to three changes that a model, or somebody who games the reward, might make."""
    for _ in range(1 + choose(3)):
        answer = _CHANGES[choose(len(_CHANGES))](answer, others, choose)
    return answer


def _edit(answer: str, others: Sequence[str], choose: Choose) -> str:
    return one_edit(answer, choose)


def _replace(answer: str, others: Sequence[str], choose: Choose) -> str:
    return others[choose(len(others))] if others else ""


def _wrap(answer: str, others: Sequence[str], choose: Choose) -> str:
    left, right = _AROUND[choose(len(_AROUND))]
    return left + answer + right


def _numbers(tokens: Sequence[str]) -> list[int]:
    return [place for place, token in enumerate(tokens) if token[0] in "0123456789"]


def join_numbers(answer: str, others: Sequence[str], choose: Choose) -> str:
    """Two numbers become one, or what looks like one: 4 + 5 becomes 4.5."""
    tokens = _tokens_of(answer)
    places = _numbers(tokens)
    if len(places) < 2:
        return answer
    first = choose(len(places) - 1)
    joint = _JOINTS[choose(len(_JOINTS))]
    return "".join(tokens[: places[first] + 1]) + joint + "".join(tokens[places[first + 1] :])


def _swap_numbers(answer: str, others: Sequence[str], choose: Choose) -> str:
    tokens = _tokens_of(answer)
    places = _numbers(tokens)
    if len(places) < 2:
        return answer
    left, right = places[choose(len(places))], places[choose(len(places))]
    tokens[left], tokens[right] = tokens[right], tokens[left]
    return "".join(tokens)


def _replace_sign(answer: str, others: Sequence[str], choose: Choose) -> str:
    tokens = _tokens_of(answer)
    places = [place for place, token in enumerate(tokens) if token in "+-*/^=<>&|"]
    if places:
        signs = ("+", "-", "*", "/", "**", "//", "%")
        tokens[places[choose(len(places))]] = signs[choose(len(signs))]
    return "".join(tokens)


def _lengthen_numbers(answer: str, others: Sequence[str], choose: Choose) -> str:
    """The same digit is put to two numbers, which leaves differences as they were: 5 - 3 becomes 15 - 13."""
    tokens = _tokens_of(answer)
    places = _numbers(tokens)
    if places:
        digit, in_front = str(1 + choose(9)), choose(2) == 0
        for place in {places[choose(len(places))], places[choose(len(places))]}:
            tokens[place] = digit + tokens[place] if in_front else tokens[place] + digit
    return "".join(tokens)


_CHANGES = (
    _edit, _replace, _wrap, join_numbers, join_numbers, _swap_numbers, _swap_numbers, _replace_sign, _replace_sign,
    _lengthen_numbers,
)  # fmt: skip


_SIGNS = ("+", "-", "*", "/", "+", "-", "*", "/", "*", "/", "**", "//", ".", ".", ".", ".", ".", "%", "^", "")


def rearrange(text: str, choose: Choose) -> str:
    """The numbers of `text` in any order, with any signs between them and brackets around some: 4 + 5 - 2 may become
    5/(2.4)."""
    numbers = [token for token in _tokens_of(text) if token[0] in "0123456789"]
    for place in range(len(numbers) - 1, 0, -1):
        other = choose(place + 1)
        numbers[place], numbers[other] = numbers[other], numbers[place]
    while len(numbers) > 1:
        place = choose(len(numbers) - 1)
        joined = numbers[place] + _SIGNS[choose(len(_SIGNS))] + numbers[place + 1]
        numbers[place : place + 2] = [f"({joined})" if len(numbers) > 2 and choose(2) else joined]
    return numbers[0] if numbers else text


MALFORMED = [
    "{}", "<answer>{}", "{}</answer>", "<answer>{}</answer", "</answer>{}<answer>", "<answer><answer>{}</answer>",
    "<answer>{}</answer></answer>", "<ANSWER>{}</ANSWER>", "< answer >{}< /answer >", "<answer/>{}", "&lt;answer&gt;{}",
    r"\boxed{{{}}}", r"\boxed{{{}", "#### {}", "####", "**{}**", "```\n{}\n```", "<answer>\n\n{}\n\n</answer>\n\n",
    "<think><answer>{}</answer>", "<answer>{}</answer><think>", '{{"answer": "{}"}}', "The answer is {}.",
]  # fmt: skip
"""Ways to get the form of an answer wrong, and some that are right; `{}` stands for the answer."""


def malformed(gold: Gold, choose: Choose) -> str:
    """A completion with something wrong in its form: tags that are missing, doubled or broken, an end cut off."""
    kind = choose(3)
    if kind == 0:
        return MALFORMED[choose(len(MALFORMED))].format(gold.answer)
    if kind == 1:
        return gold.completion[: choose(len(gold.completion) + 1)]
    return gold.before + MALFORMED[choose(len(MALFORMED))].format(gold.answer) + gold.after


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
]  # fmt: skip
"""What has broken scorers: deep nesting, towers of powers, numbers without end, text that is no text, code."""

_NESTS = [
    ("(", ")"), ("[", "]"), ("{", "}"), (r"\frac{", "}{1}"), ("-(", ")"), ("1+(", ")"), ("<answer>", "</answer>"),
    ("<think>", "</think>"), (r"\boxed{", "}"), ("9**", ""), ("abs(", ")"), ("<", ">"), ("1/(", ")"),
]  # fmt: skip

TIMES = (1, 2, 3, 30, 500, 5000)
"""How often a piece stands in a row."""

MEGABYTE = 2**20


def hostile_text(choose: Choose, times: Sequence[int] = TIMES) -> str:
    """One to three pieces that have broken scorers, alone, in a row or nested."""
    pieces = []
    for _ in range(1 + choose(3)):
        count = times[choose(len(times))]
        if choose(3) < 2:
            pieces.append(HOSTILE[choose(len(HOSTILE))] * count)
        else:
            left, right = _NESTS[choose(len(_NESTS))]
            pieces.append(left * count + "1" + right * count)
    return "".join(pieces)


def huge_text(choose: Choose) -> str:
    """A megabyte of a piece or a nest."""
    if choose(2) == 0:
        piece = HOSTILE[choose(len(HOSTILE))]
        return piece * (MEGABYTE // len(piece))
    left, right = _NESTS[choose(len(_NESTS))]
    count = MEGABYTE // len(left + right)
    return left * count + "1" + right * count


def every_piece(gold: Gold, times: Sequence[int]) -> Iterator[str]:
    """Every hostile piece and nest, so many times, in the place of gold's answer; and once behind that."""
    for piece in HOSTILE:
        for count in times:
            yield gold.with_answer(piece * min(count, MEGABYTE // len(piece)))
        yield gold.with_answer(gold.answer + piece)
    for left, right in _NESTS:
        for count in times:
            count = min(count, MEGABYTE // len(left + right))
            yield gold.with_answer(left * count + "1" + right * count)


def place(text: str, gold: Gold, choose: Choose) -> str:
    """A completion with `text` in the place of gold's answer, beside it, around it, or alone."""
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
