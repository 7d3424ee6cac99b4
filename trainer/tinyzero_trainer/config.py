"""The trainer's configuration: one typed tree, in the order in which help and `config.toml` show it.

Filled from TOML and `key=value` words by `tinyzero_sdk.settings`; checks across fields are in
`__post_init__`, so an impossible configuration stops before anything is loaded. No torch in here.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

PositiveInt = Annotated[int, Gt(0)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0), Lt(math.inf)]
NonNegativeFloat = Annotated[float, Ge(0), Lt(math.inf)]
TestShare = Annotated[float, Gt(0), Le(0.5)]
Fraction = Annotated[float, Ge(0), Le(1)]


@dataclass(frozen=True)
class RunConfig:
    """What is run, and where."""

    task: str = ""
    """Name of an installed task, or the path of a task file."""

    output: str = ""
    """Run directory; created if missing."""

    seed: int = 0
    """Every random choice of the run derives from it."""

    steps: PositiveInt = 100
    """Training steps; each takes one batch of prompts."""

    executor: Literal["local"] = "local"
    """Where the roles run: `local` = in this process."""

    device: str = "auto"
    """`cpu`, `cuda`, or `auto` = a GPU where there is one."""

    wrappers: tuple[str, ...] = ()
    """Score wrappers put around the task's reward, by name, innermost first."""

    allow_unsafe_scorers: bool = False
    """Run a scorer that its task says must not be trusted with a model's text, in the worker processes."""


@dataclass(frozen=True)
class ModelConfig:
    """The language model to train."""

    path: str | None = None
    """Directory or Hub name of a transformers causal LM; none = the tiny model that comes with the trainer."""


@dataclass(frozen=True)
class DataConfig:
    """Where problems come from."""

    template: str | None = None
    """Prompt template; none = `chat` if the model has a chat template, else `base`."""

    prompts_per_step: PositiveInt = 32
    """Problems in a batch."""

    dynamic_rounds: NonNegativeInt = 0
    """Dynamic sampling: groups whose rewards are all equal are replaced, in at most so many rounds; 0 = trained on."""

    test_share: TestShare = 1 / 16
    """Share of all problems, by the hash of their key, that is held out."""

    max_prompt_tokens: PositiveInt = 1024
    """Longer prompts stop the run before it starts."""


@dataclass(frozen=True)
class RolloutConfig:
    """How completions are generated."""

    engine: Literal["torch"] = "torch"
    """`torch` = in this process, batched, with a KV cache."""

    samples_per_prompt: PositiveInt = 8
    """Completions of one prompt: the group that advantages compare."""

    max_tokens: PositiveInt = 256
    """Longest completion, in tokens."""

    temperature: PositiveFloat = 1.0
    """Sampling temperature in training."""

    final_temperature: PositiveFloat | None = None
    """Temperature at the last step, approached linearly; none = it stays the same."""

    top_p: Annotated[float, Gt(0), Le(1)] = 1.0
    """Nucleus sampling; below 1 the sampled distribution is no longer the policy's."""

    top_k: NonNegativeInt = 0
    """Sample among the k likeliest tokens; 0 = all."""

    max_sequences: PositiveInt = 512
    """Sequences generated at a time; bounds the memory of the KV cache."""


COMPARES_SAMPLES = ("grpo", "dr_grpo", "rloo", "reinforce_pp_baseline")
"""Advantages that compare the completions of a prompt with each other."""

DISCOUNTS = ("reinforce_pp", "remax", "gae")
"""Advantages that give each token the return from it on."""


@dataclass(frozen=True)
class WindowConfig:
    """How many tokens completions may have in training; evaluation always uses rollout.max_tokens."""

    mode: Literal["full", "fixed", "adaptive"] = "full"
    """`full` = rollout.max_tokens; `fixed` = window.tokens; `adaptive` = shorter while the model succeeds."""

    tokens: PositiveInt = 256
    """The fixed window."""

    least: PositiveInt = 32
    """The adaptive window is never shorter."""

    warmup_steps: PositiveInt = 10
    """Steps at full length, after which it starts from the mean length of correct completions."""

    every: PositiveInt = 5
    """Steps between two decisions."""

    change: PositiveInt = 64
    """Tokens by which a decision changes the window."""

    gap: PositiveInt = 32
    """Tokens of the window that may stay unused before it shrinks."""

    target: Fraction = 0.7
    """Share of correct completions to keep to."""

    tolerance: Fraction = 0.05
    """Above target + tolerance the window shrinks, below target - tolerance it grows."""

    truncated_limit: Fraction = 0.1
    """It never shrinks while more than this share is cut off."""

    hold_steps: PositiveInt = 20
    """Steps of success without change after which it grows, to see whether longer is better."""

    decay: Annotated[float, Ge(0), Lt(1)] = 0.9
    """Of the exponential averages."""

    explore: Fraction = 0.0
    """Chance of a single step at full length."""

    def __post_init__(self) -> None:
        effective = {"full": {"mode"}, "fixed": {"mode", "tokens"}}
        for name, field_ in type(self).__dataclass_fields__.items():
            useful = name in effective[self.mode] if self.mode in effective else name != "tokens"
            if not useful and getattr(self, name) != field_.default:
                raise ValueError(f"{name}={getattr(self, name)} has no effect with mode={self.mode!r}")


@dataclass(frozen=True)
class AlgorithmConfig:
    """From rewards to a loss. A setting that has no effect under the others is refused."""

    advantage: Literal["grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "remax", "gae"] = "grpo"
    """What a completion is compared with; each is a function of that name in `advantages.py`, with its paper."""

    discount: Annotated[float, Gt(0), Le(1)] = 1.0
    """γ: what a reward one token later is worth now."""

    trace_decay: Annotated[float, Ge(0), Le(1)] = 1.0
    """λ of `gae`: 1 trusts the rewards alone, 0 the critic's next value."""

    policy_loss: str = "ppo"
    """`ppo` (clipped surrogate), `gspo` (one ratio a completion), `cispo` (clipped weights), `reinforce`."""

    aggregation: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"] = (
        "token-mean"
    )
    """How the tokens of a mini-batch are weighted; `-norm` divides by rollout.max_tokens instead of the length."""

    clip_low: Annotated[float, Gt(0), Le(1)] = 0.2
    """The ratio counts down to 1 - clip_low."""

    clip_high: PositiveFloat = 0.2
    """The ratio counts up to 1 + clip_high."""

    dual_clip: Annotated[float, Gt(1), Lt(math.inf)] | None = None
    """With a negative advantage the loss stays below this times it; none = without."""

    kl_coefficient: NonNegativeFloat = 0.0
    """Weight of the KL divergence to the starting model; 0 = no reference model is loaded."""

    final_kl_coefficient: NonNegativeFloat | None = None
    """Weight of the KL at the last step, approached linearly; none = it stays the same."""

    kl_estimator: Literal["exact", "k1", "abs", "k2", "k3", "k1+", "abs+", "k3+"] = "k3"
    """From the sampled token alone; a `+` gives it k2's gradient. `exact` = over the whole vocabulary."""

    kl_in: Literal["loss", "reward"] = "loss"
    """Whether the KL is added to the loss, or taken off each token's reward."""

    kl_target: PositiveFloat | None = None
    """The coefficient adapts so that the KL a token stays near this; none = the coefficient is fixed."""

    kl_horizon: PositiveInt = 10_000
    """Completions over which the adaptive coefficient may change by up to a fifth."""

    entropy_coefficient: NonNegativeFloat = 0.0
    """Weight of the entropy bonus."""

    def __post_init__(self) -> None:
        if self.policy_loss == "reinforce":
            self._refuse("clip_low", "clip_high", "dual_clip", because="policy_loss='reinforce' clips nothing")
        if self.policy_loss == "cispo":
            self._refuse("dual_clip", because="policy_loss='cispo' bounds the ratio on both sides already")
        if self.advantage not in DISCOUNTS:
            self._refuse("discount", because=f"advantage={self.advantage!r} gives all tokens the same")
        if self.advantage != "gae":
            self._refuse("trace_decay", because=f"advantage={self.advantage!r} has no critic")
        if not self.kl_coefficient:
            names = ("kl_estimator", "kl_in", "kl_target", "kl_horizon", "final_kl_coefficient")
            self._refuse(*names, because="kl_coefficient=0 leaves the KL out")
        elif self.kl_target is not None:
            self._refuse("final_kl_coefficient", because="with kl_target the coefficient adapts")
        else:
            self._refuse("kl_horizon", because="without kl_target the coefficient is fixed")
        if self.kl_in == "reward" and (self.kl_estimator == "exact" or self.kl_estimator.endswith("+")):
            raise ValueError(
                f"kl_estimator={self.kl_estimator!r} with kl_in='reward': only the value counts there, "
                "and it is that of a sampled token; take k1, abs, k2 or k3"
            )

    def _refuse(self, *names: str, because: str) -> None:
        """Refuse settings that differ from their defaults, since they would have no effect."""
        for name in names:
            value = getattr(self, name)
            if value != type(self).__dataclass_fields__[name].default:
                raise ValueError(f"{name}={value!r} has no effect: {because}")


@dataclass(frozen=True)
class OptimizerConfig:
    """How the policy is updated."""

    learning_rate: PositiveFloat = 1e-6
    """Peak learning rate of AdamW."""

    warmup_steps: NonNegativeInt = 0
    """Steps of linear warm-up."""

    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls from its peak, after the warm-up, until the last step."""

    final_rate_share: Fraction = 0.0
    """Learning rate at the last step, as a share of its peak."""

    beta1: Annotated[float, Ge(0), Le(0.9999)] = 0.9
    """AdamW's first-moment decay."""

    beta2: Annotated[float, Ge(0), Le(0.99999)] = 0.999
    """AdamW's second-moment decay."""

    weight_decay: NonNegativeFloat = 0.0
    """AdamW's decoupled weight decay, on matrices only."""

    max_grad_norm: PositiveFloat = 1.0
    """Gradients are scaled down to this global norm."""

    mini_batches: PositiveInt = 1
    """Optimiser updates per pass over a batch; each takes whole prompts."""

    epochs: PositiveInt = 1
    """Passes over each batch."""

    micro_batch_tokens: PositiveInt = 16384
    """Tokens (padding included) in one forward and backward pass; changes memory and speed, never the loss."""

    max_bad_steps: PositiveInt = 3
    """Updates in a row with a non-finite loss or gradient (each is skipped) before the run stops."""


@dataclass(frozen=True)
class CriticConfig:
    """The value model of `algorithm.advantage=gae`, made from the policy's own checkpoint."""

    learning_rate: PositiveFloat = 1e-5
    """Of its AdamW; everything else about its updates is as the policy's."""

    value_clip: PositiveFloat = 0.5
    """A value counts within the old one ± this."""

    warmup_steps: NonNegativeInt = 0
    """Steps in which the critic learns and the policy does not."""


@dataclass(frozen=True)
class RewardConfig:
    """How completions are scored."""

    workers: PositiveInt = 1
    """Scoring processes."""

    time_limit: PositiveFloat = 5.0
    """Seconds for one completion; then its worker is killed and replaced, and the completion scores 0."""

    memory_limit_gb: PositiveFloat = 4.0
    """Address space of a worker, in GiB."""

    max_failed_share: Fraction = 0.5
    """The run stops if more than this share of a batch ends in an error or a time-out of the scorer."""


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation on held-out problems, before, during and after training."""

    size: PositiveInt = 1024
    """Held-out problems before and after training."""

    during_size: PositiveInt = 256
    """Held-out problems during training: the first of the same ones, at most eval.size."""

    every: NonNegativeInt = 25
    """Steps between evaluations during training; 0 = none."""

    temperature: PositiveFloat = 1.0
    """Temperature of the sampled evaluation."""

    greedy: bool = True
    """Also evaluate with the likeliest token each time, before and after training."""


@dataclass(frozen=True)
class CheckpointConfig:
    """What a run can go on from."""

    every: NonNegativeInt = 25
    """Steps between checkpoints; 0 = only at the end and when interrupted."""

    keep: Annotated[int, Ge(2)] = 2
    """Checkpoints kept; at least 2, so that one is whole while another is written."""


@dataclass(frozen=True)
class LogConfig:
    """Who is told."""

    trackers: tuple[Literal["wandb", "tensorboard"], ...] = ()
    """Observers beside `metrics.jsonl`; none of them can stop a run."""

    project: str = "tinyzero"
    """Project name for W&B."""

    rollouts_every: NonNegativeInt = 10
    """Steps between samples of rollouts written to `rollouts/`; 0 = none."""

    rollouts_count: PositiveInt = 16
    """Completions in such a sample."""


@dataclass(frozen=True)
class TrainConfig:
    """Everything a run depends on."""

    run: RunConfig = field(default_factory=RunConfig)
    task: dict[str, Any] = field(default_factory=dict)
    """The task's own options (`tinyzero tasks NAME` lists them), e.g. task.numbers=[3,4]."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    window: WindowConfig = field(default_factory=WindowConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        if self.optimizer.mini_batches > self.data.prompts_per_step:
            raise ValueError(
                f"optimizer.mini_batches={self.optimizer.mini_batches} is more than "
                f"data.prompts_per_step={self.data.prompts_per_step}; lower it or raise the batch"
            )
        if self.algorithm.advantage != "gae" and self.critic != CriticConfig():
            raise ValueError(
                f"critic.* has no effect: algorithm.advantage={self.algorithm.advantage!r} has no critic; take gae"
            )
        if self.rollout.samples_per_prompt == 1 and self.algorithm.advantage in COMPARES_SAMPLES:
            raise ValueError(
                f"rollout.samples_per_prompt=1 leaves algorithm.advantage={self.algorithm.advantage!r} nothing to "
                "compare; set at least 2"
            )
