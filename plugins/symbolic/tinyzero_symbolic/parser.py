"""From tokens to an expression, by recursive descent of bounded depth. What can be read in two ways is refused.

sum      = ["+" | "-"] term { ("+" | "-") term }
term     = product { ("*" | "/") product }
product  = power { power }                        next to one another: 2x, 3(x + 1), x sin x
power    = postfix [ "^" ["-"] power ]
postfix  = atom { "!" | "%" }
atom     = number | letter | constant | function … | "\\frac" … | "(" sum ")" | "{" sum "}" | "|" sum "|"
"""

from fractions import Fraction

from tinyzero_symbolic.expression import (
    INFINITY,
    MAX_DEPTH,
    MAX_PARTS,
    MINUS_ONE,
    Expression,
    ExpressionError,
    Node,
    Shape,
    add,
    call,
    divide,
    multiply,
    negative,
    number,
    power,
    root,
)
from tinyzero_symbolic.tokens import Token, tokenize

_CLOSING = {"(": ")", "{": "}", "|": "|"}
_OPEN, _CLOSE = ("(", "[", "{", "\\{"), (")", "]", "}", "\\}")
_SHAPES: dict[str, Shape] = {"()": "()", "[]": "[]", "(]": "(]", "[)": "[)", "{}": "set", "\\{\\}": "set"}
_END = Token("operator", "end")
_INFINITE = Token("constant", "infinity")
_ENDLESS = {  # infinity stands alone or not at all: there is no reckoning with it
    (_INFINITE,): INFINITY,
    (Token("operator", "+"), _INFINITE): INFINITY,
    (Token("operator", "-"), _INFINITE): negative(INFINITY),
}


def parse(text: str) -> Expression:
    """The expression that a text holds; the README of the package says which.

    Raises:
        ExpressionError: it is none, could be read in two ways, or is larger than the limits in `expression.py`.

    Example:
        >>> parse("(0, 2pi]").shape
        '(]'
        >>> parse("1/2x")
        Traceback (most recent call last):
        ...
        tinyzero_symbolic.expression.ExpressionError: a product without a sign after '/' is ambiguous
    """
    tokens = tokenize(text)
    if not tokens:
        raise ExpressionError("an empty text")
    shape, pieces = _split(tokens)
    if len(pieces) > MAX_PARTS:
        raise ExpressionError(f"{len(pieces)} parts; at most {MAX_PARTS} are read")
    return Expression(shape, tuple(_ENDLESS.get(tuple(piece)) or _Parser(piece).whole() for piece in pieces))


def _split(tokens: list[Token]) -> tuple[Shape, list[list[Token]]]:
    sides = _at(tokens, "=")
    if len(sides) == 2:
        return "equation", sides
    if _is_bracketed(tokens):
        inner, brackets = _at(tokens[1:-1], ","), tokens[0].text + tokens[-1].text
        shape = _SHAPES.get(brackets)
        if shape and (len(inner) > 1 or brackets in ("[]", "\\{\\}")):
            return shape, inner
    parts = _at(tokens, ",")
    return ("set" if len(parts) > 1 else "value"), parts


def _is_bracketed(tokens: list[Token]) -> bool:
    """Whether the first token is a bracket that the last one closes, whatever their types."""
    depth = 0
    for place, token in enumerate(tokens):
        if token.kind == "operator":
            depth += (token.text in _OPEN) - (token.text in _CLOSE)
        if depth <= 0:
            return place > 0 and place == len(tokens) - 1
    return False


def _at(tokens: list[Token], separator: str) -> list[list[Token]]:
    """The tokens between separators that are in no bracket."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        if token.kind == "operator":
            depth += (token.text in _OPEN) - (token.text in _CLOSE)
            if token.text == separator and depth == 0:
                parts.append([])
                continue
        parts[-1].append(token)
    return parts


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = [*tokens, _END]
        self._place = 0
        self._depth = 0

    def whole(self) -> Node:
        node = self._sum()
        if self._next != _END:
            raise ExpressionError(f"{self._next.text!r} where the expression should end")
        return node

    @property
    def _next(self) -> Token:
        return self._tokens[self._place]

    def _sees(self, *texts: str) -> bool:
        return self._next.kind == "operator" and self._next.text in texts

    def _take(self) -> Token:
        self._place += 1
        return self._tokens[self._place - 1]

    def _expect(self, text: str) -> None:
        if not self._sees(text):
            raise self._unexpected()
        self._place += 1

    def _unexpected(self) -> ExpressionError:
        return ExpressionError("it ends too early" if self._next == _END else f"{self._next.text!r} in a wrong place")

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExpressionError(f"more than {MAX_DEPTH} expressions inside one another")

    def _sum(self) -> Node:
        self._deeper()
        terms = [self._signed_term() if self._sees("+", "-") else self._term()]
        while self._sees("+", "-"):
            terms.append(self._signed_term())
        self._depth -= 1
        return add(terms)

    def _signed_term(self) -> Node:
        return negative(self._term()) if self._take().text == "-" else self._term()

    def _term(self) -> Node:
        factors = self._product()
        while self._sees("*", "/"):
            operator = self._take().text
            if self._sees("-"):  # 2 * -3
                self._take()
                factors.append(MINUS_ONE)
            product = self._product()
            if operator == "/" and len(product) > 1:
                raise ExpressionError("a product without a sign after '/' is ambiguous")
            factors += [power(product[0], MINUS_ONE)] if operator == "/" else product
        return multiply(factors)

    def _product(self) -> list[Node]:
        """Factors next to one another."""
        starts_with_number = self._next.kind == "number"
        factors = [self._power()]
        if starts_with_number and self._place and self._tokens[self._place - 1].kind == "number":
            factors += self._mixed_number(factors)
        while self._next.kind in ("letter", "constant", "function", "structure") or self._sees("(", "{"):
            braced = self._sees("{")
            factors.append(self._power())
            if braced and factors[-1].value is not None:  # 2{3} is printed as 23
                raise ExpressionError("a number in braces after a factor is ambiguous")
        return factors

    def _mixed_number(self, factors: list[Node]) -> list[Node]:
        """What follows a number, if that is a fraction: with another number it makes a mixed number."""
        if self._next != Token("structure", "frac"):
            return []
        whole, part = factors[0].value, self._power()
        if part.value is None or whole is None:
            return [part]
        if whole.denominator != 1 or not 0 < part.value < 1:
            raise ExpressionError("a fraction next to a number is ambiguous")
        factors[0] = number(whole + part.value)
        return []

    def _power(self) -> Node:
        self._deeper()
        base = self._postfix()
        if self._sees("^"):
            self._take()
            minus = self._sees("-")
            if self._sees("-", "+"):
                self._take()
            exponent = self._power()
            base = power(base, negative(exponent) if minus else exponent)
        self._depth -= 1
        return base

    def _postfix(self) -> Node:
        node = self._atom()
        if self._sees("!"):
            self._take()
            node = call("factorial", node)
            if self._sees("!"):
                raise ExpressionError("'!!' is ambiguous")
        if self._sees("%"):
            self._take()
            node = divide(node, number(100))
        return node

    def _atom(self) -> Node:
        if self._sees(*_CLOSING):
            return self._group()
        token = self._next
        if token.kind == "operator":
            raise self._unexpected()
        self._take()
        if token.kind == "number":
            return number(Fraction(token.text))
        if token.kind == "letter":
            return Node("symbol", name=token.text + self._subscript())
        if token.kind == "function":
            return self._function(token.text)
        if token.kind == "structure":
            return self._structure(token.text)
        if token.text == "infinity":
            raise ExpressionError("infinity inside an expression")
        return Node("constant", name=token.text)

    def _group(self) -> Node:
        opening = self._take().text
        node = self._sum()
        self._expect(_CLOSING[opening])
        return call("abs", node) if opening == "|" else node

    def _subscript(self) -> str:
        if not self._sees("_"):
            return ""
        self._take()
        braced = self._sees("{")
        if braced:
            self._take()
        if self._next.kind not in ("number", "letter", "constant"):
            raise self._unexpected()
        name = self._take().text
        if braced:
            self._expect("}")
        return f"_{name}"

    def _function(self, name: str) -> Node:
        base = None
        if name == "log":
            name = "ln"
            if self._sees("_"):
                self._take()
                base = self._argument()
        times = number(1)
        if self._sees("^"):
            self._take()
            times = self._argument()
            if times.value is None or times.value < 1 or times.value.denominator != 1:
                raise ExpressionError("a power of a function that is no natural number is ambiguous")
        argument = self._group() if self._sees("(", "{") else self._bare_argument()
        node = call(name, argument)
        return power(node if base is None else divide(node, call("ln", base)), times)

    def _bare_argument(self) -> Node:
        """The argument of a function without brackets: `2x` in `sin 2x`."""
        factors = [self._power()] if self._next.kind in ("number", "letter", "constant", "structure") else []
        while self._next.kind in ("letter", "constant", "structure"):
            factors.append(self._power())
        if not factors:
            raise self._unexpected()
        if self._sees("/", "("):
            raise ExpressionError(f"{self._next.text!r} after a function without brackets is ambiguous")
        return multiply(factors)

    def _structure(self, name: str) -> Node:
        if name == "frac":
            above = self._argument()
            return divide(above, self._argument())
        index = number(2)
        if self._sees("["):
            self._take()
            index = self._sum()
            self._expect("]")
        return root(self._group() if self._sees("(") else self._argument(), index)

    def _argument(self) -> Node:
        """What LaTeX takes for the argument of a command: a group, or the next character."""
        if self._sees("{"):
            return self._group()
        token = self._next
        if token.kind == "number" and token.text.isdigit():
            first, rest = token.text[0], token.text[1:]
            self._tokens[self._place] = Token("number", rest)
            self._place += not rest
            return number(int(first))
        if token.kind not in ("letter", "constant") or token.text == "infinity":
            raise self._unexpected()
        self._take()
        return Node("symbol" if token.kind == "letter" else "constant", name=token.text)
