"""Settings of the updates: the optimizer, the critic's, and low-rank adapters."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le

from tinyzero_trainer.algorithms.schedules import Decay, decayed, warmed_up
from tinyzero_trainer.config.metadata import NOT_MOVED, RESUMABLE, SMALLER, Needs, Option, TradesMemory
from tinyzero_trainer.utils.bounds import Auto, Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

Layout = Literal["auto", "padded", "packed"]
MICRO_BATCH_TOKENS = 16384

_ADAPTER = Needs("lora.rank", "lora.rank=0 trains all weights")
_ROOT = Needs(lambda c: c.lora.rank > 1, "the square root of lora.rank=1 is 1")
_UPDATES = Needs(lambda c: not c.optimizer.single_update, NOT_MOVED)
_FALLS = Needs("optimizer.lr_schedule", "optimizer.lr_schedule='constant' stays at the peak", ("linear", "cosine"))
_LOWER = Needs(lambda c: c.optimizer.min_lr_ratio < 1, "with 1 the rate stays at the peak, whatever the schedule")
_WARM = Needs(
    lambda c: c.optimizer.warmup_steps < c.run.steps,
    "optimizer.warmup_steps={optimizer.warmup_steps} takes all of run.steps={run.steps}",
)
_PROMPTS = Needs(
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

    min_lr_ratio: Annotated[Fraction, _FALLS, _LOWER] = 0.0
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
    """`packed` = sequences one after another, without padding; changes memory and speed, never the loss. Without a
    varlen attention kernel, attention costs the square of micro_batch_tokens. `auto` = packed where a GPU has such a
    kernel, else padded."""

    max_nonfinite_updates: PositiveInt = 3
    """Consecutive updates with a non-finite loss or gradient (each is skipped) before the run stops."""

    @property
    def single_update(self) -> bool:
        """Whether the policy is updated once a batch: then nothing has moved from what is old."""
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
    """The value model of `algorithm.advantage_estimator=gae`.

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

    rslora: Annotated[bool, _ADAPTER, _ROOT] = False
    """Scale by alpha / √rank instead (arXiv 2312.03732), so that large ranks learn as fast as small ones."""

    target_modules: Annotated[tuple[str, ...], _ADAPTER] = ()
    """Linear layers, by the last part of their names, e.g. q_proj; empty = all but the output head."""
