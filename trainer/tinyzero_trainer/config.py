"""The trainer's configuration: one typed tree, in the order in which help and `config.toml` show it.

Filled from TOML and `key=value` words by `tinyzero_sdk.settings`; checks across fields are in
`__post_init__`, so an impossible configuration stops before anything is loaded. No torch in here.
"""

import math
from dataclasses import dataclass, field, is_dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from tinyzero_trainer.effects import COMPARES_SAMPLES, idle_across, idle_in, refuse
from tinyzero_trainer.named_losses import check_name
from tinyzero_trainer.task_shares import TaskShare, read_shares, whole_entries

PositiveInt = Annotated[int, Gt(0)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0), Lt(math.inf)]
NonNegativeFloat = Annotated[float, Ge(0), Lt(math.inf)]
TestShare = Annotated[float, Gt(0), Le(0.5)]
Fraction = Annotated[float, Ge(0), Le(1)]


def _refuse_idle(group: str, settings: Any) -> None:
    refuse(idle_in(group, vars(settings)), {group: settings})


@dataclass(frozen=True)
class RunConfig:
    """What is run, and where."""

    task: str = ""
    """Name of an installed task, or the path of a task file; several tasks stand in `tasks` instead."""

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

    recipe: str | None = None
    """Recipe whose settings stand below the user's own: its name (`tinyzero recipes` lists them), or a TOML file."""

    wrappers: tuple[str, ...] = ()
    """Score wrappers put around the task's reward in training, innermost first; one that needs a limit and is given
    none, such as `overlong`, takes rollout.max_tokens. Evaluation reports the unshaped score."""

    allow_unsafe_scorers: bool = False
    """Run a scorer that its task says must not be trusted with a model's text, in the worker processes."""


@dataclass(frozen=True)
class ModelConfig:
    """The language model to train."""

    path: str | None = None
    """Directory or Hub name of a transformers causal LM; none = the tiny model that comes with the trainer."""


@dataclass(frozen=True)
class LoraConfig:
    """Small matrices trained beside frozen weights, through peft."""

    rank: NonNegativeInt = 0
    """Rank of the update of each matrix; 0 = all weights are trained. Takes about 10 × optimizer.learning_rate."""

    alpha: PositiveInt | None = None
    """The update is scaled by alpha / rank; none = twice the rank."""

    rslora: bool = False
    """Scale by alpha / √rank instead (arXiv 2312.03732), which keeps large ranks as quick as small ones."""

    targets: tuple[str, ...] = ()
    """Linear layers, by the last part of their names, e.g. q_proj; none named = all but the output head."""

    def __post_init__(self) -> None:
        _refuse_idle("lora", self)


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
class CurriculumConfig:
    """Problems drawn by difficulty and measured pass rate, in each task apart."""

    buckets: NonNegativeInt = 0
    """Quantiles of the problems' difficulty, told apart by their pass rate; 0 = problems come as they are."""

    target: Annotated[float, Gt(0), Lt(1)] = 0.5
    """Pass rate of the bucket that is drawn most."""

    decay: Annotated[float, Ge(0), Lt(1)] = 0.8
    """Of the pass rates' exponential averages, per step."""

    floor: Annotated[float, Gt(0), Lt(1)] = 0.1
    """Least chance of any bucket to be drawn."""

    def __post_init__(self) -> None:
        _refuse_idle("curriculum", self)
        if self.buckets * self.floor >= 1:
            raise ValueError(
                f"curriculum.floor={self.floor:g} leaves curriculum.buckets={self.buckets} no choice; "
                f"set it below {1 / self.buckets:.3g}"
            )


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

    logprobs: Literal["never", "sample", "always"] = "sample"
    """Whether the engine returns log-probabilities, which cost throughput: `sample` = in one step of ten, for the
    metrics alone; `always` = in every step, where they are the old log-probabilities of the loss."""

    def __post_init__(self) -> None:
        _refuse_idle("rollout", self)


@dataclass(frozen=True)
class MismatchConfig:
    """Corrects for an engine that samples from other probabilities than the policy's; needs rollout.logprobs=always."""

    weights: Literal["token", "sequence"] | None = None
    """Each token's loss is weighted with π_old/π_engine, of the token, or of the whole completion; none = it is not."""

    cap: Annotated[float, Ge(1), Le(1e6)] = 2.0
    """Weights above it are cut down to it."""

    mask: tuple[NonNegativeFloat, Annotated[float, Gt(1), Le(1e6)]] | None = None
    """Tokens whose π_old/π_engine lies outside are left out of the policy loss; with weights=sequence, completions."""

    def __post_init__(self) -> None:
        if self.mask is not None and self.mask[0] >= 1:
            raise ValueError(
                f"mismatch.mask={list(self.mask)} leaves out tokens on which engine and policy agree; "
                "give [low, high] with low < 1 < high"
            )
        _refuse_idle("mismatch", self)


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
        _refuse_idle("window", self)


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
    """`ppo` (clipped surrogate), `gspo` (one ratio a completion), `cispo` (clipped weights), `reinforce`; or a function
    of your own, by its file or module: ./my_loss.py:my_loss."""

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
        check_name(self.policy_loss)
        _refuse_idle("algorithm", self)


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

    layout: Literal["padded", "packed"] = "padded"
    """`packed` = sequences one after another, without padding; changes memory and speed, never the loss. Without a
    kernel for sequences of unequal length, its attention costs the square of micro_batch_tokens."""

    max_bad_steps: PositiveInt = 3
    """Updates in a row with a non-finite loss or gradient (each is skipped) before the run stops."""

    def __post_init__(self) -> None:
        _refuse_idle("optimizer", self)


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

    def __post_init__(self) -> None:
        _refuse_idle("eval", self)


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

    def __post_init__(self) -> None:
        _refuse_idle("log", self)


@dataclass(frozen=True)
class TrainConfig:
    """Everything a run depends on."""

    run: RunConfig = field(default_factory=RunConfig)
    task: dict[str, Any] = field(default_factory=dict)
    """The task's own options (`tinyzero tasks NAME` lists them), e.g. task.numbers=[3,4]."""

    tasks: dict[str, Any] = field(default_factory=dict)
    """Several tasks: tasks.NAME.weight=2, tasks.NAME.options.KEY=…, and tasks.NAME.task=… if not called NAME."""

    model: ModelConfig = field(default_factory=ModelConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    data: DataConfig = field(default_factory=DataConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    mismatch: MismatchConfig = field(default_factory=MismatchConfig)
    window: WindowConfig = field(default_factory=WindowConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)

    def task_shares(self) -> tuple[TaskShare, ...]:
        """The tasks of the run, whichever way they are named; nothing else looks at `run.task`, `task` and `tasks`."""
        return read_shares(self.run.task, self.task, self.tasks)

    @property
    def wrappers(self) -> tuple[str, ...]:
        """`run.wrappers` as `load_task` takes them: with rollout.max_tokens where a limit is needed and none is given.

        Raises:
            SettingsError: one of them is unknown.
        """
        from tinyzero_sdk.wrappers import with_limit

        return with_limit(self.run.wrappers, self.rollout.max_tokens)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", whole_entries(self.task_shares()))
        if self.optimizer.mini_batches > self.data.prompts_per_step:
            raise ValueError(
                f"optimizer.mini_batches={self.optimizer.mini_batches} is more than "
                f"data.prompts_per_step={self.data.prompts_per_step}; lower it or raise the batch"
            )
        groups = {name: value for name, value in vars(self).items() if is_dataclass(value)}
        refuse(idle_across({name: vars(value) for name, value in groups.items()}), groups)
        if self.critic.warmup_steps >= self.run.steps:
            raise ValueError(
                f"critic.warmup_steps={self.critic.warmup_steps} leaves none of run.steps={self.run.steps} to the "
                "policy; lower it or raise run.steps"
            )
        if self.rollout.samples_per_prompt == 1 and self.algorithm.advantage in COMPARES_SAMPLES:
            raise ValueError(
                f"rollout.samples_per_prompt=1 leaves algorithm.advantage={self.algorithm.advantage!r} nothing to "
                "compare; set at least 2"
            )
