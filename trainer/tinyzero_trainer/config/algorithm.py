"""Settings from rewards to a loss: the kinds of algorithm are in algorithms/kinds.py. No torch in here."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from tinyzero_trainer.algorithms.kinds import (
    ESTIMATORS,
    POLICY_LOSSES,
    Aggregation,
    Estimator,
    Loss,
    Need,
    estimator_of,
)
from tinyzero_trainer.algorithms.user_functions import check_name
from tinyzero_trainer.config.metadata import NOT_MOVED, Needs, ReadBy
from tinyzero_trainer.utils.bounds import NonNegativeFloat, PositiveFloat, PositiveInt

KlEstimator = Literal["exact", "k1", "abs", "k2", "k3", "k1+", "abs+", "k3+"]

_ESTIMATOR, _LOSS = (f"algorithm.{kind}={{algorithm.{kind}!r}}" for kind in ("advantage_estimator", "policy_loss"))
_DISCOUNTS = ReadBy("algorithm.estimator", f"{_ESTIMATOR} discounts nothing")
_VALUES = ReadBy("algorithm.estimator", f"{_ESTIMATOR} has no critic")
_ACCEPTS = ReadBy("algorithm.estimator", f"{_ESTIMATOR} trains on wrong completions too; take raft")
_REWARDS = Needs("algorithm.estimator.uses_rewards", f"{_ESTIMATOR} uses no rewards; leave the KL in the loss")
_KL = Needs("algorithm.kl_coefficient", "algorithm.kl_coefficient=0 leaves the KL out")
_FIXED = Needs(lambda c: c.algorithm.kl_target is None, "with algorithm.kl_target the coefficient adapts")
_ADAPTS = Needs("algorithm.kl_target", "without algorithm.kl_target the coefficient is fixed")
_VALUE_COUNTS = Needs(
    lambda c: c.algorithm.kl_placement == "loss" or c.algorithm.kl_estimator in ("k1", "abs", "k2", "k3"),
    "with algorithm.kl_placement='reward' only the value counts, and it is that of a sampled token; take k1, abs, k2 "
    "or k3",
)
_RATIO = Needs(lambda c: not c.optimizer.single_update or c.old_logprobs_source == "engine", NOT_MOVED)
_CLIPS = ReadBy("algorithm.loss", f"{_LOSS} clips nothing")
_DUAL_CLIP = ReadBy("algorithm.loss", f"{_LOSS} has no dual clip")


@dataclass(frozen=True)
class AlgorithmConfig:
    """From rewards to a loss."""

    advantage_estimator: str = "grpo"
    """`grpo`, `dr_grpo`, `rloo`, `gdpo`, `reinforce_pp`, `reinforce_pp_baseline`, `remax`, `gae`, `raft` or
    `on_policy_distillation`, functions in `algorithms/advantages.py`, where their papers are named; or your own
    function, such as ./my_estimator.py:my_estimator or my_package.estimators:my_estimator."""

    gamma: Annotated[float, Gt(0), Le(1), _DISCOUNTS] = 1.0
    """γ: discount of a reward per token."""

    gae_lambda: Annotated[float, Ge(0), Le(1), _VALUES] = 1.0
    """λ of `gae`: 1 relies on the rewards alone, 0 on the critic's next value."""

    max_accepted: Annotated[PositiveInt | None, _ACCEPTS] = None
    """Right completions of a prompt that `raft` trains on, the first ones; none = all."""

    policy_loss: str = "ppo"
    """`ppo` (clipped surrogate), `gspo` (one ratio a completion), `cispo` (clipped weights), `reinforce`; or your own
    function, such as ./my_loss.py:my_loss or my_package.losses:my_loss."""

    loss_aggregation: Aggregation = "token-mean"
    """Weights of a mini-batch's tokens; `-norm` divides by rollout.max_completion_tokens instead of the length."""

    clip_ratio_low: Annotated[float, Gt(0), Le(1), _CLIPS, _RATIO] = 0.2
    """The ratio is clipped below 1 - clip_ratio_low."""

    clip_ratio_high: Annotated[PositiveFloat, _CLIPS, _RATIO] = 0.2
    """The ratio is clipped above 1 + clip_ratio_high."""

    dual_clip_c: Annotated[Annotated[float, Gt(1), Lt(math.inf)] | None, _DUAL_CLIP, _RATIO] = None
    """For negative advantages the loss is bounded by this multiple of |advantage|; none = no bound."""

    kl_coefficient: NonNegativeFloat = 0.0
    """Weight of the KL divergence to the starting model; 0 = no reference model is loaded."""

    kl_coefficient_end: Annotated[NonNegativeFloat | None, _KL, _FIXED] = None
    """Weight of the KL at the last step, approached linearly; none = constant."""

    kl_estimator: Annotated[KlEstimator, _KL, _VALUE_COUNTS] = "k3"
    """Estimators use the sampled token alone; a `+` gives k2's gradient. `exact` = over the whole vocabulary."""

    kl_placement: Annotated[Literal["loss", "reward"], _REWARDS, _KL] = "loss"
    """Whether the KL is added to the loss, or subtracted from each token's reward."""

    kl_target: Annotated[PositiveFloat | None, _KL] = None
    """The coefficient adapts to keep the KL per token near this; none = the coefficient is fixed."""

    kl_horizon: Annotated[PositiveInt, _KL, _ADAPTS] = 10_000
    """Completions over which the adaptive coefficient may change by up to a fifth."""

    entropy_coefficient: NonNegativeFloat = 0.0
    """Weight of the entropy bonus."""

    def __post_init__(self) -> None:
        check_name("algorithm.advantage_estimator", self.advantage_estimator, ESTIMATORS)
        check_name("algorithm.policy_loss", self.policy_loss, POLICY_LOSSES)
        if self.needs("parts") and self.kl_in_reward:
            raise ValueError(
                f"algorithm.kl_placement='reward': {self.advantage_estimator} takes the parts of the score alone; "
                "leave the KL in the loss"
            )

    @property
    def kl_in_reward(self) -> bool:
        """Whether the KL is subtracted from the rewards."""
        return self.kl_coefficient > 0 and self.kl_placement == "reward"

    @property
    def estimator(self) -> Estimator:
        """What the advantage estimator needs."""
        return estimator_of(self.advantage_estimator)

    @property
    def loss(self) -> Loss:
        """What the policy loss reads."""
        return POLICY_LOSSES.get(self.policy_loss, Loss())

    def needs(self, need: Need) -> bool:
        """Whether the advantage estimator needs this."""
        return need in self.estimator.needs
