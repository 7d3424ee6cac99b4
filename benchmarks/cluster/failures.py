"""Checkpoints, and the time that failures cost with one every so often."""

import math

from benchmarks.cluster.host import SHA256
from tinyzero_trainer.estimate import constants
from tinyzero_trainer.models.spec import ModelSpec

GPU_MTBF = 54 * 24 * 3600 * 16_384 / 419
"""Seconds of a GPU for each interruption: 419 that nobody had planned in 54 days of 16,384 H100, whatever their reason
(The Llama 3 Herd of Models, table 5: https://arxiv.org/abs/2407.21783)."""

DISK, FILE_SYSTEM = 2e9, 20e9
"""Bytes a second that one process writes to the shared file system, and all together. Assumed."""

HASHING_THREADS = 16
"""On a driver's machine; the most that `tinyzero_trainer.checkpoint.store` takes."""

RESTART = 300.0
"""Seconds from a failure to the first step after it, for a run that is started again at once. Assumed."""


def checkpoint_bytes(spec: ModelSpec) -> dict[str, int]:
    """Of a checkpoint: the weights in float32, and AdamW's moments."""
    return {"weights": 4 * spec.parameters, "moments": 8 * spec.parameters}


def checkpoint_seconds(spec: ModelSpec, gpus: int) -> dict[str, float]:
    """Of each part: the first rank writes the weights, then each its share of the moments, then the driver seals it.

    To seal is to take the SHA-256 of every file, and to read all back and take it once more: by all cores, so that the
    file system is what limits it.
    """
    size = checkpoint_bytes(spec)
    return {
        "weights": size["weights"] / constants.PCIE + size["weights"] / DISK,
        "moments": size["moments"] / min(FILE_SYSTEM, gpus * DISK),
        "seal": 2 * sum(size.values()) / min(SHA256 * HASHING_THREADS, FILE_SYSTEM),
    }


def mtbf(gpus: int) -> float:
    """Seconds between two interruptions of a run on so many GPUs, in the mean."""
    return GPU_MTBF / gpus


def best_interval(cost: float, mean: float) -> float:
    """Seconds of work between checkpoints that lose least: J. W. Young, CACM 17 (1974) 530; see also
    https://hal.inria.fr/hal-02514107.

    Args:
        cost: seconds of a checkpoint.
        mean: seconds between interruptions.
    """
    return math.sqrt(2 * cost * mean)


def lost(interval: float, cost: float, mean: float, restart: float = RESTART) -> float:
    """Share of the time that is lost, to first order: to checkpoints, to work done again, and to restarts."""
    return cost / interval + (interval / 2 + restart) / mean
