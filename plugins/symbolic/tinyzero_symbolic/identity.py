"""Whether two expressions are one rational function: their values at random points of a prime field.

Two different rational functions of degree d take one value at a random point of a field of p elements with a chance
of at most 2d / p (Schwartz and Zippel); here p has 127 bits and d at most 2^32, so a wrong result is out of
reach. Prime and points are hashed from both expressions, so that no text can be made to fit them. What is not
rational (a sine, a root, pi) counts as a variable of its own, the same for the same argument: then equality proves
that the expressions are equal, and inequality proves nothing.
"""

import hashlib
from dataclasses import dataclass, field
from math import gcd, prod

from tinyzero_symbolic.expression import Node

_BITS = 127
_MAX_DEGREE = 2**32
_SMALL = [n for n in range(3, 200, 2) if all(n % d for d in range(3, int(n**0.5) + 1, 2))]

_PRODUCT = prod(_SMALL)


class UndefinedError(ArithmeticError):
    """An expression has no value at a point."""


@dataclass
class Field:
    """A prime field with a value for each variable."""

    seed: str
    """What prime and values are hashed from."""

    prime: int = 0
    """The number of elements."""

    is_rational: bool = True
    """Whether all that was evaluated so far is rational in its letters."""

    _values: dict[tuple[object, ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seed = hashlib.blake2b(self.seed.encode()).hexdigest()
        candidate = self._hash("prime") % 2 ** (_BITS - 1) | 2 ** (_BITS - 1) | 1
        while not _is_prime(candidate):
            candidate += 2
        self.prime = candidate

    def evaluate(self, node: Node) -> tuple[int, int]:
        """Its value, and a bound of its degree.

        Raises:
            UndefinedError: it divides by zero, or is of too high a degree.
        """
        if node.value is not None:
            return (node.value.numerator * self._power(node.value.denominator % self.prime, -1) % self.prime), 0
        if node.kind == "symbol":
            return self._variable("symbol", node.name), 1
        if node.kind == "pow" and (exponent := node.parts[1].value) is not None and exponent.denominator == 1:
            base, degree = self.evaluate(node.parts[0])
            return self._power(base, int(exponent)), _check_degree(degree * abs(int(exponent)))
        values, degrees = zip(*map(self.evaluate, node.parts), strict=True) if node.parts else ((), (0,))
        if node.kind == "add":
            return sum(values) % self.prime, _check_degree(sum(degrees))
        if node.kind == "mul":
            product = 1
            for value in values:
                product = product * value % self.prime
            return product, _check_degree(sum(degrees))
        self.is_rational = False
        return self._variable(node.kind, node.name, *values), 1

    def _power(self, base: int, exponent: int) -> int:
        if base == 0 and exponent <= 0:
            raise UndefinedError
        return pow(base, exponent, self.prime)

    def _variable(self, *name: object) -> int:
        if name not in self._values:
            self._values[name] = self._hash(*name) % self.prime
        return self._values[name]

    def _hash(self, *name: object) -> int:
        return int.from_bytes(hashlib.blake2b(f"{self.seed} {name!r}".encode(), digest_size=32).digest(), "big")


def _check_degree(degree: int) -> int:
    if degree > _MAX_DEGREE:
        raise UndefinedError
    return degree


def _is_prime(n: int) -> bool:
    """Whether it is prime, by the test of Miller and Rabin.

    A random composite number of 100 bits passes five rounds with a chance below 2^-40 (Damgård, Landrock and
    Pomerance, Average case error estimates for the strong probable prime test, 1993).
    """
    if gcd(n, _PRODUCT) > 1:
        return False
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(_passes(pow(base, odd, n), n, twos) for base in _SMALL[:5])


def _passes(power: int, n: int, twos: int) -> bool:
    if power in (1, n - 1):
        return True
    for _ in range(twos - 1):
        power = power * power % n
        if power == n - 1:
            return True
    return False
