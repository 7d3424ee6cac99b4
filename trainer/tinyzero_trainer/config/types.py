"""Types that the groups of the configuration share: numbers within limits, and names to choose among."""

import math
import re
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

PositiveInt = Annotated[int, Gt(0)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0), Lt(math.inf)]
NonNegativeFloat = Annotated[float, Ge(0), Lt(math.inf)]
TestShare = Annotated[float, Gt(0), Le(0.5)]
Fraction = Annotated[float, Ge(0), Le(1)]

Advantage = Literal["grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "remax", "gae"]
Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
Estimator = Literal["exact", "k1", "abs", "k2", "k3", "k1+", "abs+", "k3+"]
Decay = Literal["constant", "linear", "cosine"]
Layout = Literal["auto", "padded", "packed"]

DEVICES = "auto, cpu, cuda or cuda:N"
"""What `run.device` may be."""


def is_device(name: str) -> bool:
    """Whether a device is one of `DEVICES`.

    Example:
        >>> is_device("cuda:1"), is_device("gpu")
        (True, False)
    """
    return re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", name, re.ASCII) is not None
