"""The cost model of the rollout engine `vllm`: what it takes of a GPU, and how fast it generates. No torch in here."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.settings import Settings
from tinyzero_trainer.distributed.parallel_dims import planned_dims
from tinyzero_trainer.distributed.sizes import CONTEXT, NCCL, SLACK
from tinyzero_trainer.distributed.workload import Workload, cache_number_bytes, number_bytes
from tinyzero_trainer.hardware.gpu import MIB
from tinyzero_trainer.hardware.gpu_specs import GpuSpec
from tinyzero_trainer.kinds import EngineMemory
from tinyzero_trainer.models.spec import ModelSpec
from tinyzero_trainer.rollout.sizes import DECODING_SHARE, GB, LEAST_SEQUENCES
from tinyzero_trainer.utils.bounds import unless_auto

WORKSPACE = 900 * MIB  # within `vllm.gpu_memory_gb`: activations of a prefill of 8,192 tokens
SAMPLER_BYTES = 12  # within `vllm.gpu_memory_gb`, for each logit of the sequences decoded at a time
BESIDE = 700 * MIB  # beyond `vllm.gpu_memory_gb`: CUDA graphs, and workspaces that vLLM's own profile misses
ASLEEP = 900 * MIB  # while it sleeps, without its process's context: CUDA graphs and workspaces
WAKE_SECONDS = 0.6  # to put it to sleep without its weights, and to wake it up
BANDWIDTH_SHARE = 0.9  # fraction of a GPU's memory bandwidth that decoding reaches

# Fitted, with BANDWIDTH_SHARE, to all rows of engine_speeds.toml; hosts differ by a third.
STEP_SECONDS, SEQUENCE_SECONDS = 1e-3, 14e-6  # on the host, for a decoding step and for each sequence in it
LOGIT_BYTES = 115  # read and written for each logit


def memory(spec: ModelSpec, config: TrainConfig, work: Workload, *, keeps: bool = False) -> EngineMemory:
    """Where vllm.gpu_memory_gb is not set, all its sequences fit; whether it sleeps, its own setting says."""
    vllm = config.vllm
    process = {"CUDA context of its process": CONTEXT} if vllm.separate_process else {}
    if vllm.tensor_parallel > 1:
        process["NCCL of its process"] = NCCL
    gigabytes = unless_auto(vllm.gpu_memory_gb)
    size = needed(spec, config, work) if gigabytes is None else int(gigabytes * GB)
    graphs = BESIDE if vllm.cuda_graphs else BESIDE // 4
    awake = {"vllm.gpu_memory_gb": size, "beside it": graphs, **process}
    asleep = {"what stays when it sleeps": ASLEEP, **process} if vllm.sleep_mode is True else awake
    return EngineMemory(awake, asleep, separate_process=vllm.separate_process)


def needed(spec: ModelSpec, config: TrainConfig, work: Workload, sequences: int | None = None) -> int:
    """vllm.gpu_memory_gb, in bytes, for this number of whole sequences at a time; None = all that it is given."""
    count = work.trained_at_a_time if sequences is None else min(sequences, work.trained_at_a_time)
    sampling = work.max_num_seqs * spec.vocabulary * SAMPLER_BYTES
    weights = -(-spec.parameters // config.vllm.tensor_parallel)
    return WORKSPACE + sampling + number_bytes(config) * weights + count * _cached(spec, config, work)


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
    touched = number * spec.parameters + sequences * (length * cache + LOGIT_BYTES * spec.vocabulary)
    read = touched / (gpu.bandwidth * 1e9 * BANDWIDTH_SHARE)
    host = STEP_SECONDS + sequences * SEQUENCE_SECONDS
    return host + max(read, sequences * token / DECODING_SHARE)


def prefill_seconds(spec: ModelSpec, config: TrainConfig, gpu: GpuSpec, tokens: int) -> float:
    """Prompts are read while others are decoded."""
    return 0.0


def wake_seconds(config: TrainConfig) -> float:
    """Seconds of a step in which it falls asleep and wakes up."""
    return WAKE_SECONDS if config.vllm.sleep_mode is True else 0.0
