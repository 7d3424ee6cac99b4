"""The cost model of the rollout engine `torch`: what it takes of a GPU, and how fast it generates. No torch in here."""

from collections.abc import Callable
from dataclasses import replace

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.settings import Settings
from tinyzero_trainer.distributed.workload import Workload, cache_number_bytes, number_bytes
from tinyzero_trainer.hardware.gpu_specs import GpuSpec
from tinyzero_trainer.kinds import EngineMemory
from tinyzero_trainer.models.sizes import HIDDEN_FORWARD, MLP_FORWARD
from tinyzero_trainer.models.spec import ModelSpec
from tinyzero_trainer.rollout.sizes import DECODING_SHARE, LEAST_SEQUENCES

CACHE_BLOCK = 64  # positions by which the KV cache grows, so that short completions do not pay for the longest allowed
PREFILL_TOKENS = 32768  # tokens of prompts that are read at a time with CUDA graphs
FEW_SEQUENCES = 512  # generated at a time without CUDA graphs, where `rollout.max_num_seqs` leaves it open
STEP_NUMBERS = 8  # intermediate numbers of a sequence in a decoding step, per unit of the MLP's width
STEP_SECONDS, LAYER_SECONDS = 100e-6, 24e-6  # of a replayed CUDA graph for a decoding step, and for each layer in it
BANDWIDTH_SHARE = 0.95  # fraction of a GPU's memory bandwidth that decoding reaches
LEAST_TOKENS = 180  # by which a sequence seems longer when its cache is read: the cost of starting to read
FP8_PRODUCTS = 0.62  # time of matrix products in fp8 relative to that in bfloat16
FP8_CACHE = 1.3  # bytes that a number of the cache in fp8 seems to have: it is converted, which takes time as well

# Without CUDA graphs Python launches kernel after kernel: seconds on the host for a decoding step, and for each layer
# in it, between what two virtual hosts took, 32 and 36 ms.
PLAIN_STEP_SECONDS, PLAIN_LAYER_SECONDS = 5e-3, 1.1e-3
PLAIN_CACHE_PASSES = 14  # over the cache in a step: it is copied to grow, and read by kernels made for several queries
PLAIN_LOGIT_BYTES = 50  # read and written for each logit when plain torch samples


def sampling_bytes(number: int, *, by_kernel: bool, greedy: bool) -> int:
    """Bytes taken for each logit of a step: once for its graph, once where it was prepared.

    A logit has `number` bytes. Tokens are sampled by the Triton kernel or by plain torch, which takes less if `greedy`.
    """
    return 2 * (number + (0 if by_kernel else 4 if greedy else 26))


def memory(spec: ModelSpec, config: TrainConfig, work: Workload, *, keeps: bool = False) -> EngineMemory:
    """With `keeps` it keeps its memory during the update, as it does if that fits."""
    number, groups = number_bytes(config), -(-work.trained_at_a_time // config.rollout.group_size)
    prompts = max(groups, work.evaluated_at_a_time)
    layer = (HIDDEN_FORWARD * spec.hidden + MLP_FORWARD * spec.mlp) * number // 2
    if not spec.graphs:  # transformers' own forward pass, whose cache is copied to grow
        cache = work.at_a_time * work.sequence * spec.cache_numbers * number
        copies = (1 + spec.repeated_heads) * cache // max(1, spec.layers)  # of one layer: before it grew, and repeated
        sampling = sampling_bytes(number, by_kernel=False, greedy=False)
        weights = {"weights": number * spec.parameters}
        awake = {
            **weights,
            "KV cache": cache + copies,
            "decoding": work.at_a_time * spec.vocabulary * sampling,
            "prefill": prompts * work.prompt * layer,
        }
        return EngineMemory(awake, asleep=weights)
    slots = -(-work.sequence // CACHE_BLOCK) * CACHE_BLOCK
    read = min(prompts * work.prompt, max(PREFILL_TOKENS, work.prompt))
    mlp = work.at_a_time * STEP_NUMBERS * spec.mlp * number
    kept = {
        "weights": (number + (1 if config.rollout.quantization else 0)) * spec.parameters,
        "KV cache": (work.at_a_time + 1) * slots * spec.cache_numbers * cache_number_bytes(config),
        "decoding": spec.vocabulary * _sampling(config, work) + mlp,
    }
    # The memory for prefill is free for the trainer again.
    return EngineMemory({**kept, "prefill": read * layer}, asleep=kept if keeps else {})


def _sampling(config: TrainConfig, work: Workload) -> int:
    """Bytes that sampling takes for each token of the vocabulary; evaluations sample without top-p and top-k."""
    number, rollout = number_bytes(config), config.rollout
    filters = rollout.top_p < 1 or rollout.top_k > 0
    greedy = work.evaluated_at_a_time if config.eval.greedy else 0
    if config.algorithm.needs("greedy"):
        greedy = max(greedy, min(work.trained_at_a_time, config.data.prompts_per_step))
    return max(
        work.trained_at_a_time * sampling_bytes(number, by_kernel=not filters, greedy=False),
        work.evaluated_at_a_time * sampling_bytes(number, by_kernel=True, greedy=False),
        greedy * sampling_bytes(number, by_kernel=False, greedy=True),
    )


def settle(
    spec: ModelSpec, config: TrainConfig, work: Workload, limit: int, held: Callable[[TrainConfig], tuple[int, int]]
) -> TrainConfig:
    """Fill in `rollout.max_num_seqs`, if it is `auto`, with what fits; without CUDA graphs at most `FEW_SEQUENCES`.

    `held` returns the bytes held at the peak, and those while the engine is awake.
    """
    if config.rollout.max_num_seqs != "auto":
        return config
    count, settled = work.at_a_time, config
    if not spec.graphs:
        count = min(count, FEW_SEQUENCES)
        settled = replace(config, rollout=replace(config.rollout, max_num_seqs=count))
    least = max(LEAST_SEQUENCES, config.rollout.group_size)
    while count // 2 >= least and held(settled)[1] > limit:
        count //= 2
        settled = replace(config, rollout=replace(config.rollout, max_num_seqs=count))
    return settled


def shortfall(spec: ModelSpec, config: TrainConfig, work: Workload) -> int:
    """No setting gives it too little memory."""
    return 0


def less_memory(spec: ModelSpec, config: TrainConfig, work: Workload) -> tuple[Settings, ...]:
    """No setting but the number of its sequences leaves it less memory."""
    return ()


def sequences_at_a_time(spec: ModelSpec, config: TrainConfig, work: Workload) -> int:
    """Sequences of the batch that are generated at a time."""
    return work.trained_at_a_time


def note(spec: ModelSpec) -> str:
    """What to know beside the plan; empty = nothing."""
    if spec.graphs:
        return ""
    return (
        "rollout.engine=torch has no CUDA graphs for this architecture, so generating is slow; rollout.engine=vllm is "
        "faster for it"
    )


def copies_model(spec: ModelSpec) -> bool:
    """Whether a dedicated engine has weights of its own beside the model that receives new ones."""
    return spec.graphs


def tokens_read(spec: ModelSpec, prompt: int, generated: float, group_size: int) -> float:
    """Tokens of a sequence whose keys and values a step reads; CUDA graphs read a prompt once for its group."""
    return prompt / (group_size if spec.graphs else 1) + generated


def step_seconds(spec: ModelSpec, config: TrainConfig, gpu: GpuSpec, sequences: int, length: float) -> float:
    """Seconds in which one token of each sequence is generated, for `tokens_read` on average."""
    number, cache = number_bytes(config), spec.cache_numbers * cache_number_bytes(config)
    token = 2 * spec.parameters / gpu.flops_in(number)
    length += LEAST_TOKENS
    logit = 3 * number  # written once and read twice
    weight, products = (1, FP8_PRODUCTS) if config.rollout.quantization else (number, 1.0)
    length *= FP8_CACHE if config.rollout.kv_cache_dtype else 1.0
    if not spec.graphs:
        cache *= PLAIN_CACHE_PASSES + 2 * spec.repeated_heads
        logit = PLAIN_LOGIT_BYTES
    touched = weight * spec.parameters + sequences * (length * cache + logit * spec.vocabulary)
    read = touched / (gpu.bandwidth * 1e9 * BANDWIDTH_SHARE)
    host = STEP_SECONDS + spec.layers * LAYER_SECONDS
    # Kernels run one after another, so the times of computing and of reading add up.
    seconds = host + read + products * sequences * token / DECODING_SHARE
    if spec.graphs:
        return seconds
    return max(seconds, PLAIN_STEP_SECONDS + spec.layers * PLAIN_LAYER_SECONDS)  # host and GPU overlap


def prefill_seconds(spec: ModelSpec, config: TrainConfig, gpu: GpuSpec, tokens: int) -> float:
    """Seconds in which prompts are read, each once for all its completions."""
    return 2 * spec.parameters * tokens / (gpu.flops_in(number_bytes(config)) * DECODING_SHARE)


def wake_seconds(config: TrainConfig) -> float:
    """Seconds of a step in which it falls asleep and wakes up."""
    return 0.0
