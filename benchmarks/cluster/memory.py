"""What a GPU holds when weights and states are sharded: the plan's parts for one GPU, and of what is sharded a share.

Ranks and engines are processes of their own, as in the executor that is planned; on one GPU they are one process.
"""

from collections.abc import Mapping

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.estimate import constants
from tinyzero_trainer.estimate.fit import with_settings
from tinyzero_trainer.estimate.memory import Part, predict_memory
from tinyzero_trainer.estimate.workload import number_bytes
from tinyzero_trainer.models.spec import ModelSpec

SHARDED = ("weights in float32", "AdamW's moments", "gradients in float32")
"""Parts of the plan that are divided by the number of shards."""


def phase_bytes(spec: ModelSpec, config: TrainConfig, prompt: int, shards: float, places: int) -> Mapping[str, int]:
    """Bytes that a GPU holds in each phase, ranks and engine taking turns.

    Args:
        spec: the model.
        config: of the run.
        prompt: tokens of a prompt.
        shards: GPUs that weights and states are divided over; infinity = others, so that an engine has this GPU alone.
        places: sequences that an engine generates at a time.
    """
    config = with_settings(config, {"rollout.max_num_seqs": places})
    memory = predict_memory(spec, config, prompt)
    found = {}
    for phase in memory.phases:
        held = sum(_held(part, spec, config, shards) for part in phase.parts if part.role != "process")
        contexts = constants.CONTEXT * (1 if shards == 1 else 2)
        found[phase.name] = int(held * (1 + constants.SLACK)) + contexts
    return found


def places_for(spec: ModelSpec, config: TrainConfig, prompt: int, shards: float, wanted: int, limit: float) -> int:
    """Sequences of full length that an engine has room for beside the shards, at most those that are wanted.

    Raises:
        ValueError: there is no room for one.
    """

    def fit(places: int) -> bool:
        found = phase_bytes(spec, config, prompt, shards, places)
        return max(found["gen"], found["update_weights"]) <= limit

    if not fit(1):
        raise ValueError(f"{spec.name} in {shards} shards leaves no room for a sequence on a GPU")
    low, high = 1, wanted + 1  # the first fits, the last is not tried
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fit(middle) else (low, middle)
    return low


def _held(part: Part, spec: ModelSpec, config: TrainConfig, shards: float) -> float:
    if shards == 1:
        return part.size
    if part.what in SHARDED:
        return part.size / shards
    if part.what == "weights at work":  # layers are gathered one after another
        return number_bytes(config) * (spec.embeddings + constants.LAYERS_GATHERED * spec.layer)
    return part.size
