"""Bounded numbers, as types of the configuration's fields."""

import math
from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

PositiveInt = Annotated[int, Gt(0)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0), Lt(math.inf)]
NonNegativeFloat = Annotated[float, Ge(0), Lt(math.inf)]
TestFraction = Annotated[float, Gt(0), Le(0.5)]
Fraction = Annotated[float, Ge(0), Le(1)]
