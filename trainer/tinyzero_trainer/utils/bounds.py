"""Types of the configuration's fields: bounded numbers, and settings that may be left to the run."""

import math
from typing import Annotated, Literal, TypeVar

from annotated_types import Ge, Gt, Le, Lt

PositiveInt = Annotated[int, Gt(0)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0), Lt(math.inf)]
NonNegativeFloat = Annotated[float, Ge(0), Lt(math.inf)]
TestFraction = Annotated[float, Gt(0), Le(0.5)]
Fraction = Annotated[float, Ge(0), Le(1)]

T = TypeVar("T")
Auto = Literal["auto"]
"""Left to the run; advisor/auto.py chooses a value where it knows model and GPU."""


def unless_auto(value: T | Auto) -> T | None:
    """A setting's value; None where it is left to the run."""
    return None if value == "auto" else value
