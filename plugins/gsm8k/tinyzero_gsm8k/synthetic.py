"""Word problems from templates, solvable by construction: enough to try the task without a file.

They are no substitute for GSM8K: the wording of a template never changes, only its numbers do. So a
question's text is its canonical form, and no two problems differ in names alone.
"""

import random
from collections.abc import Callable

from tinyzero_gsm8k.problems import Problem

Draw = Callable[[int, int], int]
"""A random whole number between two bounds, both included."""


def synthetic_problem(seed: int) -> Problem:
    """The problem of this seed, from one of the templates."""
    random_source = random.Random(seed)
    template = random_source.choice(TEMPLATES)
    return template(random_source.randint)


def _bakery(draw: Draw) -> Problem:
    trays, loaves = draw(3, 40), draw(4, 30)
    baked = trays * loaves
    sold = draw(1, baked - 1)
    return _problem(
        f"A bakery bakes {trays} trays of {loaves} loaves each and sells {sold} loaves. How many loaves are left?",
        f"It bakes {trays} * {loaves} = {baked} loaves.",
        f"{baked} - {sold} = {baked - sold} loaves are left.",
        result=baked - sold,
    )


def _library(draw: Draw) -> Problem:
    shelves, books, lent, back = draw(3, 30), draw(10, 50), draw(1, 29), draw(1, 60)
    owned = shelves * books
    return _problem(
        f"A library has {shelves} shelves with {books} books each. It lends {lent} books and gets {back} new ones. "
        "How many books are on its shelves now?",
        f"At first there are {shelves} * {books} = {owned} books.",
        f"{owned} - {lent} = {owned - lent} stay.",
        f"With the new ones there are {owned - lent} + {back} = {owned - lent + back}.",
        result=owned - lent + back,
    )


def _tickets(draw: Draw) -> Problem:
    adults, children, price = draw(2, 9), draw(2, 9), 2 * draw(3, 20)
    for_adults, for_children = adults * price, children * price // 2
    paid = -(-(for_adults + for_children) // 100) * 100
    return _problem(
        f"A museum ticket costs ${price}, and children pay half. A group of {adults} adults and {children} children "
        f"pays with ${paid}. How many dollars do they get back?",
        f"The adults pay {adults} * {price} = {for_adults} dollars.",
        f"A child pays {price} / 2 = {price // 2} dollars.",
        f"The children pay {children} * {price // 2} = {for_children} dollars.",
        f"Together that is {for_adults} + {for_children} = {for_adults + for_children} dollars.",
        f"They get {paid} - {for_adults + for_children} = {paid - for_adults - for_children} dollars back.",
        result=paid - for_adults - for_children,
    )


def _apples(draw: Draw) -> Problem:
    kilos, quarters = draw(2, 40), draw(5, 39)  # the price in quarters of a dollar
    return _problem(
        f"Apples cost ${_dollars(quarters)} a kilo. What do {kilos} kilos cost, in dollars?",
        f"They cost {kilos} * {_dollars(quarters)} = {_dollars(kilos * quarters)} dollars.",
        result=_dollars(kilos * quarters),
    )


TEMPLATES = (_bakery, _library, _tickets, _apples)


def _dollars(quarters: int) -> str:
    return f"{quarters // 4}.{quarters % 4 * 25:02d}"


def _problem(question: str, *steps: str, result: int | str) -> Problem:
    return Problem(question, "\n".join([*steps, f"#### {result}"]), str(result))
