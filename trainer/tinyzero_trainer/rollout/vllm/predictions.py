"""What the rollout engine `vllm` takes of a GPU, and how fast it generates: by sizes.py. No torch in here."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.settings import Settings
from tinyzero_trainer.distributed.parallel_dims import planned_dims
from tinyzero_trainer.distributed.sizes import CONTEXT, NCCL, SLACK
from tinyzero_trainer.distributed.workload import Workload, cache_number_bytes, number_bytes
from tinyzero_trainer.hardware.gpu_specs import GpuSpec
from tinyzero_trainer.kinds import EngineMemory
from tinyzero_trainer.models.spec import ModelSpec
from tinyzero_trainer.rollout.sizes import DECODING_SHARE, LEAST_SEQUENCES
from tinyzero_trainer.rollout.vllm import sizes
from tinyzero_trainer.rollout.vllm.sizes import GB
from tinyzero_trainer.utils.bounds import unless_auto


def memory(spec: ModelSpec, config: TrainConfig, work: Workload, *, keeps: bool = False) -> EngineMemory:
    """Where vllm.gpu_memory_gb is not set, all its sequences fit; whether it sleeps, its own setting says."""
    vllm = config.vllm
    process = {"CUDA context of its process": CONTEXT} if vllm.separate_process else {}
    if vllm.tensor_parallel > 1:
        process["NCCL of its process"] = NCCL
    gigabytes = unless_auto(vllm.gpu_memory_gb)
    size = needed(spec, config, work) if gigabytes is None else int(gigabytes * GB)
    graphs = sizes.BESIDE if vllm.cuda_graphs else sizes.BESIDE // 4
    awake = {"vllm.gpu_memory_gb": size, "beside it": graphs, **process}
    asleep = {"what stays when it sleeps": sizes.ASLEEP, **process} if vllm.sleep_mode is True else awake
    return EngineMemory(awake, asleep, separate_process=vllm.separate_process)


def needed(spec: ModelSpec, config: TrainConfig, work: Workload, sequences: int | None = None) -> int:
    """vllm.gpu_memory_gb, in bytes, for this number of whole sequences at a time; None = all that it is given."""
    count = work.trained_at_a_time if sequences is None else min(sequences, work.trained_at_a_time)
    sampling = work.max_num_seqs * spec.vocabulary * sizes.SAMPLER_BYTES
    weights = -(-spec.parameters // config.vllm.tensor_parallel)
    return sizes.WORKSPACE + sampling + number_bytes(config) * weights + count * _cached(spec, config, work)


def _cached(spec: ModelSpec, config: TrainConfig, work: Workload) -> int:
    """Bytes of a whole sequence in the KV cache on a GPU, with its last block; heads are divided among GPUs."""
    heads = -(-spec.kv_heads // config.vllm.tensor_parallel)
    return cache_number_bytes(config) * (work.sequence + 16) * (spec.cache_numbers // spec.kv_heads) * heads


def settle(
    spec: ModelSpec, config: TrainConfig, work: Workload, limit: int, held: Callable[[TrainConfig], tuple[int, int]]
) -> TrainConfig:
    """Whether it sleeps during the update and how much memory it takes, where that is left open.

    It stays awake if all its sequences fit as well, or if it has dedicated GPUs; otherwise it sleeps and takes what the
    weights leave, but at least enough for `LEAST_SEQUENCES`, whether that fits or not. `held` returns the bytes held at
    the peak, and those while the engine is awake.
    """
    vllm, dims = config.vllm, planned_dims(config)
    most, least = needed(spec, config, work), needed(spec, config, work, sequences=LEAST_SEQUENCES)
    for sleep in (False, True) if vllm.sleep_mode == "auto" and dims.colocated else (vllm.sleep_mode,):
        size = _gigabytes(least) if vllm.gpu_memory_gb == "auto" else vllm.gpu_memory_gb
        tight = replace(config, vllm=replace(vllm, gpu_memory_gb=size, sleep_mode=sleep))
        peak, awake = held(tight)
        room = size * GB + (limit - (awake if sleep is True else peak)) / (1 if vllm.separate_process else 1 + SLACK)
        if vllm.gpu_memory_gb != "auto":
            settled, good = tight, peak <= limit
        else:
            size = max(least, min(most + GB / 100, room))  # so that rounding down costs no sequence
            settled, good = replace(config, vllm=replace(tight.vllm, gpu_memory_gb=_gigabytes(size))), room >= most
        if good:
            break
    return settled


def _gigabytes(size: float) -> float:
    """Bytes in the unit of vllm.gpu_memory_gb, rounded down."""
    return max(0.01, int(size / GB * 100) / 100)


def shortfall(spec: ModelSpec, config: TrainConfig, work: Workload) -> int:
    """vllm.gpu_memory_gb, in bytes, that the weights and one sequence need; 0 if no less is given."""
    gigabytes, least = unless_auto(config.vllm.gpu_memory_gb), needed(spec, config, work, sequences=1)
    # A proposed value is rounded down.
    return least if gigabytes is not None and gigabytes * GB + GB / 100 < least else 0


def less_memory(spec: ModelSpec, config: TrainConfig, work: Workload) -> Iterator[Settings]:
    """Settings that leave it less memory than it is given."""
    size = unless_auto(config.vllm.gpu_memory_gb)
    if size is not None:
        less = int(80 * size) / 100
        if less * GB >= needed(spec, config, work, sequences=LEAST_SEQUENCES):
            yield {"vllm.gpu_memory_gb": less}


def sequences_at_a_time(spec: ModelSpec, config: TrainConfig, work: Workload) -> int:
    """Sequences of the batch that are generated at a time: as many whole ones as the KV cache holds, at least 1."""
    gigabytes = unless_auto(config.vllm.gpu_memory_gb)
    if gigabytes is None:
        return work.trained_at_a_time
    left = gigabytes * GB - needed(spec, config, work, sequences=0)
    return min(work.trained_at_a_time, max(1, int(left // _cached(spec, config, work))))


def note(spec: ModelSpec) -> str:
    """Nothing to know beside the plan."""
    return ""


def copies_model(spec: ModelSpec) -> bool:
    """Whether a dedicated engine has weights of its own beside the model that receives new ones."""
    return True


def tokens_read(spec: ModelSpec, prompt: int, generated: float, group_size: int) -> float:
    """Tokens of a sequence whose keys and values a decoding step reads."""
    return prompt + generated


def step_seconds(spec: ModelSpec, config: TrainConfig, gpu: GpuSpec, sequences: int, length: float) -> float:
    """Seconds in which one token of each sequence is generated, for `tokens_read` on average."""
    number, cache = number_bytes(config), spec.cache_numbers * cache_number_bytes(config)
    token = 2 * spec.parameters / gpu.flops_in(number)
    touched = number * spec.parameters + sequences * (length * cache + sizes.LOGIT_BYTES * spec.vocabulary)
    read = touched / (gpu.bandwidth * 1e9 * sizes.BANDWIDTH_SHARE)
    host = sizes.STEP_SECONDS + sequences * sizes.SEQUENCE_SECONDS
    return host + max(read, sequences * token / DECODING_SHARE)


def prefill_seconds(spec: ModelSpec, config: TrainConfig, gpu: GpuSpec, tokens: int) -> float:
    """Prompts are read while others are decoded."""
    return 0.0


def wake_seconds(config: TrainConfig) -> float:
    """Seconds of a step in which it falls asleep and wakes up."""
    return sizes.WAKE_SECONDS if config.vllm.sleep_mode is True else 0.0
