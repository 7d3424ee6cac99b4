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


def engine_of(spec: ModelSpec, config: TrainConfig, work: Workload, *, keeps: bool = False) -> Engine:
    """The engine of a configuration; where vllm.gpu_memory_gb is not set, with room for all its sequences.

    Args:
        spec: the model.
        config: of the run.
        work: of a step.
        keeps: whether the engine `torch` keeps its memory during the update, as it does where there is room.
    """
    if config.rollout.engine == "vllm":
        return _vllm(spec, config, work)
    return _torch(spec, config, work, keeps) if spec.graphs else _without_graphs(spec, config, work)


def _without_graphs(spec: ModelSpec, config: TrainConfig, work: Workload) -> Engine:
    """As rollout/torch_engine.py has it with transformers' own forward pass, whose cache grows by being copied."""
    number = number_bytes(config)
    prompts = max(-(-work.trained_at_a_time // config.rollout.group_size), work.evaluated_at_a_time)
    layer = constants.HIDDEN_FORWARD * spec.hidden + constants.MLP_FORWARD * spec.mlp
    cache = work.at_a_time * work.sequence * spec.cache_numbers * number
    beside = (1 + spec.repeated_heads) * cache // max(1, spec.layers)  # of one layer: before it grew, and repeated
    drawing = drawing_bytes(number, by_kernel=False, greedy=False)
    weights = {"weights": number * spec.parameters}
    awake = {
        **weights,
        "KV cache": cache + beside,
        "a step": work.at_a_time * spec.vocabulary * drawing,
        "reading prompts": prompts * work.prompt * layer * number // 2,
    }
    return Engine(awake=awake, asleep=weights, own_process=False)


def _torch(spec: ModelSpec, config: TrainConfig, work: Workload, keeps: bool) -> Engine:
    """As rollout/cuda_graph/engine.py has it, with its kernels."""
    number, slots = number_bytes(config), -(-work.sequence // SLOTS) * SLOTS
    prompts = max(-(-work.trained_at_a_time // config.rollout.group_size), work.evaluated_at_a_time)
    read = min(prompts * work.prompt, max(PREFILL_TOKENS, work.prompt))
    layer = constants.HIDDEN_FORWARD * spec.hidden + constants.MLP_FORWARD * spec.mlp
    mlp = work.at_a_time * constants.STEP_NUMBERS * spec.mlp * number
    kept = {
        "weights": number * spec.parameters,
        "KV cache": (work.at_a_time + 1) * slots * spec.cache_numbers * number,
        "a step": spec.vocabulary * _drawing(config, work) + mlp,
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


def _vllm(spec: ModelSpec, config: TrainConfig, work: Workload) -> Engine:
    process = {"CUDA context of its process": constants.CONTEXT} if config.vllm.separate_process else {}
    if config.vllm.tensor_parallel > 1:
        process["NCCL of its process"] = constants.NCCL
    wanted = needed_by_vllm(spec, config, work)
    size = wanted if config.vllm.gpu_memory_gb is None else int(config.vllm.gpu_memory_gb * GB)
    graphs = constants.VLLM_BESIDE if config.vllm.cuda_graphs else constants.VLLM_BESIDE // 4
    awake = {"vllm.gpu_memory_gb": size, "beside it": graphs, **process}
    asleep = {"what stays when it sleeps": constants.VLLM_ASLEEP, **process} if config.vllm.sleep_mode else awake
    return Engine(awake=awake, asleep=asleep, own_process=config.vllm.separate_process)


def needed_by_vllm(spec: ModelSpec, config: TrainConfig, work: Workload, sequences: int | None = None) -> int:
    """vllm.gpu_memory_gb, in bytes, with room for so many whole sequences at a time; none = all that it is given."""
    count = work.trained_at_a_time if sequences is None else min(sequences, work.trained_at_a_time)
    drawing = work.seats * spec.vocabulary * constants.VLLM_SAMPLER_BYTES
    weights = -(-spec.parameters // config.vllm.tensor_parallel)
    split = number_bytes(config) * (weights + count * _cached(spec, config, work))
    return constants.VLLM_WORKSPACE + drawing + split


def sequences_in_vllm(spec: ModelSpec, config: TrainConfig, work: Workload) -> int:
    """Whole sequences that vLLM's KV cache holds at a time; at least 1."""
    if config.vllm.gpu_memory_gb is None:
        return work.trained_at_a_time
    left = config.vllm.gpu_memory_gb * GB - needed_by_vllm(spec, config, work, sequences=0)
    return max(1, int(left // (number_bytes(config) * _cached(spec, config, work))))


def shortfall_of_vllm(spec: ModelSpec, config: TrainConfig, work: Workload) -> int:
    """vllm.gpu_memory_gb, in bytes, with room for the weights and one sequence; 0 where it is given no less."""
    given = config.vllm.gpu_memory_gb
    if config.rollout.engine != "vllm" or given is None:
        return 0
    least = needed_by_vllm(spec, config, work, sequences=1)
    return least if given * GB + _ROUNDED < least else 0


_ROUNDED = GB / 100
"""Bytes that a proposed vllm.gpu_memory_gb may be short of, since it is rounded down."""


def _cached(spec: ModelSpec, config: TrainConfig, work: Workload) -> int:
    """Numbers of a whole sequence in vLLM's KV cache on a GPU, whose last block is not full.

    Each GPU of an engine has its share of the heads, and at least one, which others may have too.
    """
    heads = -(-spec.kv_heads // config.vllm.tensor_parallel)
    return (work.sequence + 16) * (spec.cache_numbers // spec.kv_heads) * heads
