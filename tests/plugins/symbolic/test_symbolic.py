"""Symbolic equality: what is read, refused and equal, and that no text takes long or has an effect."""

import contextlib
import json
import re
import subprocess
import sys
from fractions import Fraction
from operator import add, mul, sub, truediv
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.relative_time import relative_time
from tinyzero_sdk import load_task
from tinyzero_symbolic import ExpressionError, equal, numerically_equal, parse
from tinyzero_symbolic.compare import to_sympy

DOCUMENT = (Path(__file__).parents[3] / "plugins/symbolic/README.md").read_text(encoding="utf-8")


def comparisons(left, right):
    """The results of both comparisons, which must agree in both directions."""
    a, b = parse(left), parse(right)
    proved, alike = equal(a, b), numerically_equal(a, b)
    assert (equal(b, a), numerically_equal(b, a)) == (proved, alike)
    return proved, alike


EQUAL = [
    (r"\frac{x^2 - 1}{x - 1}", "1+x"), (r"\sin^2 x + \cos^2 x", "1"), ("sqrt(12)", r"2\sqrt3"),
    (r"\sqrt{3 + 2\sqrt2}", r"1 + \sqrt{2}"), ("1/(1 + sqrt2)", "√2 - 1"), ("x^{1/2}x^{1/2}", "x"),
    ("2 sin x cos x", "sin(2x)"), (r"\cos \frac{\pi}{5}", "(1+√5)/4"), ("e^(i pi)", "-1"), (r"\log_2 8", "3"),
    ("ln(e^3)", "3"), ("arctan(1)", "π/4"), ("(n+1)!", "(n+1) n!"), ("5!", "120"), ("|x|", "sqrt(x**2)"),
    (r"\left|-3\right|", "3"), (r"\sqrt[3]{-8}", "-2"), ("-x^2", "-(x*x)"), ("2^3^2", "512"), ("2 * -3", "-6"),
    ("1,234.5", "2469/2"), ("50\\%", ".5"), (r"3\frac{1}{2}", "7/2"), (r"\frac12 x", "x/2"),
    (r"\dfrac{1}{2} \cdot 4 \times 3 \div 6", "1"), ("$x_1 + a_{12}$.", "a_12+x_1"), (r"\theta", "θ"),
    ("x = 5", "5"), ("y = 2x + 1", "2x - y + 1 = 0"), ("(1,200)", "(1, 200)"), (r"\{2, 1, 2\}", "1, 2"),
    (r"\left(-\infty, 3\right]", "(-oo, 6/2]"), (r"2\mathrm{x}", "2x"),
]  # fmt: skip

DIFFERENT = [
    ("x", "y"), ("355/113", "pi"), ("pi", "pi + 10^-100"), ("x", "x + 10^-100"),
    ("x", "x + 170141183460469231731687303715884105727"),  # a Mersenne prime
    ("2^1000", "2^1000 + 1"), (r"e^{\pi\sqrt{163}}", "262537412640768744"), ("sin x", "sin(x + 10^-50)"),
    ("(1, 2)", "(2, 1)"), ("[1, 2]", "(1, 2)"), ("1, 2", "1, 2, 3"), ("(1, 2)", "(1, 2, 3)"), ("x = 5", "(5, 6)"),
    ("∞", "-∞"), ("1/(x - x)", "1/(x - x)"), ("5", "5 cm"),
    # equal for positive letters, or for small ones, or beyond a constant
    ("|x|", "x"), (r"\sqrt{x^2}", "x"), ("x^2*|x|", "x^3"), ("|x + 1/2|", "x + 1/2"), ("|x| + |y|", "|x + y|"),
    ("|x y z|", "x y z"), ("ln(x^2)", "2 ln x"), ("ln(x y)", "ln x + ln y"), (r"\sqrt{x y}", r"\sqrt x \sqrt y"),
    ("arctan(tan x)", "x"),
    # of one only one has a value
    (r"\sqrt{|x| - x}", r"\sqrt{-2x}"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("left", "right"), EQUAL)
def test_equal(left, right):
    assert comparisons(left, right) == (True, True)


@pytest.mark.slow
@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_different(left, right):
    assert comparisons(left, right) == (False, False)


@pytest.mark.slow
def test_agreement_of_values_is_no_proof():
    assert comparisons("x", "x + e^(-1000)") == (False, True)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("|x y|", "abs(x) * abs(y)"), ("ln(x^2)", "2 ln(abs(x))"), ("arcsin x + arccos x", "pi/2"),
        ("e^{x^2} e^{y^2}", "e^{x^2 + y^2}"), ("cosh^2 x - sinh^2 x", "1"), ("x! (x + 1)", "(x + 1)!"),
        (r"\sqrt{x^4}", "x^2"), ("|x - y|", "|y - x|"), ("|a b c d f|", "abs(a b c) abs(d f)"),
    ],
)  # fmt: skip
def test_points_of_either_sign_and_any_size_agree_on_equal_expressions(left, right):
    assert numerically_equal(parse(left), parse(right))
    assert numerically_equal(parse(right), parse(left))


def test_too_few_points_with_a_value_are_no_agreement():
    left, right = parse("sin(x) + 10^9 - 10^9"), parse("sin x")
    assert numerically_equal(left, right)
    # The constants in an exponent put a value out of reach at all but the small points.
    left, right = parse("e^(x^1000) cos^2 x + e^(x^1000) sin^2 x"), parse("e^(x^1000)")
    assert not numerically_equal(left, right)


NOT_READ = [
    *("", " ", "$$", ".", "(", ")", "x)", "(x", "{}", "[1,2", "1,,2", "=", "x=", "x=y=z", "+", "x+", "2--3", "!", "^2"),
    *("1/0", "0^-1", "0^0", "ln(2)/ln(1)", "(-1)!", "0.5!", "301!", "9**9**9", "9^99999", "x^1001", "2^4097"),
    *("10^999^2", "1/2x", "1/2(x)", "1 2", "x2", "2(x)3", "1e5", "5!!", "sin", "sin x/2", "sin x(x+1)", r"2\frac53"),
    *("2{3}", r"\sqrt12", r"\frac{1}", r"\frac", "x_", "x_{", "|x", "∞+1", "5 or 6", r"5\text{ or }6", "x<1", "1:2"),
    *("x.y", "x;y", "word", "__import__('os')", "lambda: 0", "Symbol", "S(1)/0.1j", "x[0]", "f'{x}'", r"\input{x}"),
    *(r"\i", "0x10", "1_000", "١", "１", "²", "x\0", "\ud800", "\u202e5", "x" * 1001, "1" * 101, r"\sin^{-1} x"),
    *("(" * 33 + "x" + ")" * 33, "x^" * 40 + "x", ", ".join("123456789abcdefgh")),
]


@pytest.mark.parametrize("text", NOT_READ)
def test_refused(text):
    with pytest.raises(ExpressionError):
        parse(text)


def test_a_name_is_never_more_than_letters():
    assert [parse(name).parts[0].kind for name in ("S", "N", "Q", "lambda")] == ["symbol"] * 4
    assert [part.name for part in parse("abc").parts[0].parts] == ["a", "b", "c"]
    assert str(to_sympy(parse("E").parts[0]).is_real) == "True"  # a letter, and not sympy's constant


# ---- properties ------------------------------------------------------------------------------------------------------

OPERATORS = {"+": add, "-": sub, "*": mul, "/": truediv}
LEAVES = st.one_of(st.integers(0, 99), st.sampled_from("xyz"))
TREES = st.recursive(LEAVES, lambda inner: st.tuples(st.sampled_from("+-*/^"), inner, inner), max_leaves=8)
POINTS = [{"x": Fraction(7, 3), "y": Fraction(-5, 11), "z": Fraction(13)}, {"x": Fraction(2), "y": Fraction(9), "z": 5}]


def with_small_exponents(tree):
    """The same with small natural exponents, which keep it rational and within the limits."""
    if not isinstance(tree, tuple):
        return tree
    operator, left, right = tree
    return (operator, with_small_exponents(left), 2 if operator == "^" else with_small_exponents(right))


def value(tree, point):
    if not isinstance(tree, tuple):
        return Fraction(point.get(tree, tree) if isinstance(tree, str) else tree)
    operator, left, right = tree[0], value(tree[1], point), value(tree[2], point)
    return left ** int(right) if operator == "^" else OPERATORS[operator](left, right)


def plain(tree):
    if not isinstance(tree, tuple):
        return str(tree)
    operator, left, right = tree
    return f"({plain(left)}) {operator.replace('^', '**')} ({plain(right)})"


def latex(tree):
    if not isinstance(tree, tuple):
        return str(tree)
    operator, left, right = tree[0], latex(tree[1]), latex(tree[2])
    if operator == "/":
        return rf"\frac{{{left}}}{{{right}}}"
    if operator == "^":
        return rf"{{\left({left}\right)}}^{{{right}}}"
    sign = r" \cdot " if operator == "*" else operator
    return rf"\left({left}{sign}{right}\right)"


def minimal(tree, above=0):
    """As few brackets and signs as may be."""
    if not isinstance(tree, tuple):
        return str(tree)
    operator, left, right = tree
    rank = {"+": 1, "-": 1, "*": 2, "/": 2, "^": 4}[operator]
    text = f"{minimal(left, rank + (operator == '^'))}{operator}{minimal(right, rank + (operator != '^'))}"
    return f"({text})" if rank < above else text


@given(TREES.map(with_small_exponents))
@example(("-", ("/", 1, ("-", "x", 1)), "y"))
def test_every_style_reads_the_same(tree):
    try:
        expected = [value(tree, point) for point in POINTS]
    except ZeroDivisionError:
        assume(False)
    first, *others = [parse(style(tree)) for style in (plain, latex, minimal)]
    assert all(equal(first, other) for other in others)
    assert first.parts[0].value in (None, expected[0])


@pytest.mark.slow
@given(TREES.map(with_small_exponents), TREES.map(with_small_exponents))
def test_what_differs_at_a_point_is_different(one, other):
    try:
        assume(any(value(one, point) != value(other, point) for point in POINTS))
        left, right = parse(plain(one)), parse(plain(other))
    except (ZeroDivisionError, ExpressionError):
        assume(False)
    assert not equal(left, right)
    assert not numerically_equal(left, right)


TURNING = st.builds(lambda a, b: f"{a}x + ({b})", st.integers(1, 99), st.integers(-999, 999))


@pytest.mark.slow
@settings(max_examples=20)
@given(
    TURNING,
    st.sampled_from(["|{}|", r"\sqrt{{({})^2}}", r"\sqrt[4]{{({})^4}}"]),
    st.sampled_from(["{}", "({}) abs(y)", "e^y + {}"]),
)
def test_an_absolute_value_is_not_its_argument(argument, form, around):
    """And two forms of one absolute value are equal."""
    turned = around.format("(" + form.format(argument) + ")")
    assert not numerically_equal(parse(turned), parse(around.format(f"({argument})")))
    assert not numerically_equal(parse(turned), parse(around.format(f"(-({argument}))")))
    assert numerically_equal(parse(turned), parse(around.format(f"abs({argument})")))


HOSTILE = st.one_of(
    st.text(max_size=60),
    st.text(alphabet="0123456789xyei+-*/^!().,{}[]|_=% \\", max_size=300),
    st.lists(st.sampled_from([r"\frac", r"\sqrt", "{", "}", "[", "(", ")", "|", "9", "^", "**", "!", "x", "sin"])).map(
        "".join
    ),
    st.builds(
        lambda piece, times: piece * times,
        st.sampled_from(["(", "9^", "9!", "x*", "-", "|", "{", "2x+"]),
        st.integers(1, 2000),
    ),
)


@pytest.mark.slow
@given(HOSTILE)
@example("9" * 100 + "^" + "1" * 100)
@example("+".join(["1/" + "7" * 96] * 10))
@example("*".join(["(x+1)^1000"] * 90))
@example("*".join(["2^999"] * 100))
def test_any_text_is_read_or_refused_in_no_time(text):
    def read():
        with contextlib.suppress(ExpressionError):
            numerically_equal(parse(text), parse("x + pi"))

    assert relative_time(read, attempts=1) < 200


AUDIT = """
import json, sys
from tinyzero_symbolic import ExpressionError, parse
texts, seen = json.loads(sys.argv[1]), []
sys.addaudithook(lambda event, arguments: seen.append(event))
for text in texts:
    try:
        parse(text)
    except ExpressionError:
        pass
print([event for event in seen if event != "cpython._PySys_ClearAuditHooks"])
"""


def test_parsing_compiles_imports_and_opens_nothing():
    texts = ["__import__('os').system('x')", "S", "lambda x: x", r"\frac{1}{2}", "sin(x)^2", "exec", "x" * 999, "9!"]
    command = [sys.executable, "-c", AUDIT, json.dumps(texts)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


# ---- as a task -------------------------------------------------------------------------------------------------------


def test_the_example_task_works(tmp_path):
    (code,) = re.findall(r"^```python\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
    (tmp_path / "expand.py").write_text(code, encoding="utf-8")
    task = load_task(tmp_path / "expand.py")
    for item in task.dataset("train", 20):
        assert task.score_completion(task.solve(item), item.ground_truth).correct
    truth = "(x + 2)(x + 3)"
    for answer, reason in {
        r"6 + 5x + x^{2}": "ok",
        "x^2 + 5x + 7": "wrong",
        truth: "wrong",
        "x squared": "malformed",
        "9**9**9": "malformed",
    }.items():
        assert task.score_completion(f"<answer>{answer}</answer>", truth).reason == reason
    assert task.error_count == 0
