"""Groups of the configuration: from rewards to a loss, and how weights are updated."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from tinyzero_trainer.utils.bounds import Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from tinyzero_trainer.utils.import_object import check_name

Advantage = Literal["grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "remax", "gae"]
Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
Estimator = Literal["exact", "k1", "abs", "k2", "k3", "k1+", "abs+", "k3+"]
Decay = Literal["constant", "linear", "cosine"]
Layout = Literal["auto", "padded", "packed"]

COMPARES_SAMPLES = ("grpo", "dr_grpo", "rloo", "reinforce_pp_baseline")
"""Advantages that compare the completions of a prompt with each other."""


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters trained in place of all weights, through peft."""

    rank: NonNegativeInt = 0
    """Rank of each matrix's update; 0 = all weights are trained. Needs about 10 × optimizer.learning_rate."""

    alpha: PositiveInt | None = None
    """The update is scaled by alpha / rank; none = twice the rank."""

    rslora: bool = False
    """Scale by alpha / √rank instead (arXiv 2312.03732), so that large ranks learn as fast as small ones."""

    target_modules: tuple[str, ...] = ()
    """Linear layers, by the last part of their names, e.g. q_proj; empty = all but the output head."""


@dataclass(frozen=True)
class AlgorithmConfig:
    """From rewards to a loss."""

    advantage_estimator: Advantage = "grpo"
    """Advantage estimator: the function of that name in `algorithms/advantages.py`, where its paper is named."""

    gamma: Annotated[float, Gt(0), Le(1)] = 1.0
    """γ: discount of a reward per token."""

    gae_lambda: Annotated[float, Ge(0), Le(1)] = 1.0
    """λ of `gae`: 1 relies on the rewards alone, 0 on the critic's next value."""

    policy_loss: str = "ppo"
    """`ppo` (clipped surrogate), `gspo` (one ratio a completion), `cispo` (clipped weights), `reinforce`; or a function
    of your own, by its file or module, such as ./my_loss.py:my_loss."""

    loss_aggregation: Aggregation = "token-mean"
    """How the tokens of a mini-batch are weighted; `-norm` divides by rollout.max_completion_tokens instead of the
    length."""

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
        check_name(self.policy_loss)

    @property
    def kl_in_reward(self) -> bool:
        """Whether the KL is subtracted from the rewards."""
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
    """Learning rate at the last step, as a fraction of its peak."""

    beta1: Annotated[float, Ge(0), Le(0.9999)] = 0.9
    """AdamW's first-moment decay."""

    beta2: Annotated[float, Ge(0), Le(0.99999)] = 0.999
    """AdamW's second-moment decay."""

    weight_decay: NonNegativeFloat = 0.0
    """AdamW's decoupled weight decay, on matrices only."""

    max_grad_norm: PositiveFloat = 1.0
    """Gradients are scaled down to this global norm."""

    num_mini_batches: PositiveInt = 1
    """Optimizer steps per pass over a batch; each takes all completions of its prompts."""

    update_epochs: PositiveInt = 1
    """Passes over each batch."""

    micro_batch_tokens: PositiveInt = 16384
    """Tokens (padding included) in one forward and backward pass; changes memory and speed, never the loss."""

    packing: Layout = "auto"
    """`packed` = sequences one after another, without padding; changes memory and speed, never the loss. Without a
    varlen attention kernel, attention costs the square of micro_batch_tokens. `auto` = packed where there is such a
    kernel (on a GPU), else padded."""

    max_nonfinite_updates: PositiveInt = 3
    """Consecutive updates with a non-finite loss or gradient (each is skipped) before the run stops."""


@dataclass(frozen=True)
class CriticConfig:
    """The value model of `algorithm.advantage_estimator=gae`, made from the policy's own checkpoint."""

    learning_rate: PositiveFloat = 1e-5
    """Learning rate of its AdamW; all else about its updates is as for the policy."""

    value_clip_range: PositiveFloat = 0.5
    """Values are clipped to the old ones ± this."""

    warmup_steps: NonNegativeInt = 0
    """Steps in which the critic learns and the policy does not."""
