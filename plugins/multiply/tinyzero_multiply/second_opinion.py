"""The oracle: scores answers by another method than the scorer's: slow, and sharing no code with it.

It never reads a number. It goes from the numbers to the text: an answer is right if, the marks around it peeled off,
it is one of the ways to write the product, or an equation of ways to write the factors and the product.
"""

from tinyzero_sdk.records import Json

_LONGEST = 128
_GAPS = [",", " ", "\N{NO-BREAK SPACE}", "\N{THIN SPACE}", "\N{NARROW NO-BREAK SPACE}", "'", "’"]
_LATEX_GAPS = ["{,}", "\\,", "\\;", "\\:", "\\ ", ",\\!"]
_SIGNS = ["*", "×", "·", "⋅", "∗", "x", "X", "\\times", "\\cdot"]
_OPEN = {"$$": "$$", "$": "$", "\\(": "\\)", "\\[": "\\]", "```": "```", "`": "`", "**": "**", "*": "*"}
_COMMANDS = ["\\boxed{", "\\text{", "\\textbf{", "\\mathbf{", "\\mathrm{"]


def is_right(answer: str, ground_truth: Json) -> bool:
    """Whether the answer is the product.

    Example:
        >>> is_right("**123 × 456 = 56,088**", {"num1": 123, "num2": 456, "product": 56088})
        True
    """
    plain = not isinstance(ground_truth, dict)
    product = int(ground_truth if plain else ground_truth["product"])
    if len(answer) > _LONGEST and len(answer) > 6 * len(str(product)):
        return False
    parts = _peel(_no_stop(answer)).split("=")
    if len(parts) > 2:
        return False
    right = parts[-1].strip() if len(parts) == 1 else _peel(parts[1])
    if right not in {plus + way for plus in ("", "+") for way in _ways_to_write(product)}:
        return False
    left = "" if len(parts) == 1 else parts[0].strip()
    return not left or any(
        a * b == product and (plain or {a, b} == {int(ground_truth["num1"]), int(ground_truth["num2"])})
        for a, b in _factors(_peel(left))
    )


def _factors(left: str) -> list[tuple[int, int]]:
    """The two numbers of `a * b`, for every sign that cuts it so, by writing them out and comparing."""
    pairs = []
    for sign in _SIGNS:
        first, _, second = left.partition(sign)
        numbers = []
        for text in (first.strip(), second.strip()):
            digits = "".join(character for character in text if character in "0123456789")
            if digits and text in _ways_to_write(int(digits)):
                numbers.append(int(digits))
        if len(numbers) == 2:
            pairs.append((numbers[0], numbers[1]))
    return pairs


def _ways_to_write(number: int) -> set[str]:
    if number < 0:
        return set()
    return {str(number), *(f"{number:,}".replace(",", gap) for gap in _GAPS + _LATEX_GAPS)}


def _peel(text: str, pairs: int = 8) -> str:
    """Take off one pair of marks after another, and the space and the full stop within them."""
    text = text.strip()
    for opening in sorted([*_OPEN, *_COMMANDS], key=len, reverse=True):
        closing = _OPEN.get(opening, "}")
        if pairs and text.startswith(opening):
            inner = text.removeprefix(opening)
            if not inner.endswith(closing) or inner == closing:
                continue
            inner = inner.removesuffix(closing)
            if opening in _COMMANDS and not _is_balanced(inner):
                continue
            if opening in _OPEN and closing in inner and not (opening == "*" and len(inner.split("*")) == 2):
                continue
            return _peel(_no_stop(inner), pairs - 1)
    return text


def _is_balanced(text: str) -> bool:
    """Whether each closing brace has its opening one before it."""
    while "}" in text:
        before, _, after = text.partition("}")
        head, brace, inside = before.rpartition("{")
        if not brace:
            return False
        text = head + inside + after
    return True


def _no_stop(text: str) -> str:
    text = text.rstrip()
    return text[:-1] if text.endswith(".") else text
