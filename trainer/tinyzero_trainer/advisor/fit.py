"""How the rollout engine fills in settings that are left open, so that a run fits a GPU's memory."""

from dataclasses import replace

from tinyzero_trainer.advisor import constants
from tinyzero_trainer.advisor.engine_memory import needed_by_vllm
from tinyzero_trainer.advisor.memory import Memory, predict_memory
from tinyzero_trainer.advisor.workload import workload_of
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.distributed.parallel_dims import GpuRole, planned_dims
from tinyzero_trainer.models.spec import ModelSpec
from tinyzero_trainer.rollout.torch.sizes import FEW_SEQUENCES
from tinyzero_trainer.rollout.vllm.sizes import GB

LEAST_TOKENS = 2048  # of a proposed micro-batch: below it a GPU waits more than it computes
LEAST_SEQUENCES = 16  # proposed to be generated at a time
AWAKE = ("gen", "gen_greedy", "update_weights")  # phases in which the rollout engine cannot sleep


def usable(memory: int) -> int:
    """Bytes of a GPU that a plan may take."""
    return int(memory * (1 - constants.MARGIN))


def settle(spec: ModelSpec, config: TrainConfig, limit: int, prompt_tokens: int | None = None) -> TrainConfig:
    """Decide what the configuration leaves to the rollout engine.

    The engine `torch` generates as many sequences at a time as fit; without CUDA graphs at most `FEW_SEQUENCES`. vLLM
    stays awake during the update if all its sequences fit as well, or if it has dedicated GPUs; otherwise it sleeps and
    takes what the weights leave, but at least enough for `LEAST_SEQUENCES`, whether that fits or not.
    """
    if config.rollout.engine == "vllm":
        return _settle_vllm(spec, config, limit, prompt_tokens)
    if config.rollout.max_num_seqs != "auto":
        return config
    count, settled = workload_of(config, prompt_tokens).at_a_time, config
    if not spec.graphs:
        count = min(count, FEW_SEQUENCES)
        settled = replace(config, rollout=replace(config.rollout, max_num_seqs=count))
    least = max(LEAST_SEQUENCES, config.rollout.group_size)
    while count // 2 >= least and awake_bytes(spec, settled, prompt_tokens) > limit:
        count //= 2
        settled = replace(config, rollout=replace(config.rollout, max_num_seqs=count))
    return settled


def _settle_vllm(spec: ModelSpec, config: TrainConfig, limit: int, prompt_tokens: int | None) -> TrainConfig:
    vllm, work, dims = config.vllm, workload_of(config, prompt_tokens), planned_dims(config)
    most = needed_by_vllm(spec, config, work)
    least = needed_by_vllm(spec, config, work, sequences=LEAST_SEQUENCES)
    for sleep in (False, True) if vllm.sleep_mode == "auto" and dims.colocated else (vllm.sleep_mode,):
        size = _gigabytes(least) if vllm.gpu_memory_gb == "auto" else vllm.gpu_memory_gb
        tight = replace(config, vllm=replace(vllm, gpu_memory_gb=size, sleep_mode=sleep))
        peak = predict_memory(spec, tight, prompt_tokens, gpu=dims.generating).peak
        awake = awake_bytes(spec, tight, prompt_tokens) if sleep is True else peak
        room = size * GB + (limit - awake) / (1 if vllm.separate_process else 1 + constants.SLACK)
        if vllm.gpu_memory_gb != "auto":
            settled, good = tight, peak <= limit
        else:
            size = max(least, min(most + GB / 100, room))  # so that rounding down costs no sequence
            settled, good = replace(config, vllm=replace(tight.vllm, gpu_memory_gb=_gigabytes(size))), room >= most
        if good:
            break
    return settled


def awake_bytes(spec: ModelSpec, config: TrainConfig, prompt_tokens: int | None = None) -> int:
    """Bytes of the worst phase in which the rollout engine cannot sleep, on a GPU that it uses."""
    memory = predict_memory(spec, config, prompt_tokens, gpu=planned_dims(config).generating)
    return max(phase.total for phase in memory.phases if phase.name in AWAKE)


def predict_within(
    spec: ModelSpec, config: TrainConfig, limit: int, prompt_tokens: int | None = None, *, gpu: GpuRole | None = None
) -> Memory:
    """As `predict_memory`, where the engine `torch` keeps its memory during the update if `engine_keeps` says so."""
    keeps = engine_keeps(spec, config, limit, prompt_tokens, gpu=gpu)
    return predict_memory(spec, config, prompt_tokens, keeps=keeps, gpu=gpu)


def engine_keeps(
    spec: ModelSpec, config: TrainConfig, limit: int, prompt_tokens: int | None = None, *, gpu: GpuRole | None = None
) -> bool:
    """Whether the engine `torch` keeps its memory during the update: if that fits, and nothing is offloaded."""
    if config.memory.offload is not None:
        return False
    return predict_memory(spec, config, prompt_tokens, keeps=True, gpu=gpu).peak <= limit


def _gigabytes(size: float) -> float:
    """Bytes in the unit of vllm.gpu_memory_gb, rounded down."""
    return max(0.01, int(size / GB * 100) / 100)
