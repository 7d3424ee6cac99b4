"""What a careless reader would compute from an answer: a guess at which ground truth a broken reward takes it for.

It scores nothing: it reads decimals, powers and integer division in the way of Python, whatever the task allows.
"""

import ast
import operator
import re
from fractions import Fraction

_LONGEST = 80
_LARGEST = 10**9
_SAME = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "^": "**", "[": "(", "]": ")"})
_ARITHMETIC = re.compile(r"[0-9.+\-*/%() ]+")
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def guess_value(text: str) -> Fraction | None:
    """The value of what stands before the first `=` or `#`, or None.

    Example:
        >>> guess_value("4.5 * 2"), guess_value("2**3 - 4 = 4"), guess_value("about 3")
        (Fraction(9, 1), Fraction(4, 1), None)
    """
    if len(text) > 2 * _LONGEST:
        return None
    text = " ".join(re.split("[=#]", text, maxsplit=1)[0].split()).translate(_SAME)
    if len(text) > _LONGEST or not _ARITHMETIC.fullmatch(text):
        return None
    text = re.sub(r"(?<![0-9.])0+(?=[0-9])", "", text)  # Python refuses zeros in front
    try:
        return _value_of(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _value_of(node: ast.expr) -> Fraction:
    """Raises ValueError for what is no arithmetic, or too much of it."""
    match node:
        case ast.Constant(value=int() | float() as number):
            value = Fraction(str(number))
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign):
            value = _value_of(node.operand) * (-1 if isinstance(sign, ast.USub) else 1)
        case ast.BinOp(op=ast.Pow()):
            exponent = _value_of(node.right)
            if exponent.denominator != 1 or abs(exponent) > 30:
                raise ValueError
            value = _value_of(node.left) ** int(exponent)
        case ast.BinOp():
            value = Fraction(_OPERATORS[type(node.op)](_value_of(node.left), _value_of(node.right)))
        case _:
            raise ValueError
    if abs(value) > _LARGEST or value.denominator > _LARGEST:
        raise ValueError
    return value
