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

    top_p: Annotated[float, Gt(0), Le(1)] = 1.0
    """Nucleus sampling; below 1 the sampled distribution is no longer the policy's."""

    top_k: NonNegativeInt = 0
    """Sample among the k likeliest tokens; 0 = all."""

    max_sequences: PositiveInt = 512
    """Sequences generated at a time; bounds the memory of the KV cache."""


@dataclass(frozen=True)
class AlgorithmConfig:
    """From rewards to a loss."""

    advantage: Literal["grpo"] = "grpo"
    """`grpo` = reward minus the mean of its group (arXiv 2402.03300)."""

    normalize_by_std: bool = True
    """Divide the advantages of a group by their standard deviation plus 1e-6."""

    clip_low: PositiveFloat = 0.2
    """PPO clip below: the ratio counts down to 1 - clip_low."""

    clip_high: PositiveFloat = 0.2
    """PPO clip above: the ratio counts up to 1 + clip_high."""

    kl_coefficient: NonNegativeFloat = 0.0
    """Weight of the KL divergence to the starting model in the loss; 0 = no reference model is loaded."""

    kl_estimator: Literal["exact", "k3"] = "k3"
    """`k3` = from the sampled token alone (low variance, unbiased); `exact` = over the whole vocabulary."""


@dataclass(frozen=True)
class OptimizerConfig:
    """How the policy is updated."""

    learning_rate: PositiveFloat = 1e-6
    """Peak learning rate of AdamW."""

    warmup_steps: NonNegativeInt = 0
    """Steps of linear warm-up."""

    beta1: Annotated[float, Ge(0), Le(0.9999)] = 0.9
    """AdamW's first-moment decay."""

    beta2: Annotated[float, Ge(0), Le(0.99999)] = 0.999
    """AdamW's second-moment decay."""

    weight_decay: NonNegativeFloat = 0.0
    """AdamW's decoupled weight decay, on matrices only."""

    max_grad_norm: PositiveFloat = 1.0
    """Gradients are scaled down to this global norm."""

    mini_batches: PositiveInt = 1
    """Optimiser updates per batch; each takes whole prompts."""

    micro_batch_tokens: PositiveInt = 16384
    """Tokens (padding included) in one forward and backward pass; changes memory and speed, never the loss."""

    max_bad_steps: PositiveInt = 3
    """Updates in a row with a non-finite loss or gradient (each is skipped) before the run stops."""


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
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
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
        if self.rollout.samples_per_prompt == 1:
            raise ValueError("rollout.samples_per_prompt=1 leaves GRPO nothing to compare; set at least 2")
