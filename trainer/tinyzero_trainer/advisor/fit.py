"""How the rollout engine fills in settings that are left open, so that a run fits a GPU's memory."""

from tinyzero_trainer.advisor.memory import Memory, predict_memory, predictions_of
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.distributed.parallel_dims import GpuRole, planned_dims
from tinyzero_trainer.distributed.workload import workload_of
from tinyzero_trainer.models.spec import ModelSpec

LEAST_TOKENS = 2048  # of a proposed micro-batch: below it a GPU waits more than it computes
AWAKE = ("gen", "gen_greedy", "update_weights")  # phases in which the rollout engine cannot sleep


def settle(spec: ModelSpec, config: TrainConfig, limit: int, prompt_tokens: int | None = None) -> TrainConfig:
    """The configuration with values for what is left to the rollout engine, as the engine's own `settle` chooses."""

    def held(candidate: TrainConfig) -> tuple[int, int]:
        memory = predict_memory(spec, candidate, prompt_tokens, gpu=planned_dims(candidate).generating)
        return memory.peak, max(phase.total for phase in memory.phases if phase.name in AWAKE)

    settled: TrainConfig = predictions_of(config).settle(spec, config, workload_of(config, prompt_tokens), limit, held)
    return settled


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
