"""Symbolic equality, for tasks whose answers are expressions: `parse` reads a text, `equal` compares what it read.

The reader is our own: digits, letters, operators, a fixed list of functions and a little LaTeX. It looks no name up
and runs nothing, its time is linear in a text of bounded length, and what it gives is plain data. Only `equal` uses
sympy, which may take any time: call it in `score`, which the scoring pool runs in processes that it can kill.

Example:
    >>> from tinyzero_symbolic import equal, parse
    >>> equal(parse(r"\\frac{x^2 - 1}{x - 1}"), parse("1 + x"))
    True
"""

from tinyzero_symbolic.compare import equal, numerically_equal
from tinyzero_symbolic.expression import Expression, ExpressionError
from tinyzero_symbolic.parser import parse

__all__ = ["Expression", "ExpressionError", "equal", "numerically_equal", "parse"]
