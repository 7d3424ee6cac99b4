"""From a text to tokens: the characters, names and LaTeX commands that an expression may hold. Nothing else is let in.

One pattern, matched from left to right, so the time is linear whatever the text holds.
"""

import re
from dataclasses import dataclass
from typing import Literal

from tinyzero_symbolic.expression import MAX_DIGITS, MAX_LENGTH, ExpressionError

FUNCTIONS = {
    name: name.replace("arc", "a")
    for name in (
        *("sqrt", "sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "exp", "ln", "log", "abs"),
        *("asin", "acos", "atan", "arcsin", "arccos", "arctan"),
    )
}
"""Functions of one argument, by the names they are written with. `log` without a base is the natural one."""

_LETTERS = "alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi rho sigma tau phi chi psi omega"
GREEK = dict(zip(_LETTERS.split(), "αβγδεζηθκλμνξρστφχψω", strict=True))
"""Letters by name; they are symbols, and pi is not among them."""

CONSTANTS = {"pi": "pi", "e": "e", "i": "i", "infinity": "infinity", "oo": "infinity", "infty": "infinity"}

_COMMANDS = {"cdot": "*", "times": "*", "div": "/", "lbrace": "\\{", "rbrace": "\\}", "lvert": "|", "rvert": "|"}
_STRUCTURES = ("frac", "sqrt")
_IGNORED = {"left", "right", "displaystyle", "quad", "qquad", "text", "mathrm", "operatorname", "mathbf"}
_CHARACTERS = {"−": "-", "–": "-", "×": "*", "·": "*", "⋅": "*", "÷": "/", "**": "^", "\\%": "%"}
_LONGEST_PRODUCT = 3  # letters that may stand together without an operator; more are a word

_TOKEN = re.compile(
    r"(?P<space>(?:[ \t\r\n]|\\[,;:! ])+)"
    r"|(?P<number>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
    r"|\\(?P<command>[A-Za-z]+)"
    r"|(?P<word>[A-Za-z]+)"
    r"|(?P<operator>\*\*|\\[{}%]|[-+*/^!()\[\]{},=%|_−–×·⋅÷√π∞" + "".join(GREEK.values()) + "])"
)

TokenKind = Literal["number", "letter", "constant", "function", "structure", "operator"]


@dataclass(frozen=True, slots=True)
class Token:
    """One word of an expression."""

    kind: TokenKind
    text: str


def tokenize(text: str) -> list[Token]:
    """The tokens of a text.

    Raises:
        ExpressionError: it is too long, or holds what no expression does.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"{len(text):,} characters; at most {MAX_LENGTH} are read")
    text = _undress(text)
    tokens: list[Token] = []
    place, depth = 0, 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise ExpressionError(f"{text[place : place + 12]!r} is no part of an expression")
        kind, piece = match.lastgroup, match[match.lastgroup or 0]
        if kind == "number" and "," in piece and depth:  # in brackets a comma separates: (1,200) is a pair
            piece = piece.partition(",")[0]
            place += len(piece)
        else:
            place = match.end()
        depth += piece in ("(", "[", "{", "\\{") and kind == "operator"
        depth -= piece in (")", "]", "}", "\\}") and kind == "operator"
        tokens += _read(kind or "", piece)
    return tokens


def _undress(text: str) -> str:
    """Without the delimiters of a formula, and the full stop of a sentence."""
    text = text.strip().removesuffix(".").rstrip()
    for opening, closing in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")):
        if text.startswith(opening) and text.endswith(closing) and len(text) >= len(opening + closing):
            return text[len(opening) : -len(closing)].strip().removesuffix(".")
    return text


def _read(kind: str, text: str) -> list[Token]:
    if kind == "space":
        return []
    if kind == "number":
        digits = text.replace(",", "")
        if len(digits) > MAX_DIGITS:
            raise ExpressionError(f"a number of {len(digits)} digits; at most {MAX_DIGITS} are read")
        return [Token("number", digits)]
    if kind == "operator":
        text = _CHARACTERS.get(text, text)
        if text in ("π", "∞"):
            return [Token("constant", "pi" if text == "π" else "infinity")]
        if text == "√":
            return [Token("function", "sqrt")]
        return [Token("letter" if text in GREEK.values() else "operator", text)]
    if kind == "command":
        text = {"dfrac": "frac", "tfrac": "frac"}.get(text, text)
        if text in _IGNORED:
            return []
        if text in _COMMANDS:
            return [Token("operator", _COMMANDS[text])]
        if text in _STRUCTURES:
            return [Token("structure", text)]
    return _name(text, is_command=kind == "command")


def _name(name: str, *, is_command: bool) -> list[Token]:
    if name in FUNCTIONS:
        return [Token("function", FUNCTIONS[name])]
    if name in GREEK:
        return [Token("letter", GREEK[name])]
    if name in CONSTANTS and not (is_command and len(name) == 1):
        return [Token("constant", CONSTANTS[name])]
    if is_command or len(name) > _LONGEST_PRODUCT:
        raise ExpressionError(f"{name[:20]!r} is no function or constant that is known")
    return [Token("constant" if letter in CONSTANTS else "letter", letter) for letter in name]
