"""PyTorch's expandable segments, which another process cannot open everywhere: to see that they are on, and do without.

Opening a tensor of one takes a file descriptor out of the process that has it (pidfd_getfd); containers refuse that.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""From which PyTorch takes the settings of its allocator; the first one that is set."""

_SETTING = "expandable_segments"


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


@contextmanager
def fixed_segments() -> Iterator[None]:
    """Within, what is allocated on a GPU is in no expandable segment, not in one that is only kept either."""
    settings = _settings()
    if not expands(settings):
        yield
        return
    # All of them each time, since those that are not named go back to their defaults. While it is off, the allocator
    # passes over free blocks of expandable segments.
    change = torch._C._accelerator_setAllocatorSettings
    change(",".join(filter(None, (without_expansion(settings), f"{_SETTING}:False"))))
    try:
        yield
    finally:
        change(settings)


def _settings() -> str:
    """Those that hold now."""
    if hasattr(torch._C, "_accelerator_getAllocatorSettings"):
        return torch._C._accelerator_getAllocatorSettings()
    return next((os.environ[name] for name in VARIABLES if name in os.environ), "")
