"""Groups of the configuration that say what is learnt from completions, and with which weights."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from tinyzero_trainer.config.types import (
    Advantage,
    Aggregation,
    Decay,
    Estimator,
    Fraction,
    Layout,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)
from tinyzero_trainer.utils.import_object import check_name

COMPARES_SAMPLES = ("grpo", "dr_grpo", "rloo", "reinforce_pp_baseline")
"""Advantages that compare the completions of a prompt with each other."""


@dataclass(frozen=True)
class LoraConfig:
    """Small matrices trained beside frozen weights, through peft."""

    rank: NonNegativeInt = 0
    """Rank of the update of each matrix; 0 = all weights are trained. Takes about 10 × optimizer.learning_rate."""

    alpha: PositiveInt | None = None
    """The update is scaled by alpha / rank; none = twice the rank."""

    rslora: bool = False
    """Scale by alpha / √rank instead (arXiv 2312.03732), which keeps large ranks as quick as small ones."""

    target_modules: tuple[str, ...] = ()
    """Linear layers, by the last part of their names, e.g. q_proj; none named = all but the output head."""


@dataclass(frozen=True)
class AlgorithmConfig:
    """From rewards to a loss. A setting that has no effect under the others is refused."""

    advantage_estimator: Advantage = "grpo"
    """What a completion is compared with: a function of that name in `algorithms/advantages.py`, with its paper."""

    gamma: Annotated[float, Gt(0), Le(1)] = 1.0
    """γ: what a reward one token later is worth now."""

    gae_lambda: Annotated[float, Ge(0), Le(1)] = 1.0
    """λ of `gae`: 1 trusts the rewards alone, 0 the critic's next value."""

    policy_loss: str = "ppo"
    """`ppo` (clipped surrogate), `gspo` (one ratio a completion), `cispo` (clipped weights), `reinforce`; or a function
    of your own, by its file or module: ./my_loss.py:my_loss."""

    loss_aggregation: Aggregation = "token-mean"
    """How the tokens of a mini-batch are weighted; `-norm` divides by rollout.max_completion_tokens instead of the
    length."""

    clip_ratio_low: Annotated[float, Gt(0), Le(1)] = 0.2
    """The ratio counts down to 1 - clip_low."""

    clip_ratio_high: PositiveFloat = 0.2
    """The ratio counts up to 1 + clip_high."""

    dual_clip_c: Annotated[float, Gt(1), Lt(math.inf)] | None = None
    """With a negative advantage the loss stays below this times it; none = without."""

    kl_coefficient: NonNegativeFloat = 0.0
    """Weight of the KL divergence to the starting model; 0 = no reference model is loaded."""

    kl_coefficient_end: NonNegativeFloat | None = None
    """Weight of the KL at the last step, approached linearly; none = it stays the same."""

    kl_estimator: Estimator = "k3"
    """From the sampled token alone; a `+` gives it k2's gradient. `exact` = over the whole vocabulary."""

    kl_placement: Literal["loss", "reward"] = "loss"
    """Whether the KL is added to the loss, or taken off each token's reward."""

    kl_target: PositiveFloat | None = None
    """The coefficient adapts so that the KL a token stays near this; none = the coefficient is fixed."""

    kl_horizon: PositiveInt = 10_000
    """Completions over which the adaptive coefficient may change by up to a fifth."""

    entropy_coefficient: NonNegativeFloat = 0.0
    """Weight of the entropy bonus."""

    def __post_init__(self) -> None:
        check_name(self.policy_loss)

    @property
    def kl_in_reward(self) -> bool:
        """Whether the KL is taken off the rewards."""
        return self.kl_coefficient > 0 and self.kl_placement == "reward"

    @property
    def needs_critic(self) -> bool:
        """Whether the advantages need a value model."""
        return self.advantage_estimator == "gae"


@dataclass(frozen=True)
class OptimizerConfig:
    """How the policy is updated."""

    learning_rate: PositiveFloat = 1e-6
    """Peak learning rate of AdamW."""

    warmup_steps: NonNegativeInt = 0
    """Steps of linear warm-up."""

    lr_schedule: Decay = "constant"
    """How the learning rate falls from its peak, after the warm-up, until the last step."""

    min_lr_ratio: Fraction = 0.0
    """Learning rate at the last step, as a share of its peak."""

    beta1: Annotated[float, Ge(0), Le(0.9999)] = 0.9
    """AdamW's first-moment decay."""

    beta2: Annotated[float, Ge(0), Le(0.99999)] = 0.999
    """AdamW's second-moment decay."""

    weight_decay: NonNegativeFloat = 0.0
    """AdamW's decoupled weight decay, on matrices only."""

    max_grad_norm: PositiveFloat = 1.0
    """Gradients are scaled down to this global norm."""

    num_mini_batches: PositiveInt = 1
    """Optimiser updates per pass over a batch; each takes whole prompts."""

    update_epochs: PositiveInt = 1
    """Passes over each batch."""

    micro_batch_tokens: PositiveInt = 16384
    """Tokens (padding included) in one forward and backward pass; changes memory and speed, never the loss."""

    packing: Layout = "auto"
    """`packed` = sequences one after another, without padding; changes memory and speed, never the loss. Without a
    kernel for sequences of unequal length, its attention costs the square of micro_batch_tokens. `auto` = packed where
    there is such a kernel (on a GPU), else padded."""

    max_nonfinite_updates: PositiveInt = 3
    """Updates in a row with a non-finite loss or gradient (each is skipped) before the run stops."""


@dataclass(frozen=True)
class CriticConfig:
    """The value model of `algorithm.advantage_estimator=gae`, made from the policy's own checkpoint."""

    learning_rate: PositiveFloat = 1e-5
    """Of its AdamW; everything else about its updates is as the policy's."""

    value_clip_range: PositiveFloat = 0.5
    """A value counts within the old one ± this."""

    warmup_steps: NonNegativeInt = 0
    """Steps in which the critic learns and the policy does not."""
