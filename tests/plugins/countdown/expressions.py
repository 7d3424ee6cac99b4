"""Random expressions as trees, their exact values, and many ways to write them; nothing is shared with the checker."""

from fractions import Fraction

from hypothesis import strategies as st

Tree = int | tuple[str, "Tree", "Tree"]

_SPELLINGS = {
    "+": ["+"],
    "-": ["-", "−"],
    "*": ["*", "×", "·", "⋅", "∗", r"\times ", r"\cdot "],
    "/": ["/", "÷", r"\div "],
}
_BRACKETS = [("(", ")"), ("[", "]"), (r"\left(", r"\right)"), (r"\left[", r"\right]")]
_MARKS = [("", ""), ("", ""), ("$", "$"), ("$$", "$$"), (r"\(", r"\)"), (r"\[", r"\]"), (r"\boxed{", "}")]
_MARKS += [("**", "**"), ("`", "`"), ("", ".")]

numbers = st.lists(st.integers(0, 99), min_size=1, max_size=6)


@st.composite
def trees(draw, leaves=None):
    """A random tree over the leaves, in their order."""
    leaves = draw(numbers) if leaves is None else leaves
    if len(leaves) == 1:
        return leaves[0]
    at = draw(st.integers(1, len(leaves) - 1))
    return draw(st.sampled_from("+-*/")), draw(trees(leaves[:at])), draw(trees(leaves[at:]))


def leaves_of(tree):
    return [tree] if isinstance(tree, int) else leaves_of(tree[1]) + leaves_of(tree[2])


def value_of(tree):
    """The value, or None after a division by zero."""
    if isinstance(tree, int):
        return Fraction(tree)
    operator, (left, right) = tree[0], map(value_of, tree[1:])
    if left is None or right is None or (operator == "/" and right == 0):
        return None
    return {"+": left + right, "-": left - right, "*": left * right}[operator] if operator != "/" else left / right


def write(tree, random, claim=None):
    """The tree in some style a reader would accept, with `= claim` at its end."""
    left, right = random.choice(_MARKS)
    text = _write(tree, random, "") + (f"{_space(random)}={_space(random)}{claim}" if claim is not None else "")
    return _space(random) + left + _space(random) + text + _space(random) + right + _space(random)


def _write(tree, random, place):
    """`place` is the operator above, with `>` before it for its right operand."""
    if isinstance(tree, int):
        return _bracketed(str(tree), random) if random.random() < 0.05 else str(tree)
    operator, left, right = tree
    if operator == "/" and random.random() < 0.3:
        command = random.choice([r"\frac", r"\dfrac", r"\tfrac"])
        top, bottom = (f"{{{_space(random)}{_write(side, random, '')}{_space(random)}}}" for side in (left, right))
        return f"{command}{_space(random)}{top}{_space(random)}{bottom}"
    sign = _space(random) + random.choice(_SPELLINGS[operator]) + _space(random)
    text = _write(left, random, operator) + sign + _write(right, random, ">" + operator)
    must = place in (">-", "*", "/", ">*", ">/") if operator in "+-" else place in (">/", ">*")
    return _bracketed(text, random) if must or random.random() < 0.15 else text


def _bracketed(text, random):
    left, right = random.choice(_BRACKETS)
    return left + _space(random) + text + _space(random) + right


def _space(random):
    return random.choice(["", "", "", " ", "  ", "\n", "\t", "\r\n", "\u00a0", "\u2009", r"\,", r"\;"])
