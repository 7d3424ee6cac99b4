"""Groups of the configuration: which problems are asked, and how completions of them are sampled."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from tinyzero_trainer.config.settings import ON_RAY, RESUMABLE, SMALLER, Option, TradesMemory, UsedIf
from tinyzero_trainer.kinds import ENGINE_PACKAGE, UNDECIDED, EngineKind, find_engine, kind_names
from tinyzero_trainer.utils.bounds import Auto, Fraction, NonNegativeInt, PositiveFloat, PositiveInt, TestFraction

if TYPE_CHECKING:
    Engine = str
else:
    Engine = Literal[(*kind_names(ENGINE_PACKAGE), UNDECIDED.name)]

FP8_SETTINGS = ("kv_cache_dtype", "quantization")
"""Settings of `rollout` that let an engine compute in 8 bits."""

SAMPLE_EVERY = 10
"""With `rollout.return_logprobs=sample`, the engine returns them in the first of this many steps."""


_DIVIDED = UsedIf(lambda c: c.data.test_path is None, "data.test_path has the held-out problems")
_GROUPS = UsedIf(
    lambda c: c.rollout.group_size > 1, "the rewards of rollout.group_size=1 completion are always all equal"
)
_REWARDS = UsedIf(
    "algorithm.estimator.uses_rewards",
    "algorithm.advantage_estimator={algorithm.advantage_estimator!r} needs no rewards that differ",
)


@dataclass(frozen=True)
class DataConfig:
    """Where problems come from."""

    path: Annotated[str | None, RESUMABLE] = None
    """File with the prompts and ground truths to train on, which the task scores: Parquet or JSON Lines as
    `tinyzero data`, TinyZero and verl write it, a folder, or a data set's name on the Hugging Face Hub. With several
    tasks, a row's `data_source` names its task; none = the task's own problems."""

    test_path: Annotated[str | None, RESUMABLE] = None
    """File with held-out problems; none = the rows of data.path that belong to a test split, else
    data.test_fraction of them."""

    columns: dict[str, str] = field(default_factory=dict)
    """Where the files have what a row needs: data.columns.ground_truth=answer, or a field such as meta.answer."""

    prompt_template: str | None = None
    """Prompt template; none = `chat` if the model has a chat template, else `base`."""

    prompts_per_step: PositiveInt = 32
    """Problems in a batch."""

    max_refill_rounds: Annotated[NonNegativeInt, _GROUPS, _REWARDS] = 0
    """Dynamic sampling: extra rounds that replace groups whose completions all score the same; 0 = none."""

    test_fraction: Annotated[TestFraction, _DIVIDED] = 1 / 16
    """Fraction of all problems, by the hash of their key, that is held out."""

    max_prompt_tokens: Annotated[PositiveInt, RESUMABLE] = 1024
    """Longer prompts stop the run, those of data.path before it starts."""


_CHOICE = UsedIf(
    lambda c: c.curriculum.buckets != 1, "there is nothing to choose between; set at least 2, or 0 for none"
)
_CURRICULUM = UsedIf("curriculum.buckets", "curriculum.buckets=0 leaves the curriculum out")


@dataclass(frozen=True)
class CurriculumConfig:
    """Problems of each task sampled by difficulty and pass rate."""

    buckets: Annotated[NonNegativeInt, _CHOICE] = 0
    """Quantiles of the problems' difficulty, each with a pass rate of its own; 0 = problems are sampled uniformly."""

    target_pass_rate: Annotated[float, Gt(0), Lt(1), _CURRICULUM] = 0.5
    """Pass rate of the bucket that is sampled most."""

    ema_decay: Annotated[float, Ge(0), Lt(1), _CURRICULUM] = 0.8
    """Decay of the pass rates' exponential moving averages, per step."""

    min_probability: Annotated[float, Gt(0), Lt(1), _CURRICULUM] = 0.1
    """Lowest probability with which any bucket is sampled."""

    def __post_init__(self) -> None:
        if self.buckets * self.min_probability >= 1:
            raise ValueError(
                f"curriculum.min_probability={self.min_probability:g} leaves curriculum.buckets={self.buckets} no "
                f"choice; set it below {1 / self.buckets:.3g}"
            )


@dataclass(frozen=True)
class RolloutConfig:
    """How completions are generated."""

    engine: Annotated[Engine, RESUMABLE] = "torch"
    """`torch` = in this process, with CUDA graphs for most dense models: the fastest on one GPU. `vllm` = for other
    models, tensor parallelism, very long contexts and shared prefixes. `auto` = the faster one, by measurements."""

    group_size: PositiveInt = 8
    """Completions of each prompt: the group that advantages compare."""

    max_completion_tokens: Annotated[PositiveInt, RESUMABLE] = 256
    """Longest completion, in tokens."""

    temperature: PositiveFloat = 1.0
    """Sampling temperature in training."""

    temperature_end: PositiveFloat | None = None
    """Temperature at the last step, approached linearly; none = constant."""

    top_p: Annotated[float, Gt(0), Le(1)] = 1.0
    """Nucleus sampling; below 1 the sampled distribution is no longer the policy's."""

    top_k: NonNegativeInt = 0
    """Sample from the k most probable tokens; 0 = all."""

    max_num_seqs: Annotated[
        PositiveInt | Auto,
        RESUMABLE,
        TradesMemory((Option(SMALLER, "completions are generated in more rounds", rank=2),), chosen_by="engine"),
    ] = "auto"
    """Sequences generated at a time, which bounds the memory of the KV cache; `auto` = as many as fit on a GPU, and 512
    on the CPU. Random numbers do not depend on it."""

    kv_cache_dtype: Literal["fp8"] | None = None
    """`fp8` = the KV cache in 8 bits, on a GPU of Ada or Hopper at least: half the memory, and less time where
    completions are long. Log-probabilities are then off by nearly a tenth: add rollout.return_logprobs=always and
    rollout_correction.is_level=token. None = the model's own precision."""

    quantization: Literal["fp8"] | None = None
    """`fp8` = matrix products of rollouts in 8 bits, with rollout.engine=torch on a GPU of Ada or Hopper at least: less
    time, for half as much memory again for weights. Log-probabilities are off by some tenths, see kv_cache_dtype."""

    ignore_eos: bool = False
    """Generate up to rollout.max_completion_tokens past any end token: to measure speed and memory, not to train."""

    return_logprobs: Literal["never", "sample", "always"] = "sample"
    """Whether the engine returns log-probabilities, which costs throughput: `sample` = in one step of ten, for metrics
    only; `always` = in every step, as the old log-probabilities of the loss."""

    max_async_level: NonNegativeInt = 0
    """Most training steps by which the weights that sampled a token may be older than those that train on it. 0 = all
    completions of a batch are sampled, then it is trained on. Above, 1 + max_async_level batches are in flight, and the
    first whole groups to finish are trained on: needs rollout.return_logprobs=always, for some losses also
    rollout_correction.is_level."""

    num_engines: Annotated[NonNegativeInt, RESUMABLE, ON_RAY] = 0
    """Dedicated rollout engines, each on vllm.tensor_parallel GPUs; 0 = engines time-share the ranks' GPUs."""

    chunks_per_engine: Annotated[PositiveInt, RESUMABLE, ON_RAY] = 1
    """Chunks of a batch for each engine. With more, an engine that finishes early takes over chunks of the others."""

    @property
    def kind(self) -> EngineKind:
        """What the engine can do."""
        return find_engine(self.engine)

    @property
    def in_fp8(self) -> list[str]:
        """The settings that let an engine compute in 8 bits."""
        return [f"rollout.{key}=fp8" for key in FP8_SETTINGS if getattr(self, key)]

    def returns_logprobs(self, step: int) -> bool:
        """Whether the engine returns log-probabilities in a step (1-based)."""
        return self.return_logprobs == "always" or (self.return_logprobs == "sample" and step % SAMPLE_EVERY == 1)

    @property
    def bias(self) -> str | None:
        """A note for the user where the gradient is biased, since tokens come from another distribution."""
        cuts = [f"rollout.top_p={self.top_p:g}"] * (self.top_p < 1) + [f"rollout.top_k={self.top_k}"] * (self.top_k > 0)
        biased = "tokens come from a cut distribution, ratios from the whole one; the gradient is biased"
        return f"{' and '.join(cuts)}: {biased}" if cuts else None

    def __post_init__(self) -> None:
        for key in FP8_SETTINGS:
            if getattr(self, key) and key not in self.kind.fp8:
                able = [name for name in kind_names(ENGINE_PACKAGE) if key in find_engine(name).fp8]
                raise ValueError(
                    f"rollout.{key}=fp8 is for rollout.engine={' or '.join(able)}, not {self.engine}; leave it out"
                )
        if problem := self.kind.unsupported(self):
            raise ValueError(problem)


_RESTARTS = UsedIf(
    "vllm.separate_process",
    "vllm.separate_process=false leaves the trainer no way to end an engine that hangs or has died",
)


@dataclass(frozen=True)
class VllmConfig:
    """The rollout engine `vllm`."""

    gpu_memory_gb: Annotated[PositiveFloat | Auto, RESUMABLE, TradesMemory(chosen_by="engine")] = "auto"
    """GB of GPU memory for weights, KV cache and workspace; `auto` = what the update leaves."""

    sleep_mode: Annotated[
        bool | Auto,
        RESUMABLE,
        UsedIf(
            lambda c: not c.rollout.max_async_level,
            "with rollout.max_async_level={rollout.max_async_level} engines never sleep",
        ),
        TradesMemory(
            (
                Option(False, "it fits in memory together with the update"),
                Option(True, "its weights are reloaded in every step, in about a second", rank=1),
            ),
            unresolved=True,
            chosen_by="engine",
        ),
    ] = "auto"
    """Free its memory during the update and reload the weights afterwards; `auto` = where memory requires it."""

    tensor_parallel: Annotated[PositiveInt, RESUMABLE] = 1
    """GPUs that the engine's model is split over; on the CPU, processes."""

    separate_process: Annotated[bool, RESUMABLE] = True
    """Run the engine in a separate process, which can be restarted if it dies; otherwise in the trainer's."""

    cuda_graphs: Annotated[bool, RESUMABLE] = True
    """Capture CUDA graphs, which takes half a minute at the start and makes decoding faster."""

    max_restarts: Annotated[NonNegativeInt, RESUMABLE, _RESTARTS] = 2
    """Times that an engine that died or hangs is restarted, and its batch regenerated, before the run stops."""

    timeout: Annotated[PositiveFloat, RESUMABLE, _RESTARTS] = 1800.0
    """Seconds for a batch, after which the engine counts as hanging."""

    verify_weights: Annotated[bool, RESUMABLE] = False
    """After each sync compare the engine's log-probabilities of a few tokens with the policy's; stop if they differ."""

    def __post_init__(self) -> None:
        if self.tensor_parallel > 1 and not self.separate_process:
            raise ValueError(
                f"vllm.tensor_parallel={self.tensor_parallel} needs separate processes; leave out "
                "vllm.separate_process=false"
            )


_WEIGHTS = UsedIf("rollout_correction.is_level", "rollout_correction.is_level=none weights nothing")


@dataclass(frozen=True)
class RolloutCorrectionConfig:
    """For engines whose probabilities are not the policy's.

    Needs rollout.return_logprobs=always.
    """

    is_level: Literal["token", "sequence"] | None = None
    """Weight each token's loss by π_old/π_engine of the token, or of the whole completion; none = no weights."""

    is_threshold: Annotated[float, Ge(1), Le(1e6), _WEIGHTS] = 2.0
    """Weights are truncated to this value."""

    rejection_bounds: tuple[Annotated[float, Ge(0), Lt(1)], Annotated[float, Gt(1), Le(1e6)]] | None = None
    """Tokens (with is_level=sequence, completions) whose π_old/π_engine lies outside are masked in the policy loss."""

    @property
    def corrects(self) -> bool:
        return self.is_level is not None or self.rejection_bounds is not None


_UNUSED = "it is not used with length_control.mode={length_control.mode!r}"
_LIMIT = UsedIf("length_control.mode", _UNUSED, ("fixed",))
_ADAPTIVE = UsedIf("length_control.mode", _UNUSED, ("adaptive",))
_NO_LESS = " is no less than rollout.max_completion_tokens={rollout.max_completion_tokens}"
_SHORTER = UsedIf(
    lambda c: c.length_control.mode != "fixed" or c.length_control.max_tokens < c.rollout.max_completion_tokens,
    "length_control.max_tokens={length_control.max_tokens}" + _NO_LESS,
)
_SHRINKS = UsedIf(
    lambda c: c.length_control.mode != "adaptive" or c.length_control.min_tokens < c.rollout.max_completion_tokens,
    "length_control.min_tokens={length_control.min_tokens}" + _NO_LESS,
)


@dataclass(frozen=True)
class LengthControlConfig:
    """Limit on the length of completions in training.

    Evaluation always uses rollout.max_completion_tokens.
    """

    mode: Annotated[Literal["full", "fixed", "adaptive"], _SHORTER, _SHRINKS] = "full"
    """`full` = rollout.max_completion_tokens; `fixed` = max_tokens; `adaptive` = shorter while the model succeeds."""

    max_tokens: Annotated[PositiveInt, _LIMIT] = 256
    """The limit with mode=fixed."""

    min_tokens: Annotated[PositiveInt, _ADAPTIVE] = 32
    """Lowest adaptive limit."""

    warmup_steps: Annotated[PositiveInt, _ADAPTIVE] = 10
    """Steps at full length, after which the limit starts from the mean length of correct completions."""

    every: Annotated[PositiveInt, _ADAPTIVE] = 5
    """Steps between two decisions."""

    step_tokens: Annotated[PositiveInt, _ADAPTIVE] = 64
    """Tokens by which a decision changes the limit."""

    slack_tokens: Annotated[PositiveInt, _ADAPTIVE] = 32
    """Unused tokens below the limit before it shrinks."""

    target_success_rate: Annotated[Fraction, _ADAPTIVE] = 0.7
    """Fraction of correct completions to maintain."""

    tolerance: Annotated[Fraction, _ADAPTIVE] = 0.05
    """Above target + tolerance the limit shrinks, below target - tolerance it grows."""

    max_truncated_fraction: Annotated[Fraction, _ADAPTIVE] = 0.1
    """The limit never shrinks while more than this fraction is truncated."""

    patience: Annotated[PositiveInt, _ADAPTIVE] = 20
    """Successful steps without a change after which the limit grows, to test whether longer is better."""

    ema_decay: Annotated[float, Ge(0), Lt(1), _ADAPTIVE] = 0.9
    """Decay of the exponential moving averages."""

    full_length_prob: Annotated[Fraction, _ADAPTIVE] = 0.0
    """Probability of a single step at full length."""
