"""What of their GPUs the ranks make use of: memory, and model FLOPs utilisation (arXiv 2204.02311, §4.1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from tinyzero_trainer.hardware.gpu_specs import find_gpu_spec

FLOPS_PER_PARAMETER = 6
"""Of a token that is trained on: 2 forward and 4 backward; attention's own and what is computed again do not count."""


def utilization(
    seconds: Mapping[str, float], tokens: int, *, parameters: Mapping[str, int], peak: float
) -> dict[str, float]:
    """`perf/mfu/ROLE` of each role that was updated in the step.

    Args:
        seconds: of the parts of the step, `update_ROLE` among them.
        tokens: prompt and completion tokens that went through each update, over all its epochs.
        parameters: of each role.
        peak: FLOP/s of all cards together.

    Example:
        >>> utilization({"update_actor": 2.0, "gen": 1.0}, 1000, parameters={"actor": 10**9, "critic": 5}, peak=6e12)
        {'perf/mfu/actor': 0.5}
    """
    work = {role: FLOPS_PER_PARAMETER * count * tokens for role, count in parameters.items()}
    return {
        f"perf/mfu/{role}": flops / seconds[f"update_{role}"] / peak
        for role, flops in work.items()
        if seconds.get(f"update_{role}")
    }


@dataclass(frozen=True, slots=True)
class GpuMemoryUsage:
    """A rank's GPU, and the most that its process has held of it so far."""

    name: str
    """As the driver has it."""

    allocated: int
    """Bytes of tensors."""

    reserved: int
    """Bytes, with those that PyTorch's allocator keeps."""


def memory_usage(device: torch.device) -> GpuMemoryUsage | None:
    """Of this process; None on the CPU."""
    if device.type != "cuda":
        return None
    allocated, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    return GpuMemoryUsage(torch.cuda.get_device_name(device), allocated, reserved)


def memory_metrics(cards: Sequence[GpuMemoryUsage]) -> dict[str, float]:
    """`perf/max_memory_*_gb`, in GiB, of the card that has the most; nothing without cards."""
    if not cards:
        return {}
    return {
        "perf/max_memory_allocated_gb": max(card.allocated for card in cards) / 2**30,
        "perf/max_memory_reserved_gb": max(card.reserved for card in cards) / 2**30,
    }


def peak_flops(cards: Sequence[GpuMemoryUsage]) -> float | None:
    """FLOP/s in bfloat16 of cards together, by their data sheets; None without cards and of unknown ones."""
    found = [find_gpu_spec(card.name) for card in cards]
    known = [card.flops for card in found if card is not None]
    return sum(known) if known and len(known) == len(found) else None
