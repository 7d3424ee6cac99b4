"""What decides that two expressions are equal: a proof, and never that their values agree.

In this order, since each is faster than the next: the identity of rational functions (a proof either way where the
expressions are rational), a point at which the values differ (a disproof), sympy reducing the difference to 0
(a proof). What none of them settles counts as not equal.
"""

from collections.abc import Callable
from typing import Any, Literal

import sympy

from tinyzero_symbolic.expression import Expression, Node, add, negative
from tinyzero_symbolic.identity import Field, UndefinedError
from tinyzero_symbolic.numeric import BeyondError, points_for

_ENOUGH = 6  # of sixteen points
Comparison = Callable[[Node, Node], bool]
Verdict = Literal["equal", "different", "alike", "unclear"]
"""Proved equal; different; neither, but their values agree; they agree, but at too few points, or one lacks a value."""


def equal(left: Expression, right: Expression) -> bool:
    """Whether two expressions are equal wherever both have a value, for real letters.

    It may take any time: call it where it can be killed, as in a task's `score`, which the trainer, `tinyzero score`
    and everything else of the SDK run in a `ScoringPool`. In a plain call of `Task.score_completion` a hang is the
    caller's risk.

    Example:
        >>> from tinyzero_symbolic import parse
        >>> equal(parse(r"\\sin^2 x + \\cos^2 x"), parse("1")), equal(parse("355/113"), parse("pi"))
        (True, False)
    """
    return _compare(left, right, _equal)


def numerically_equal(left: Expression, right: Expression) -> bool:
    """As `equal`, but without sympy, in bounded time: where there is no proof either way, sixty digits decide.

    At sixteen points of both signs and several sizes, hashed from the two expressions, beyond as many digits as their
    constants have: an expression made to be this close to another passes. Where only one has a value, or too few
    points have one, they do not count as equal. For what `equal` would not prove, and for calls outside a pool.

    Example:
        >>> from tinyzero_symbolic import parse
        >>> numerically_equal(parse(r"\\sqrt{2}\\sqrt{3}"), parse(r"\\sqrt 6"))
        True
    """
    return _compare(left, right, lambda a, b: _settle(a, b) in ("equal", "alike"))


def _compare(left: Expression, right: Expression, same: Comparison) -> bool:
    # `x = 5` is `5` where the other one is no equation: an answer may repeat what was asked for.
    named = [side.shape == "equation" and side.parts[0].kind == "symbol" for side in (left, right)]
    if named == [True, False] and right.shape == "value":
        left = Expression("value", left.parts[1:])
    if named == [False, True] and left.shape == "value":
        right = Expression("value", right.parts[1:])
    if left.shape != right.shape:
        return False
    if left.shape == "set":
        return _cover(left, right, same) and _cover(right, left, same)
    if left.shape == "equation":
        # The sides are equal, or their differences, up to the sign.
        differences = [add([side.parts[0], negative(side.parts[1])]) for side in (left, right)]
        return same(*differences) or same(differences[0], negative(differences[1]))
    if len(left.parts) != len(right.parts):
        return False
    return all(same(a, b) for a, b in zip(left.parts, right.parts, strict=True))


def _cover(left: Expression, right: Expression, same: Comparison) -> bool:
    """Whether each part of `left` is one of `right`."""
    return all(any(same(a, b) for b in right.parts) for a in left.parts)


def _equal(left: Node, right: Node) -> bool:
    outcome = _settle(left, right)
    return outcome == "equal" or (outcome in ("alike", "unclear") and _is_zero(add([left, negative(right)])))


def _settle(left: Node, right: Node) -> Verdict:
    """What is known without sympy."""
    if left.value is not None and right.value is not None:
        return "equal" if left.value == right.value else "different"
    if "infinity" in left.name + right.name:
        return "equal" if left == right else "different"
    field = Field(" ".join(sorted((repr(left), repr(right)))))  # either way round the same points
    try:
        (value, _), (other, _) = field.evaluate(left), field.evaluate(right)
    except UndefinedError:
        return "different"
    if value == other:
        return "equal"
    return "different" if field.is_rational else _agree(left, right, field.seed)


def _agree(left: Node, right: Node, seed: str) -> Verdict:
    """Whether the values agree at the points where both have one."""
    agreed, needed, one_sided = 0, 0, False
    for number, point in enumerate(points_for(seed, left, right)):
        needed = min(number + 1, _ENOUGH)
        values, defined = [], []
        for node in (left, right):
            try:
                values.append(point.evaluate(node))
                defined.append(True)
            except BeyondError:
                pass
            except UndefinedError:
                defined.append(False)
        one_sided |= defined in ([True, False], [False, True])
        if len(values) == 2:
            (value, slack), (other, other_slack) = values
            if abs(value - other) > slack + other_slack:
                return "different"
            agreed += 1
    if not agreed:
        return "different"
    return "unclear" if one_sided or agreed < needed else "alike"


def _is_zero(difference: Node) -> bool:
    expression = to_sympy(difference)
    if any(reduce(expression) == 0 for reduce in (sympy.expand, sympy.simplify)):
        return True
    return expression.equals(0) is True


def to_sympy(node: Node) -> sympy.Expr:
    """The same expression in sympy, with real letters; no text is passed on but the letters' names."""
    functions: dict[str, Any] = {name: getattr(sympy, name) for name in _SAME_NAME}
    functions |= {"add": sympy.Add, "mul": sympy.Mul, "pow": sympy.Pow, "ln": sympy.log, "abs": sympy.Abs}
    if node.value is not None:
        return sympy.Rational(node.value.numerator, node.value.denominator)
    if node.kind == "symbol":
        return sympy.Symbol(node.name, real=True)
    if node.kind == "constant":
        return {"pi": sympy.pi, "e": sympy.E, "i": sympy.I}[node.name]
    return functions[node.name or node.kind](*map(to_sympy, node.parts))


_SAME_NAME = ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "asin", "acos", "atan", "factorial")
