"""Groups of the configuration that say what is run, what scores and evaluates it, and what is kept of it."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from tinyzero_trainer.config.types import (
    DEVICES,
    Fraction,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    is_device,
)


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

    executor: Literal["local", "ray"] = "local"
    """Where the roles run: `local` = in this process, `ray` = in processes of their own, as actors of Ray."""

    device: str = "auto"
    """`cpu`, `cuda`, `cuda:N` = one of several GPUs, or `auto` = a GPU where there is one."""

    recipe: str | None = None
    """Recipe whose settings stand below the user's own: its name (`tinyzero recipes` lists them), or a TOML file."""

    def __post_init__(self) -> None:
        if not is_device(self.device):
            raise ValueError(f"run.device={self.device!r} is no device to train on; give {DEVICES}")


COMPILED_FROM = 100_000_000
"""Parameters from which compiling pays, where the configuration leaves it open."""


def compiles(requested: bool | None, parameters: int, *, gpu: bool = True) -> bool:
    """Whether a network's layers are compiled.

    Args:
        requested: `model.compile`.
        parameters: of the network.
        gpu: whether it is on one.
    """
    return gpu and parameters >= COMPILED_FROM if requested is None else requested


@dataclass(frozen=True)
class ModelConfig:
    """The language model to train."""

    path: str | None = None
    """Directory or Hub name of a transformers causal LM; `tiny` = the tiny model that comes with the trainer. None = on
    the CPU that one, and on a GPU a small one that `tinyzero train` makes for the task (default_model)."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type that the network computes in; `auto` = bfloat16 on a GPU that has it, else float32. The weights that the
    optimiser steps are kept in float32 whatever this is."""

    compile: bool | None = None
    """Compile the network's layers with torch.compile for the update; none = on a GPU, from about 0.1B parameters."""


@dataclass(frozen=True)
class DefaultModelConfig:
    """The model that `tinyzero train` warm-starts on a GPU where none is named; made once, then found again."""

    hidden_size: PositiveInt = 384
    """Width of the residual stream; a multiple of head_size. The default shape has 9.9 million parameters."""

    layers: PositiveInt = 6
    """Number of decoder layers."""

    head_size: PositiveInt = 64
    """Width of an attention head; vLLM has kernels for 32 and 64, among others."""

    kv_heads: PositiveInt = 2
    """Heads of keys and values, each for as many of the others: reading them is what long completions take."""

    mlp_size: PositiveInt = 1024
    """Width inside the gated MLP."""

    seconds: PositiveFloat = 90.0
    """Seconds to learn from the task's demonstrations for."""

    directory: str | None = None
    """Where such models are kept; none = tinyzero/models in the user's cache."""

    def __post_init__(self) -> None:
        if self.hidden_size % self.head_size:
            raise ValueError(
                f"default_model.hidden_size={self.hidden_size} is not a multiple of "
                f"default_model.head_size={self.head_size}"
            )
        heads = self.hidden_size // self.head_size
        if heads % self.kv_heads:
            raise ValueError(f"default_model.kv_heads={self.kv_heads} does not divide the {heads} heads; 1 always does")


@dataclass(frozen=True)
class MemoryConfig:
    """What is given up in speed to fit into a GPU's memory; none of it changes the loss."""

    activation_checkpointing: bool = False
    """Keep only each layer's input, and compute the rest again in the backward pass: about a third more work."""

    cpu_offload: Literal["idle", "always"] | None = None
    """Weights and optimiser state in the host's memory: `idle` = while their role does nothing, `always` = throughout,
    copied to the GPU layer by layer as it is needed, and stepped on the CPU; none = they stay on the GPU."""


@dataclass(frozen=True)
class VllmConfig:
    """The rollout engine `vllm`."""

    gpu_memory_gb: PositiveFloat | None = None
    """GB of the GPU for its weights, KV cache and workspace; none = what the update leaves, at most 60 % of the GPU."""

    sleep_mode: bool | None = None
    """Give its memory back during the update and load the weights anew after it; none = where memory needs it."""

    tensor_parallel: PositiveInt = 1
    """GPUs that the engine's model is split over; on the CPU, processes."""

    separate_process: bool = True
    """Run the engine in a process of its own, which can be replaced if it dies; otherwise in the trainer's."""

    cuda_graphs: bool = True
    """Capture CUDA graphs, which costs half a minute at the start and makes decoding faster."""

    max_restarts: NonNegativeInt = 2
    """Times that an engine that died or hangs is replaced, its batch generated anew, before the run stops."""

    timeout: PositiveFloat = 1800.0
    """Seconds for a batch; then the engine counts as hanging."""

    verify_weights: bool = False
    """After each sync compare the engine's log-probabilities of a few tokens with the policy's; stop if they differ."""

    def __post_init__(self) -> None:
        if self.tensor_parallel > 1 and not self.separate_process:
            raise ValueError(
                f"vllm.tensor_parallel={self.tensor_parallel} needs processes of vLLM's own; leave out "
                "vllm.separate_process=false"
            )


@dataclass(frozen=True)
class ParallelConfig:
    """How the processes that learn divide the model and the batch among them."""

    world_size: PositiveInt | None = None
    """Processes that policy, reference and critic are sharded over; the batch is shared out among them by tokens.
    none = one for each GPU that no engine has to itself; 1 without GPUs."""

    dp_replicate: PositiveInt = 1
    """Groups of ranks that each hold the whole model, sharded over the group's ranks: one for each node where the
    network between nodes is slow. It divides the ranks; 1 = the model is sharded over all of them."""

    sequence_parallel: PositiveInt = 1
    """Ranks that share each sequence, for completions too long for one. It divides the ranks of a replica and the
    model's attention heads; each of those ranks takes optimizer.micro_batch_tokens at a time."""


@dataclass(frozen=True)
class RayConfig:
    """The executor `ray`."""

    address: str | None = None
    """Of a Ray that is there: `auto`, or HOST:PORT; none = one is started on this machine, for the run."""

    gpus: NonNegativeInt = 0
    """GPUs of the run; 0 = none, everything is on the CPU."""

    max_restarts: NonNegativeInt = 2
    """Times that a rollout engine or a scorer that died is replaced, its batch done anew, before the run stops."""


@dataclass(frozen=True)
class RewardConfig:
    """How completions are scored."""

    num_workers: PositiveInt = 1
    """Scoring processes."""

    timeout: PositiveFloat = 5.0
    """Seconds for one completion; then its worker is killed and replaced, and the completion scores 0."""

    memory_limit_gb: PositiveFloat = 4.0
    """Address space of a worker, in GiB."""

    max_failure_rate: Fraction = 0.5
    """The run stops if more than this share of a batch ends in an error or a time-out of the scorer."""

    wrappers: tuple[str, ...] = ()
    """Score wrappers put around the task's reward in training, innermost first; one that needs a limit and is given
    none, such as `overlong`, takes rollout.max_completion_tokens. Evaluation reports the unshaped score."""

    allow_unsafe: bool = False
    """Run a scorer that its task says must not be trusted with a model's text, in the worker processes."""


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation on held-out problems, before, during and after training."""

    num_problems: PositiveInt = 1024
    """Held-out problems before and after training."""

    num_problems_during: PositiveInt = 256
    """Held-out problems during training: the first of the same ones, at most eval.num_problems."""

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
