"""What a rollout engine takes of a GPU, awake and asleep, in bytes by reason."""

from collections.abc import Mapping
from dataclasses import dataclass

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.plan import constants
from tinyzero_trainer.plan.shape import ModelShape
from tinyzero_trainer.plan.work import Work

GB = 1e9
"""What vllm.gpu_memory is given in."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A rollout engine's memory."""

    awake: Mapping[str, int]
    """While it generates; the reason of each part, and its bytes."""

    asleep: Mapping[str, int]
    """While something else happens."""

    own_process: bool
    """Whether that is beside the trainer's process, rather than in it."""


def engine_of(shape: ModelShape, config: TrainConfig, work: Work, *, keeps: bool = False) -> Engine:
    """The engine of a configuration; where vllm.gpu_memory is not set, with room for all its sequences.

    Args:
        shape: the model's.
        config: of the run.
        work: of a step.
        keeps: whether the engine `torch` keeps its memory during the update, as it does where there is room.
    """
    return _vllm(shape, config, work) if config.rollout.engine == "vllm" else _torch(shape, work, keeps)


def _torch(shape: ModelShape, work: Work, keeps: bool) -> Engine:
    slots = -(-(work.sequence + 1) // constants.SLOTS) * constants.SLOTS
    prompts = min(work.trained_at_a_time * work.prompt, max(constants.PREFILL_TOKENS, work.prompt))
    layer = constants.HIDDEN_FORWARD * shape.hidden + constants.MLP_FORWARD * shape.mlp
    step = shape.vocabulary * constants.SAMPLER_BYTES + shape.mlp * constants.STEP_BYTES
    awake = {
        "weights in bfloat16": 2 * shape.parameters,
        "KV cache": (work.at_a_time + 1) * slots * shape.cache_bytes,
        "a step": work.at_a_time * step,
        "reading prompts": prompts * layer,
    }
    return Engine(awake=awake, asleep=awake if keeps else {}, own_process=False)


def _vllm(shape: ModelShape, config: TrainConfig, work: Work) -> Engine:
    process = {"CUDA context of its process": constants.CONTEXT} if config.vllm.own_process else {}
    wanted = needed_by_vllm(shape, config, work)
    size = wanted if config.vllm.gpu_memory is None else int(config.vllm.gpu_memory * GB)
    graphs = constants.VLLM_BESIDE if config.vllm.cuda_graphs else constants.VLLM_BESIDE // 4
    awake = {"vllm.gpu_memory": size, "beside it": graphs, **process}
    asleep = {"what stays when it sleeps": constants.VLLM_ASLEEP, **process} if config.vllm.sleep else awake
    return Engine(awake=awake, asleep=asleep, own_process=config.vllm.own_process)


def needed_by_vllm(shape: ModelShape, config: TrainConfig, work: Work, sequences: int | None = None) -> int:
    """vllm.gpu_memory, in bytes, with room for so many whole sequences at a time; none = all of a step."""
    count = work.trained_at_a_time if sequences is None else min(sequences, work.trained_at_a_time)
    drawing = work.at_a_time * shape.vocabulary * constants.VLLM_SAMPLER_BYTES
    split = 2 * shape.parameters + count * (work.sequence + 16) * shape.cache_bytes
    return constants.VLLM_WORKSPACE + drawing + split // config.vllm.tensor_parallel


def sequences_in_vllm(shape: ModelShape, config: TrainConfig, work: Work) -> int:
    """Whole sequences that vLLM's KV cache holds at a time; at least 1."""
    if config.vllm.gpu_memory is None:
        return work.trained_at_a_time
    left = config.vllm.gpu_memory * GB - needed_by_vllm(shape, config, work, sequences=0)
    return max(1, int(left * config.vllm.tensor_parallel // ((work.sequence + 16) * shape.cache_bytes)))
