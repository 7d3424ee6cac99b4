"""Groups of the configuration: from rewards to a loss (the kinds of algorithm are in algorithms/kinds.py), and to new
weights: the optimizer, the critic's, and low-rank adapters."""

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
    loss_of,
)
from tinyzero_trainer.algorithms.schedules import Decay, decayed, warmed_up
from tinyzero_trainer.algorithms.user_functions import checked_name
from tinyzero_trainer.config.settings import RESUMABLE, SINGLE_UPDATE, SMALLER, Option, ReadBy, TradesMemory, UsedIf
from tinyzero_trainer.utils.bounds import Auto, Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

KlEstimator = Literal["exact", "k1", "abs", "k2", "k3", "k1+", "abs+", "k3+"]

_NAMES = ("algorithm.advantage_estimator", "algorithm.policy_loss")
_ESTIMATOR, _LOSS = (f"{name}={{{name}!r}}" for name in _NAMES)
_DISCOUNTS = ReadBy("algorithm.estimator", f"{_ESTIMATOR} discounts nothing", _NAMES[0])
_VALUES = ReadBy("algorithm.estimator", f"{_ESTIMATOR} has no critic", _NAMES[0])
_ACCEPTS = ReadBy("algorithm.estimator", f"{_ESTIMATOR} trains on wrong completions too; take raft", _NAMES[0])
_REWARDS = UsedIf("algorithm.estimator.uses_rewards", f"{_ESTIMATOR} uses no rewards; leave the KL in the loss")
_KL = UsedIf("algorithm.kl_coefficient", "algorithm.kl_coefficient=0 leaves the KL out")
_FIXED = UsedIf(lambda c: c.algorithm.kl_target is None, "with algorithm.kl_target the coefficient adapts")
_ADAPTS = UsedIf("algorithm.kl_target", "without algorithm.kl_target the coefficient is fixed")
_VALUE_COUNTS = UsedIf(
    lambda c: c.algorithm.kl_placement == "loss" or c.algorithm.kl_estimator in ("k1", "abs", "k2", "k3"),
    "with algorithm.kl_placement='reward' only the value counts, and it is that of a sampled token; take k1, abs, k2 "
    "or k3",
)
_RATIO = UsedIf(lambda c: not c.optimizer.single_update or c.old_logprobs_source == "engine", SINGLE_UPDATE)
_CLIPS = ReadBy("algorithm.loss", f"{_LOSS} clips nothing", _NAMES[1])
_DUAL_CLIP = ReadBy("algorithm.loss", f"{_LOSS} has no dual clip", _NAMES[1])


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
        for key, built_in in (("advantage_estimator", ESTIMATORS), ("policy_loss", POLICY_LOSSES)):
            object.__setattr__(self, key, checked_name(f"algorithm.{key}", getattr(self, key), built_in))
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
        return loss_of(self.policy_loss)

    def needs(self, need: Need) -> bool:
        """Whether the advantage estimator needs this."""
        return need in self.estimator.needs


Layout = Literal["auto", "padded", "packed"]
MICRO_BATCH_TOKENS = 16384

_ADAPTER = UsedIf("lora.rank", "lora.rank=0 trains all weights")
_UPDATES = UsedIf(lambda c: not c.optimizer.single_update, SINGLE_UPDATE)
_FALLS = UsedIf("optimizer.lr_schedule", "optimizer.lr_schedule='constant' stays at the peak", ("linear", "cosine"))
_WARM = UsedIf(
    lambda c: c.optimizer.warmup_steps < c.run.steps,
    "optimizer.warmup_steps={optimizer.warmup_steps} takes all of run.steps={run.steps}",
)
_PROMPTS = UsedIf(
    lambda c: c.optimizer.num_mini_batches <= c.data.prompts_per_step,
    "it is more than data.prompts_per_step={data.prompts_per_step}; lower it or raise the batch",
)


@dataclass(frozen=True)
class OptimizerConfig:
    """How the policy is updated."""

    learning_rate: PositiveFloat = 1e-6
    """Peak learning rate of AdamW."""

    warmup_steps: NonNegativeInt = 0
    """Steps of linear warm-up."""

    lr_schedule: Annotated[Decay, _WARM] = "constant"
    """How the learning rate falls from its peak, after the warm-up, until the last step."""

    min_lr_ratio: Annotated[Fraction, _FALLS] = 0.0
    """Learning rate at the last step, as a fraction of its peak."""

    beta1: Annotated[float, Ge(0), Le(0.9999)] = 0.9
    """AdamW's first-moment decay."""

    beta2: Annotated[float, Ge(0), Le(0.99999)] = 0.999
    """AdamW's second-moment decay."""

    weight_decay: NonNegativeFloat = 0.0
    """AdamW's decoupled weight decay, on matrices only."""

    max_grad_norm: PositiveFloat = 1.0
    """Gradients are scaled down to this global norm."""

    num_mini_batches: Annotated[PositiveInt, _PROMPTS] = 1
    """Optimizer steps per pass over a batch; each takes all completions of its prompts."""

    update_epochs: PositiveInt = 1
    """Passes over each batch."""

    micro_batch_tokens: Annotated[
        PositiveInt | Auto,
        RESUMABLE,
        TradesMemory((Option(SMALLER, "the update takes more passes, each a little less efficient", rank=5),)),
    ] = "auto"
    """Tokens (padding included) in one forward and backward pass; changes memory and speed, never the loss. `auto` =
    what suits the GPU and the model, and 16,384 where they are not known and on the CPU."""

    packing: Annotated[Layout, RESUMABLE] = "auto"
    """`packed` = sequences one after another, without padding; changes memory and speed, not the loss. `auto` = packed
    where a GPU has a varlen attention kernel, without which attention costs the square of micro_batch_tokens."""

    max_nonfinite_updates: PositiveInt = 3
    """Consecutive updates with a non-finite loss or gradient (each is skipped) before the run stops."""

    @property
    def single_update(self) -> bool:
        """Whether the policy is updated once a batch: then every ratio of new to old policy is 1."""
        return self.num_mini_batches == self.update_epochs == 1

    @property
    def token_budget(self) -> int:
        """micro_batch_tokens, or its default where it is left to the run and nothing has been chosen."""
        return MICRO_BATCH_TOKENS if self.micro_batch_tokens == "auto" else self.micro_batch_tokens

    def learning_rate_at(self, step: int, steps: int) -> float:
        """The learning rate of a step from 1 to `steps`: warm-up, then decay."""
        peak, warmup = self.learning_rate, self.warmup_steps
        rate = decayed(peak, self.min_lr_ratio * peak, step - warmup, steps - warmup, self.lr_schedule)
        return min(rate, warmed_up(peak, step, warmup))


@dataclass(frozen=True)
class CriticConfig:
    """The value model of `algorithm.advantage_estimator=gae`, or of your own estimator that needs one.

    It is made from the policy's own checkpoint.
    """

    learning_rate: PositiveFloat = 1e-5
    """Learning rate of its AdamW; all else about its updates is as for the policy."""

    value_clip_range: Annotated[PositiveFloat, _UPDATES] = 0.5
    """Values are clipped to the old ones ± this."""

    warmup_steps: NonNegativeInt = 0
    """Steps in which the critic learns and the policy does not."""


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters trained in place of all weights, through peft."""

    rank: NonNegativeInt = 0
    """Rank of each matrix's update; 0 = all weights are trained. Needs about 10 × optimizer.learning_rate."""

    alpha: Annotated[PositiveInt | None, _ADAPTER] = None
    """The update is scaled by alpha / rank; none = twice the rank."""

    rslora: Annotated[bool, _ADAPTER] = False
    """Scale by alpha / √rank instead (arXiv 2312.03732), so that large ranks learn as fast as small ones."""

    target_modules: Annotated[tuple[str, ...], _ADAPTER] = ()
    """Linear layers, by the last part of their names, e.g. q_proj; empty = all but the output head."""
