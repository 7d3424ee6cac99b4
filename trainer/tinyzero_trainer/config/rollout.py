"""Groups of the configuration that say which problems are asked, and how completions of them are sampled."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from tinyzero_trainer.config.types import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TestShare,
)


@dataclass(frozen=True)
class DataConfig:
    """Where problems come from."""

    prompt_template: str | None = None
    """Prompt template; none = `chat` if the model has a chat template, else `base`."""

    prompts_per_step: PositiveInt = 32
    """Problems in a batch."""

    max_refill_rounds: NonNegativeInt = 0
    """Dynamic sampling: groups that the task scored alike are left out, and replaced in at most so many more
    rounds; 0 = they are trained on."""

    test_fraction: TestShare = 1 / 16
    """Share of all problems, by the hash of their key, that is held out."""

    max_prompt_tokens: PositiveInt = 1024
    """Longer prompts stop the run before it starts."""


@dataclass(frozen=True)
class CurriculumConfig:
    """Problems drawn by difficulty and measured pass rate, in each task apart."""

    buckets: NonNegativeInt = 0
    """Quantiles of the problems' difficulty, told apart by their pass rate; 0 = problems come as they are."""

    target_pass_rate: Annotated[float, Gt(0), Lt(1)] = 0.5
    """Pass rate of the bucket that is drawn most."""

    ema_decay: Annotated[float, Ge(0), Lt(1)] = 0.8
    """Of the pass rates' exponential averages, per step."""

    min_probability: Annotated[float, Gt(0), Lt(1)] = 0.1
    """Least chance of any bucket to be drawn."""

    def __post_init__(self) -> None:
        if self.buckets * self.min_probability >= 1:
            raise ValueError(
                f"curriculum.min_probability={self.min_probability:g} leaves curriculum.buckets={self.buckets} no "
                f"choice; set it below {1 / self.buckets:.3g}"
            )


@dataclass(frozen=True)
class RolloutConfig:
    """How completions are generated."""

    engine: Literal["torch", "vllm"] = "torch"
    """`torch` = in this process, for Llama-like models (Llama, Mistral, Qwen2, Qwen3) on a GPU with CUDA graphs: the
    fastest at the sizes measured on one GPU. `vllm` = vLLM on the same GPU: for other architectures, tensor
    parallelism, very long contexts, and prompts that share long beginnings."""

    group_size: PositiveInt = 8
    """Completions of one prompt: the group that advantages compare."""

    max_completion_tokens: PositiveInt = 256
    """Longest completion, in tokens."""

    temperature: PositiveFloat = 1.0
    """Sampling temperature in training."""

    temperature_end: PositiveFloat | None = None
    """Temperature at the last step, approached linearly; none = it stays the same."""

    top_p: Annotated[float, Gt(0), Le(1)] = 1.0
    """Nucleus sampling; below 1 the sampled distribution is no longer the policy's."""

    top_k: NonNegativeInt = 0
    """Sample among the k likeliest tokens; 0 = all."""

    max_num_seqs: PositiveInt | None = None
    """Sequences generated at a time, which bounds the memory of the KV cache; none = on a GPU as many as fit, elsewhere
    and for models without CUDA graphs 512. The random numbers do not depend on it."""

    ignore_eos: bool = False
    """Go on to rollout.max_completion_tokens past every end token, to measure speed and memory; nothing useful is
    learnt so."""

    return_logprobs: Literal["never", "sample", "always"] = "sample"
    """Whether the engine returns log-probabilities, which cost throughput: `sample` = in one step of ten, for the
    metrics alone; `always` = in every step, where they are the old log-probabilities of the loss."""

    max_async_level: Literal[0, 1] = 0
    """Batches that rollouts are ahead of the update. 1 = while one batch is trained on the next is sampled, by weights
    one step older: needs engines apart (rollout.num_engines) and a correction (rollout.return_logprobs=always,
    rollout_correction.is_level)."""

    num_engines: NonNegativeInt = 0
    """Rollout engines in processes of their own, each on vllm.tensor_parallel GPUs of its own; 0 = the ranks have them,
    and generate and learn in turns."""

    chunks_per_engine: PositiveInt = 1
    """Parts of a batch for each engine. With more an engine that is done early helps the others; with fewer each
    generates more completions at a time."""

    def __post_init__(self) -> None:
        if self.engine != "vllm":
            return
        temperatures = {self.temperature, self.temperature_end or self.temperature}
        if max(temperatures) > 2:
            raise ValueError(f"rollout.engine='vllm' samples at temperatures up to 2, not {max(temperatures):g}")
        if (self.top_p < 1 or self.top_k) and temperatures != {1.0} and self.return_logprobs != "never":
            raise ValueError(
                f"rollout.return_logprobs={self.return_logprobs!r}: with rollout.top_p or top_k vLLM has the policy's "
                "log-probabilities at temperature 1 only; set rollout.return_logprobs=never, or rollout.temperature=1"
            )


@dataclass(frozen=True)
class RolloutCorrectionConfig:
    """Corrects for an engine that samples from other probabilities than the policy's; needs
    rollout.return_logprobs=always."""

    is_level: Literal["token", "sequence"] | None = None
    """Each token's loss is weighted with π_old/π_engine, of the token, or of the whole completion; none = it is not."""

    is_threshold: Annotated[float, Ge(1), Le(1e6)] = 2.0
    """Weights above it are cut down to it."""

    rejection_bounds: tuple[NonNegativeFloat, Annotated[float, Gt(1), Le(1e6)]] | None = None
    """Tokens whose π_old/π_engine lies outside are left out of the policy loss; with weights=sequence, completions."""

    def __post_init__(self) -> None:
        if self.rejection_bounds is not None and self.rejection_bounds[0] >= 1:
            raise ValueError(
                f"rollout_correction.rejection_bounds={list(self.rejection_bounds)} leaves out tokens on which "
                f"engine and policy agree; "
                "give [low, high] with low < 1 < high"
            )

    @property
    def corrects(self) -> bool:
        """Whether anything is corrected."""
        return self.is_level is not None or self.rejection_bounds is not None


@dataclass(frozen=True)
class LengthControlConfig:
    """How many tokens completions may have in training; evaluation always uses rollout.max_completion_tokens."""

    mode: Literal["full", "fixed", "adaptive"] = "full"
    """`full` = rollout.max_completion_tokens; `fixed` = length_control.max_tokens; `adaptive` = shorter while the
    model succeeds."""

    max_tokens: PositiveInt = 256
    """The fixed window."""

    min_tokens: PositiveInt = 32
    """The adaptive window is never shorter."""

    warmup_steps: PositiveInt = 10
    """Steps at full length, after which it starts from the mean length of correct completions."""

    every: PositiveInt = 5
    """Steps between two decisions."""

    step_tokens: PositiveInt = 64
    """Tokens by which a decision changes the window."""

    slack_tokens: PositiveInt = 32
    """Tokens of the window that may stay unused before it shrinks."""

    target_success_rate: Fraction = 0.7
    """Share of correct completions to keep to."""

    tolerance: Fraction = 0.05
    """Above target + tolerance the window shrinks, below target - tolerance it grows."""

    max_truncated_fraction: Fraction = 0.1
    """It never shrinks while more than this share is cut off."""

    patience: PositiveInt = 20
    """Steps of success without change after which it grows, to see whether longer is better."""

    ema_decay: Annotated[float, Ge(0), Lt(1)] = 0.9
    """Of the exponential averages."""

    full_length_prob: Fraction = 0.0
    """Chance of a single step at full length."""
