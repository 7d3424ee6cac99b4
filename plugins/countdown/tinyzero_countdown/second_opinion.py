"""The oracle: scores answers by another method than the checker's: slow, recursive, and sharing no code with it.

It reads the answer character by character by recursive descent, and computes with pairs of integers. Tests and
fuzzers compare the two; an answer on which they differ is a fault in one of them.
"""

from collections import Counter
from collections.abc import Mapping

from tinyzero_sdk.records import Json

_Ratio = tuple[int, int]
_LONGEST = 256
_SIGNS = {"+": "+", "-": "-", "−": "-", "*": "*", "×": "*", "·": "*", "⋅": "*", "∗": "*", "/": "/", "÷": "/"}
_MARKS = (("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("\\boxed{", "}"), ("**", "**"), ("`", "`"))
_COMMANDS = {"times": "*", "cdot": "*", "div": "/"}


class _Refused(Exception):
    """The answer is not in the language, or has no value."""


def is_right(answer: str, ground_truth: Mapping[str, Json]) -> bool | None:
    """Whether the answer solves the puzzle; None if it is nested too deeply for this to tell.

    Example:
        >>> is_right(r"\\frac{17 + 3}{5} = 4", {"target": 4, "numbers": [3, 5, 17]})
        True
    """
    target = int(ground_truth["target"])
    if len(answer) > _LONGEST:
        values = [target, *map(int, ground_truth["numbers"])]
        if len(answer) > 24 * len(values) + 2 * sum(len(str(value)) for value in values):
            return False
    try:
        reader = _Reader(_without_marks(answer))
        top, bottom = reader.whole_answer()
    except _Refused:
        return False
    except RecursionError:
        return None
    claims_other = reader.claimed is not None and reader.claimed != target
    numbers = Counter(int(number) for number in ground_truth["numbers"])
    return top == target * bottom and Counter(reader.numbers) == numbers and not claims_other


def _without_marks(answer: str) -> str:
    for space in ("\\,", "\\;", "\\:", "\\!"):
        answer = answer.replace(space, " ")
    while True:
        answer = answer.strip()
        if answer.endswith("."):
            answer = answer[:-1].strip()
        for left, right in _MARKS:
            inner = answer.removeprefix(left).removesuffix(right)
            if len(inner) == len(answer) - len(left) - len(right):
                answer = inner
                break
        else:
            return answer


class _Reader:
    """answer = sum ["=" ["-"] number]; sum = product {("+" | "-") product}; product = atom {("*" | "/") atom};
    atom = number | "(" sum ")" | "[" sum "]" | "\\frac{" sum "}{" sum "}"."""

    def __init__(self, text: str) -> None:
        self.numbers: list[int] = []
        self.claimed: int | None = None
        self._text = text
        self._at = 0

    def whole_answer(self) -> _Ratio:
        value = self._sum()
        if self._accept("="):
            sign = -1 if self._sign("-") else 1
            self.claimed = sign * self._number()
        self._blanks()
        if self._at < len(self._text):
            raise _Refused
        return value

    def _sum(self) -> _Ratio:
        top, bottom = self._product()
        while sign := self._sign("+-"):
            other_top, other_bottom = self._product()
            added = other_top * bottom if sign == "+" else -other_top * bottom
            top, bottom = top * other_bottom + added, bottom * other_bottom
        return top, bottom

    def _product(self) -> _Ratio:
        top, bottom = self._atom()
        while sign := self._sign("*/"):
            other = self._atom()
            top, bottom = _times((top, bottom), other) if sign == "*" else _over((top, bottom), other)
        return top, bottom

    def _atom(self) -> _Ratio:
        for opening, closing in (("(", ")"), ("[", "]")):
            if self._accept(opening) or self._sized("left", opening):
                value = self._sum()
                if not (self._accept(closing) or self._sized("right", closing)):
                    raise _Refused
                return value
        for command in ("frac", "dfrac", "tfrac"):
            if self._command(command):
                return _over(self._braced(), self._braced())
        number = self._number()
        self.numbers.append(number)
        return number, 1

    def _braced(self) -> _Ratio:
        if not self._accept("{"):
            raise _Refused
        value = self._sum()
        if not self._accept("}"):
            raise _Refused
        return value

    def _number(self) -> int:
        self._blanks()
        start = self._at
        while self._peek() in tuple("0123456789"):
            self._at += 1
        digits = self._text[start : self._at]
        if not 1 <= len(digits) <= 4300 or (digits[0] == "0" and digits != "0"):
            raise _Refused
        return int(digits)

    def _sign(self, wanted: str) -> str | None:
        self._blanks()
        start = self._at
        sign = _SIGNS.get(self._peek())
        if sign is not None:
            self._at += 1
        else:
            sign = next((meaning for name, meaning in _COMMANDS.items() if self._command(name)), None)
        if sign is None or sign not in wanted:
            self._at = start
            return None
        return sign

    def _command(self, name: str) -> bool:
        """Take `\\name` if it stands here, not as the beginning of a longer name."""
        self._blanks()
        if self._peek() != "\\":
            return False
        end = self._at + 1 + len(name)
        following = self._text[end : end + 1]
        if self._text[self._at : end] != "\\" + name or (following.isascii() and following.isalpha()):
            return False
        self._at = end
        return True

    def _sized(self, name: str, bracket: str) -> bool:
        start = self._at
        if self._command(name) and self._accept(bracket):
            return True
        self._at = start
        return False

    def _accept(self, character: str) -> bool:
        self._blanks()
        if self._peek() != character:
            return False
        self._at += 1
        return True

    def _blanks(self) -> None:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]


def _times(left: _Ratio, right: _Ratio) -> _Ratio:
    return left[0] * right[0], left[1] * right[1]


def _over(left: _Ratio, right: _Ratio) -> _Ratio:
    if right[0] == 0:
        raise _Refused
    return left[0] * right[1], left[1] * right[0]
