"""Checkpoints, and the time lost to failures as a function of the checkpoint interval."""

import math

from benchmarks.cluster.host import SHA256
from tinyzero_trainer.advisor import constants
from tinyzero_trainer.models.spec import ModelSpec

GPU_MTBF = 54 * 24 * 3600 * 16_384 / 419
"""GPU seconds per interruption: 419 unplanned ones in 54 days on 16,384 H100s, whatever their cause
(The Llama 3 Herd of Models, table 5: https://arxiv.org/abs/2407.21783)."""

DISK, FILE_SYSTEM = 2e9, 20e9
"""Bytes per second that one process, and all together, write to the shared file system. Assumed."""

HASHING_THREADS = 16  # of the controller; the maximum that `tinyzero_trainer.checkpoint.store` uses
RESTART = 300.0
"""Seconds from a failure to the first step after it, for a run that is restarted at once. Assumed."""


def checkpoint_bytes(spec: ModelSpec) -> dict[str, int]:
    """Of a checkpoint: the weights in float32, and AdamW's moments."""
    return {"weights": 4 * spec.parameters, "moments": 8 * spec.parameters}


def checkpoint_seconds(spec: ModelSpec, gpus: int) -> dict[str, float]:
    """Of each part: rank 0 writes the weights, then each rank its shard of the moments, then the controller seals it.

    Sealing computes the SHA-256 of every file on all cores, so the file system is the limit.
    """
    size = checkpoint_bytes(spec)
    return {
        "weights": size["weights"] / constants.PCIE + size["weights"] / DISK,
        "moments": size["moments"] / min(FILE_SYSTEM, gpus * DISK),
        "seal": sum(size.values()) / min(SHA256 * HASHING_THREADS, FILE_SYSTEM),
    }


def mtbf(gpus: int) -> float:
    """Mean seconds between two interruptions of a run on `gpus` GPUs."""
    return GPU_MTBF / gpus


def best_interval(cost: float, mean: float) -> float:
    """Seconds of work between checkpoints that lose least, by the seconds of a checkpoint and between interruptions:
    J. W. Young, CACM 17 (1974) 530; see also https://hal.inria.fr/hal-02514107.
    """
    return math.sqrt(2 * cost * mean)


def lost(interval: float, cost: float, mean: float, restart: float = RESTART) -> float:
    """Fraction of time lost, to first order: to checkpoints, repeated work and restarts."""
    return cost / interval + (interval / 2 + restart) / mean
