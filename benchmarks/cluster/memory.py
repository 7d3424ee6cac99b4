"""What a GPU holds when weights and optimizer states are sharded: the plan's items for one GPU, divided if sharded.

Ranks and engines are separate processes; on one GPU they are one process.
"""

from bisect import bisect_left
from collections.abc import Mapping

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.estimate import constants
from tinyzero_trainer.estimate.fit import with_settings
from tinyzero_trainer.estimate.memory import predict_memory
from tinyzero_trainer.estimate.workload import number_bytes
from tinyzero_trainer.models.spec import ModelSpec

SHARDED = ("weights in float32", "AdamW's moments", "gradients in float32")
"""Items of the plan that are divided by the number of shards."""


def phase_bytes(spec: ModelSpec, config: TrainConfig, prompt: int, shards: float, slots: int) -> Mapping[str, int]:
    """Bytes that a GPU holds in each phase, time-shared by rank and engine.

    Args:
        spec: the model.
        config: of the run.
        prompt: tokens of a prompt.
        shards: GPUs that share weights and states; infinity = an engine has this GPU alone.
        slots: sequences that an engine generates at a time.
    """
    memory = predict_memory(spec, with_settings(config, {"rollout.max_num_seqs": slots}), prompt)
    contexts = constants.CONTEXT * (1 if shards == 1 else 2)
    found = {}
    for phase in memory.phases:
        held = 0.0
        for item in phase.parts:
            if item.role == "process":
                continue
            if shards > 1 and item.what in SHARDED:
                held += item.size / shards
            elif shards > 1 and item.what == "unsharded weights":  # layers are gathered one after another
                held += number_bytes(config) * (spec.embeddings + constants.LAYERS_GATHERED * spec.layer)
            else:
                held += item.size
        found[phase.name] = int(held * (1 + constants.SLACK)) + contexts
    return found


def slots_for(spec: ModelSpec, config: TrainConfig, prompt: int, shards: float, most: int, limit: float) -> int:
    """Sequences of full length for which an engine has memory next to the shards, at most `most`.

    Raises:
        ValueError: there is not enough memory for one.
    """

    def fit(slots: int) -> bool:
        found = phase_bytes(spec, config, prompt, shards, slots)
        return max(found["gen"], found["update_weights"]) <= limit

    if not fit(1):
        raise ValueError(f"{spec.name} in {shards} shards leaves no memory for a sequence on a GPU")
    return bisect_left(range(2, most + 1), True, key=lambda slots: not fit(slots)) + 1
