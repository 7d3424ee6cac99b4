"""PyTorch's expandable segments: on where a model is trained, and off for what another process opens.

Without them the allocator keeps blocks for each size that it has met, and micro-batches have many: on a card of 24 GB
that was 5 GiB of 21 that nobody used (`benchmarks/README.md`). To open a tensor of one, a process takes a file
descriptor out of the one that has it (pidfd_getfd), which containers refuse.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tinyzero_trainer.config import TrainConfig

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""From which PyTorch takes the settings of its allocator; the first one that is set."""

_SETTING = "expandable_segments"
_GET, _SET = "_accelerator_getAllocatorSettings", "_accelerator_setAllocatorSettings"
_told: list[str] = []
"""Settings that PyTorch was given in this process: not every one that takes them tells them."""


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
    """Turn them on, for what is allocated from here on.

    Not where the environment has settings of the allocator; nor where vLLM shares this process, whose sleep does not go
    with them; nor where PyTorch cannot turn them off again (before 2.9).
    """
    shared = config.rollout.engine == "vllm" and not config.vllm.separate_process
    if not shared and hasattr(torch._C, _SET) and not any(name in os.environ for name in VARIABLES):
        _told[:] = [f"{_SETTING}:True"]
        getattr(torch._C, _SET)(*_told)


@contextmanager
def fixed_segments() -> Iterator[None]:
    """Within, what is allocated on a GPU is in no expandable segment, not in one that is only kept either."""
    settings = _settings()
    if not expands(settings):
        yield
        return
    # All of them each time, since those that are not named go back to their defaults. While it is off, the allocator
    # passes over free blocks of expandable segments.
    change = getattr(torch._C, _SET)
    change(",".join(filter(None, (without_expansion(settings), f"{_SETTING}:False"))))
    try:
        yield
    finally:
        change(settings)


def _settings() -> str:
    """Those that hold now."""
    if hasattr(torch._C, _GET):
        return getattr(torch._C, _GET)()
    return next(iter(_told), None) or next((os.environ[name] for name in VARIABLES if name in os.environ), "")
