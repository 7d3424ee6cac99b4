"""What a rollout engine takes of a GPU, awake and asleep, in bytes by reason."""

from collections.abc import Mapping
from dataclasses import dataclass

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.estimate import constants
from tinyzero_trainer.estimate.engine_buffers import PREFILL_TOKENS, SLOTS, drawing_bytes
from tinyzero_trainer.estimate.workload import Workload, number_bytes
from tinyzero_trainer.models.spec import ModelSpec

GB = 1e9
"""What vllm.gpu_memory_gb is given in."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A rollout engine's memory."""

    awake: Mapping[str, int]
    """While it generates; the reason of each part, and its bytes."""

    asleep: Mapping[str, int]
    """While something else happens."""

    own_process: bool
    """Whether that is beside the trainer's process, rather than in it."""


def engine_of(shape: ModelSpec, config: TrainConfig, work: Workload, *, keeps: bool = False) -> Engine:
    """The engine of a configuration; where vllm.gpu_memory_gb is not set, with room for all its sequences.

    Args:
        shape: the model's.
        config: of the run.
        work: of a step.
        keeps: whether the engine `torch` keeps its memory during the update, as it does where there is room.
    """
    if config.rollout.engine == "vllm":
        return _vllm(shape, config, work)
    return _torch(shape, config, work, keeps) if shape.graphs else _without_graphs(shape, config, work)


def _without_graphs(shape: ModelSpec, config: TrainConfig, work: Workload) -> Engine:
    """As rollout/torch_engine.py has it with transformers' own forward pass, whose cache grows by being copied."""
    number = number_bytes(config)
    prompts = max(-(-work.trained_at_a_time // config.rollout.group_size), work.evaluated_at_a_time)
    layer = constants.HIDDEN_FORWARD * shape.hidden + constants.MLP_FORWARD * shape.mlp
    cache = work.at_a_time * work.sequence * shape.cache_numbers * number
    beside = (1 + shape.repeated_heads) * cache // max(1, shape.layers)  # of one layer: before it grew, and repeated
    drawing = drawing_bytes(number, by_kernel=False, greedy=False)
    weights = {"weights": number * shape.parameters}
    awake = {
        **weights,
        "KV cache": cache + beside,
        "a step": work.at_a_time * shape.vocabulary * drawing,
        "reading prompts": prompts * work.prompt * layer * number // 2,
    }
    return Engine(awake=awake, asleep=weights, own_process=False)


def _torch(shape: ModelSpec, config: TrainConfig, work: Workload, keeps: bool) -> Engine:
    """As rollout/cuda_graph/engine.py has it, with its kernels."""
    number, slots = number_bytes(config), -(-work.sequence // SLOTS) * SLOTS
    prompts = max(-(-work.trained_at_a_time // config.rollout.group_size), work.evaluated_at_a_time)
    read = min(prompts * work.prompt, max(PREFILL_TOKENS, work.prompt))
    layer = constants.HIDDEN_FORWARD * shape.hidden + constants.MLP_FORWARD * shape.mlp
    mlp = work.at_a_time * constants.STEP_NUMBERS * shape.mlp * number
    kept = {
        "weights": number * shape.parameters,
        "KV cache": (work.at_a_time + 1) * slots * shape.cache_numbers * number,
        "a step": shape.vocabulary * _drawing(config, work) + mlp,
    }
    awake = {**kept, "reading prompts": read * layer * number // 2}
    # What reading took, the trainer can take again.
    return Engine(awake=awake, asleep=kept if keeps else {}, own_process=False)


def _drawing(config: TrainConfig, work: Workload) -> int:
    """Bytes that drawing takes for each token of the vocabulary: in training, or in evaluations, which cut nothing."""
    number, rollout = number_bytes(config), config.rollout
    cuts = rollout.top_p < 1 or rollout.top_k > 0
    greedy = work.evaluated_at_a_time if config.eval.greedy else 0
    if config.algorithm.advantage_estimator == "remax":
        greedy = max(greedy, min(work.trained_at_a_time, config.data.prompts_per_step))
    return max(
        work.trained_at_a_time * drawing_bytes(number, by_kernel=not cuts, greedy=False),
        work.evaluated_at_a_time * drawing_bytes(number, by_kernel=True, greedy=False),
        greedy * drawing_bytes(number, by_kernel=False, greedy=True),
    )


def _vllm(shape: ModelSpec, config: TrainConfig, work: Workload) -> Engine:
    process = {"CUDA context of its process": constants.CONTEXT} if config.vllm.separate_process else {}
    if config.vllm.tensor_parallel > 1:
        process["NCCL of its process"] = constants.NCCL
    wanted = needed_by_vllm(shape, config, work)
    size = wanted if config.vllm.gpu_memory_gb is None else int(config.vllm.gpu_memory_gb * GB)
    graphs = constants.VLLM_BESIDE if config.vllm.cuda_graphs else constants.VLLM_BESIDE // 4
    awake = {"vllm.gpu_memory_gb": size, "beside it": graphs, **process}
    asleep = {"what stays when it sleeps": constants.VLLM_ASLEEP, **process} if config.vllm.sleep_mode else awake
    return Engine(awake=awake, asleep=asleep, own_process=config.vllm.separate_process)


def needed_by_vllm(shape: ModelSpec, config: TrainConfig, work: Workload, sequences: int | None = None) -> int:
    """vllm.gpu_memory_gb, in bytes, with room for so many whole sequences at a time; none = all that it is given."""
    count = work.trained_at_a_time if sequences is None else min(sequences, work.trained_at_a_time)
    drawing = work.seats * shape.vocabulary * constants.VLLM_SAMPLER_BYTES
    weights = -(-shape.parameters // config.vllm.tensor_parallel)
    split = number_bytes(config) * (weights + count * _cached(shape, config, work))
    return constants.VLLM_WORKSPACE + drawing + split


def sequences_in_vllm(shape: ModelSpec, config: TrainConfig, work: Workload) -> int:
    """Whole sequences that vLLM's KV cache holds at a time; at least 1."""
    if config.vllm.gpu_memory_gb is None:
        return work.trained_at_a_time
    left = config.vllm.gpu_memory_gb * GB - needed_by_vllm(shape, config, work, sequences=0)
    return max(1, int(left // (number_bytes(config) * _cached(shape, config, work))))


def lacking_in_vllm(shape: ModelSpec, config: TrainConfig, work: Workload) -> int:
    """vllm.gpu_memory_gb, in bytes, with room for the weights and one sequence; 0 where it is given no less."""
    given = config.vllm.gpu_memory_gb
    if config.rollout.engine != "vllm" or given is None:
        return 0
    least = needed_by_vllm(shape, config, work, sequences=1)
    return least if given * GB + _ROUNDED < least else 0


_ROUNDED = GB / 100
"""Bytes that a proposed vllm.gpu_memory_gb may be short of, since it is rounded down."""


def _cached(shape: ModelSpec, config: TrainConfig, work: Workload) -> int:
    """Numbers of a whole sequence in vLLM's KV cache on a card, whose last block is not full.

    Each card of an engine has its share of the heads, and at least one, which others may have too.
    """
    heads = -(-shape.kv_heads // config.vllm.tensor_parallel)
    return (work.sequence + 16) * (shape.cache_numbers // shape.kv_heads) * heads
