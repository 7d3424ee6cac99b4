"""Settings from rewards to a loss, and the policy losses they can name. No torch in here.

A policy loss is built in, or the user's: `my_package.losses:my_loss` is a function of an installed module,
`./my_loss.py:my_loss` one of a file, which may be a task file. Arguments and result: algorithms/losses.py.
"""

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.tasks.local_packages import execute
from tinyzero_trainer.utils.bounds import NonNegativeFloat, PositiveFloat, PositiveInt

Advantage = Literal[
    "grpo", "dr_grpo", "rloo", "gdpo", "reinforce_pp", "reinforce_pp_baseline", "remax", "gae", "raft",
    "on_policy_distillation",
]  # fmt: skip
Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
Estimator = Literal["exact", "k1", "abs", "k2", "k3", "k1+", "abs+", "k3+"]

BUILT_IN_LOSSES = ("ppo", "gspo", "cispo", "reinforce")
COMPARES_SAMPLES = ("grpo", "dr_grpo", "rloo", "gdpo", "reinforce_pp_baseline")
"""Advantages that compare the completions of a prompt with each other."""

NO_REWARDS = ("raft", "on_policy_distillation")
"""Advantages in which no reward, and so no KL penalty, counts."""


@dataclass(frozen=True)
class AlgorithmConfig:
    """From rewards to a loss."""

    advantage_estimator: Advantage = "grpo"
    """Function of that name in `algorithms/advantages.py`, where its paper is named."""

    gamma: Annotated[float, Gt(0), Le(1)] = 1.0
    """γ: discount of a reward per token."""

    gae_lambda: Annotated[float, Ge(0), Le(1)] = 1.0
    """λ of `gae`: 1 relies on the rewards alone, 0 on the critic's next value."""

    max_accepted: PositiveInt | None = None
    """Right completions of a prompt that `raft` trains on, the first ones; none = all."""

    policy_loss: str = "ppo"
    """`ppo` (clipped surrogate), `gspo` (one ratio a completion), `cispo` (clipped weights), `reinforce`; or your own
    function, such as ./my_loss.py:my_loss or my_package.losses:my_loss."""

    loss_aggregation: Aggregation = "token-mean"
    """Weights of a mini-batch's tokens; `-norm` divides by rollout.max_completion_tokens instead of the length."""

    clip_ratio_low: Annotated[float, Gt(0), Le(1)] = 0.2
    """The ratio is clipped below 1 - clip_ratio_low."""

    clip_ratio_high: PositiveFloat = 0.2
    """The ratio is clipped above 1 + clip_ratio_high."""

    dual_clip_c: Annotated[float, Gt(1), Lt(math.inf)] | None = None
    """For negative advantages the loss is bounded by this multiple of |advantage|; none = no bound."""

    kl_coefficient: NonNegativeFloat = 0.0
    """Weight of the KL divergence to the starting model; 0 = no reference model is loaded."""

    kl_coefficient_end: NonNegativeFloat | None = None
    """Weight of the KL at the last step, approached linearly; none = constant."""

    kl_estimator: Estimator = "k3"
    """Estimators use the sampled token alone; a `+` gives k2's gradient. `exact` = over the whole vocabulary."""

    kl_placement: Literal["loss", "reward"] = "loss"
    """Whether the KL is added to the loss, or subtracted from each token's reward."""

    kl_target: PositiveFloat | None = None
    """The coefficient adapts to keep the KL per token near this; none = the coefficient is fixed."""

    kl_horizon: PositiveInt = 10_000
    """Completions over which the adaptive coefficient may change by up to a fifth."""

    entropy_coefficient: NonNegativeFloat = 0.0
    """Weight of the entropy bonus."""

    def __post_init__(self) -> None:
        place, _, function = self.policy_loss.rpartition(":")
        if self.policy_loss not in BUILT_IN_LOSSES and not (place and function.isidentifier()):
            raise ValueError(
                f"algorithm.policy_loss={self.policy_loss!r} is unknown; known: {', '.join(BUILT_IN_LOSSES)}, or your "
                "own function by its file or module, such as ./my_loss.py:my_loss"
            )
        if self.advantage_estimator == "gdpo" and self.kl_in_reward:
            raise ValueError(
                "algorithm.kl_placement='reward': gdpo takes the parts of the score alone; leave the KL in the loss"
            )

    @property
    def kl_in_reward(self) -> bool:
        """Whether the KL is subtracted from the rewards."""
        return self.kl_coefficient > 0 and self.kl_placement == "reward"

    @property
    def needs_critic(self) -> bool:
        """Whether the advantages need a value model."""
        return self.advantage_estimator == "gae"

    @property
    def needs_teacher(self) -> bool:
        """Whether the advantages need another model's log-probabilities."""
        return self.advantage_estimator == "on_policy_distillation"


def check_loss_place(name: str) -> None:
    """Raise a SettingsError if the file or module of a user's loss does not exist, without importing it."""
    if name in BUILT_IN_LOSSES:
        return
    place = name.rpartition(":")[0]
    if place.endswith(".py"):
        if not Path(place).is_file():
            raise SettingsError(f"algorithm.policy_loss={name}: there is no file {place}")
    elif importlib.util.find_spec(place.partition(".")[0]) is None:
        raise SettingsError(
            f"algorithm.policy_loss={name}: no module {place!r} is installed; a file is named by its path, "
            f"such as ./{place.rpartition('.')[2]}.py:{name.rpartition(':')[2]}"
        )


def load_policy_loss(name: str) -> Callable[..., Any]:
    """A user's policy loss; a SettingsError if it cannot be imported."""
    check_loss_place(name)
    place, _, attribute = name.rpartition(":")
    try:
        if place.endswith(".py"):
            module_name = f"tinyzero_losses_{Path(place).stem}_{abs(hash(str(Path(place).resolve())))}"
            module = sys.modules.get(module_name) or execute(module_name, Path(place))
        else:
            module = importlib.import_module(place)
    except Exception as error:  # a user's module may raise anything
        raise SettingsError(f"algorithm.policy_loss={name} cannot be imported: {error!r}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise SettingsError(f"algorithm.policy_loss={name}: {place} has no function {attribute!r}")
    return function
