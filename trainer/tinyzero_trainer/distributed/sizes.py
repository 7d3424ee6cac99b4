"""Numbers of a process on a GPU that predictions need too. No torch in here."""

from tinyzero_trainer.hardware.gpu import MIB

CONTEXT = 560 * MIB
"""Bytes of a process's CUDA context with its loaded kernels and cuBLAS' workspace."""

NCCL = 512 * MIB
"""Bytes of a process's communicators with other GPUs; assumed."""

SLACK = 0.08
"""Fragmentation: what the allocator holds beyond what a process has allocated, as a fraction of that."""

MARGIN = 0.1
"""Fraction of a GPU that a plan leaves free: the error that a prediction may have."""


def usable(memory: int) -> int:
    """Bytes of a GPU that a plan may take."""
    return int(memory * (1 - MARGIN))
