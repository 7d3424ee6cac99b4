"""What a rollout engine takes of a GPU, awake and asleep."""

from collections.abc import Mapping
from dataclasses import dataclass

from tinyzero_trainer.advisor import constants
from tinyzero_trainer.advisor.workload import Workload, number_bytes
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.models.spec import ModelSpec
from tinyzero_trainer.rollout.torch import sizes as torch
from tinyzero_trainer.rollout.vllm import sizes as vllm
from tinyzero_trainer.rollout.vllm.sizes import GB
from tinyzero_trainer.utils.bounds import given


def cache_number_bytes(config: TrainConfig) -> int:
    """Bytes of a number in the KV cache on a GPU."""
    return 1 if config.rollout.kv_cache_dtype else number_bytes(config)


@dataclass(frozen=True, slots=True)
class Engine:
    """A rollout engine's memory, in bytes by reason."""

    awake: Mapping[str, int]
    asleep: Mapping[str, int]
    separate_process: bool


def engine_of(spec: ModelSpec, config: TrainConfig, work: Workload, *, keeps: bool = False) -> Engine:
    """The engine of a configuration; where vllm.gpu_memory_gb is not set, all its sequences fit.

    With `keeps` the engine `torch` keeps its memory during the update, as it does if that fits.
    """
    if config.rollout.engine == "vllm":
        return _vllm(spec, config, work)
    return _torch(spec, config, work, keeps) if spec.graphs else _without_graphs(spec, config, work)


def _without_graphs(spec: ModelSpec, config: TrainConfig, work: Workload) -> Engine:
    """rollout/torch/torch_engine.py with transformers' own forward pass, whose cache is copied to grow."""
    number = number_bytes(config)
    prompts = max(-(-work.trained_at_a_time // config.rollout.group_size), work.evaluated_at_a_time)
    layer = constants.HIDDEN_FORWARD * spec.hidden + constants.MLP_FORWARD * spec.mlp
    cache = work.at_a_time * work.sequence * spec.cache_numbers * number
    copies = (1 + spec.repeated_heads) * cache // max(1, spec.layers)  # of one layer: before it grew, and repeated
    sampling = torch.sampling_bytes(number, by_kernel=False, greedy=False)
    weights = {"weights": number * spec.parameters}
    awake = {
        **weights,
        "KV cache": cache + copies,
        "decoding": work.at_a_time * spec.vocabulary * sampling,
        "prefill": prompts * work.prompt * layer * number // 2,
    }
    return Engine(awake=awake, asleep=weights, separate_process=False)


def _torch(spec: ModelSpec, config: TrainConfig, work: Workload, keeps: bool) -> Engine:
    """rollout/torch/cuda_graph/engine.py with its kernels."""
    number, slots = number_bytes(config), -(-work.sequence // torch.CACHE_BLOCK) * torch.CACHE_BLOCK
    prompts = max(-(-work.trained_at_a_time // config.rollout.group_size), work.evaluated_at_a_time)
    read = min(prompts * work.prompt, max(torch.PREFILL_TOKENS, work.prompt))
    layer = constants.HIDDEN_FORWARD * spec.hidden + constants.MLP_FORWARD * spec.mlp
    mlp = work.at_a_time * torch.STEP_NUMBERS * spec.mlp * number
    kept = {
        "weights": (number + (1 if config.rollout.quantization else 0)) * spec.parameters,
        "KV cache": (work.at_a_time + 1) * slots * spec.cache_numbers * cache_number_bytes(config),
        "decoding": spec.vocabulary * _sampling(config, work) + mlp,
    }
    awake = {**kept, "prefill": read * layer * number // 2}
    # The memory for prefill is free for the trainer again.
    return Engine(awake=awake, asleep=kept if keeps else {}, separate_process=False)


def _sampling(config: TrainConfig, work: Workload) -> int:
    """Bytes that sampling takes for each token of the vocabulary; evaluations sample without top-p and top-k."""
    number, rollout = number_bytes(config), config.rollout
    filters = rollout.top_p < 1 or rollout.top_k > 0
    greedy = work.evaluated_at_a_time if config.eval.greedy else 0
    if config.algorithm.needs("greedy"):
        greedy = max(greedy, min(work.trained_at_a_time, config.data.prompts_per_step))
    return max(
        work.trained_at_a_time * torch.sampling_bytes(number, by_kernel=not filters, greedy=False),
        work.evaluated_at_a_time * torch.sampling_bytes(number, by_kernel=True, greedy=False),
        greedy * torch.sampling_bytes(number, by_kernel=False, greedy=True),
    )


def _vllm(spec: ModelSpec, config: TrainConfig, work: Workload) -> Engine:
    process = {"CUDA context of its process": constants.CONTEXT} if config.vllm.separate_process else {}
    if config.vllm.tensor_parallel > 1:
        process["NCCL of its process"] = constants.NCCL
    wanted = needed_by_vllm(spec, config, work)
    gigabytes = given(config.vllm.gpu_memory_gb)
    size = wanted if gigabytes is None else int(gigabytes * GB)
    graphs = vllm.BESIDE if config.vllm.cuda_graphs else vllm.BESIDE // 4
    awake = {"vllm.gpu_memory_gb": size, "beside it": graphs, **process}
    asleep = {"what stays when it sleeps": vllm.ASLEEP, **process} if config.vllm.sleep_mode is True else awake
    return Engine(awake=awake, asleep=asleep, separate_process=config.vllm.separate_process)


def needed_by_vllm(spec: ModelSpec, config: TrainConfig, work: Workload, sequences: int | None = None) -> int:
    """vllm.gpu_memory_gb, in bytes, for this number of whole sequences at a time; None = all that it is given."""
    count = work.trained_at_a_time if sequences is None else min(sequences, work.trained_at_a_time)
    sampling = work.max_num_seqs * spec.vocabulary * vllm.SAMPLER_BYTES
    weights = -(-spec.parameters // config.vllm.tensor_parallel)
    split = number_bytes(config) * weights + count * _cached(spec, config, work)
    return vllm.WORKSPACE + sampling + split


def sequences_in_vllm(spec: ModelSpec, config: TrainConfig, work: Workload) -> int:
    """Whole sequences that vLLM's KV cache holds at a time; at least 1."""
    gigabytes = given(config.vllm.gpu_memory_gb)
    if gigabytes is None:
        return work.trained_at_a_time
    left = gigabytes * GB - needed_by_vllm(spec, config, work, sequences=0)
    return max(1, int(left // _cached(spec, config, work)))


def shortfall_of_vllm(spec: ModelSpec, config: TrainConfig, work: Workload) -> int:
    """vllm.gpu_memory_gb, in bytes, that the weights and one sequence need; 0 if no less is given."""
    gigabytes = given(config.vllm.gpu_memory_gb)
    if config.rollout.engine != "vllm" or gigabytes is None:
        return 0
    least = needed_by_vllm(spec, config, work, sequences=1)
    return least if gigabytes * GB + GB / 100 < least else 0  # a proposed value is rounded down


def _cached(spec: ModelSpec, config: TrainConfig, work: Workload) -> int:
    """Bytes of a whole sequence in vLLM's KV cache on a GPU, with its last block; heads are divided among GPUs."""
    heads = -(-spec.kv_heads // config.vllm.tensor_parallel)
    return cache_number_bytes(config) * (work.sequence + 16) * (spec.cache_numbers // spec.kv_heads) * heads
