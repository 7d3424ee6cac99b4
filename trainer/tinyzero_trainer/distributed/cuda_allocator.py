"""PyTorch's expandable segments: on where a model is trained, off for memory that another process opens.

Without them the allocator keeps blocks for each size that it has seen: on a GPU of 24 GB 5 GiB of 21 were unused. To
open a tensor in one, a process duplicates a file descriptor of the other (pidfd_getfd), which containers refuse.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tinyzero_trainer.config import TrainConfig

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""PyTorch reads the allocator's settings from the first one that is set."""

_SETTING = "expandable_segments"
_set_here: list[str] = []  # by `expand_segments` in this process: not every PyTorch returns its settings


def expands(settings: str | None) -> bool:
    """Whether settings of the allocator turn expandable segments on.

    Example:
        >>> expands("max_split_size_mb:64, expandable_segments:True")
        True
    """
    return f"{_SETTING}:true" in (settings or "").lower().replace(" ", "")


def without_expansion(settings: str) -> str:
    """All other settings.

    Example:
        >>> without_expansion("max_split_size_mb:64,expandable_segments:True")
        'max_split_size_mb:64'
    """
    return ",".join(part for part in settings.split(",") if not part.strip().lower().startswith(_SETTING))


def expand_segments(config: TrainConfig) -> None:
    """Turn them on for later allocations.

    Not where the environment has settings of the allocator; nor where the rollout engine does not support them.
    """
    if config.rollout.kind.expandable_segments(config) and not any(name in os.environ for name in VARIABLES):
        _set_here[:] = [f"{_SETTING}:True"]
        torch._C._accelerator_setAllocatorSettings(*_set_here)


def current_settings() -> str:
    """The allocator's settings in this process."""
    return next((os.environ[name] for name in VARIABLES if name in os.environ), "".join(_set_here))


@contextmanager
def fixed_segments() -> Iterator[None]:
    """Within, GPU memory is allocated outside of expandable segments, cached ones included."""
    settings = current_settings()
    if not expands(settings):
        yield
        return
    # All settings each time, since those that are not named return to their defaults. While it is off, the allocator
    # skips free blocks of expandable segments.
    change = torch._C._accelerator_setAllocatorSettings
    change(",".join(filter(None, (without_expansion(settings), f"{_SETTING}:False"))))
    try:
        yield
    finally:
        change(settings)
