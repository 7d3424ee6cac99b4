"""Performance of a step: seconds of its phases, GPU memory, and model FLOPs utilization (arXiv 2204.02311, §4.1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from tinyzero_trainer.hardware.gpu_specs import find_gpu_spec

FLOPS_PER_PARAMETER = 6
"""For each token trained on: 2 forward and 4 backward, without attention's own and without recomputation."""


def utilization(
    seconds: Mapping[str, float], tokens: int, *, parameters: Mapping[str, int], peak: float
) -> dict[str, float]:
    """`perf/mfu/ROLE` of each role that was updated in the step.

    `seconds` are those of the step's phases, `tokens` the prompt and completion tokens of each update in all its epochs
    (a prompt counts for each completion), `parameters` those of each role, and `peak` the FLOP/s of all GPUs together.

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
    """A rank's GPU, and its process's peak memory so far: bytes of tensors, and all that PyTorch's allocator holds."""

    name: str
    allocated: int
    reserved: int


def memory_usage(device: torch.device) -> GpuMemoryUsage | None:
    """Memory of this process's GPU; None on the CPU."""
    if device.type != "cuda":
        return None
    allocated, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    return GpuMemoryUsage(torch.cuda.get_device_name(device), allocated, reserved)


def memory_metrics(gpus: Sequence[GpuMemoryUsage]) -> dict[str, float]:
    """`perf/max_memory_*_gb`, in GiB, of the fullest GPU; empty without GPUs."""
    if not gpus:
        return {}
    return {
        "perf/max_memory_allocated_gb": max(gpu.allocated for gpu in gpus) / 2**30,
        "perf/max_memory_reserved_gb": max(gpu.reserved for gpu in gpus) / 2**30,
    }


def peak_flops(gpus: Sequence[GpuMemoryUsage]) -> float | None:
    """FLOP/s of these GPUs together in bfloat16, from their data sheets; None without GPUs or if one is unknown."""
    specs = [find_gpu_spec(gpu.name) for gpu in gpus]
    known = [spec.flops for spec in specs if spec is not None]
    return sum(known) if known and len(known) == len(specs) else None


class StepTimer:
    """Wall-clock seconds of the phases of a step; each thread that works on one has its own timer."""

    def __init__(self) -> None:
        self._started = self._last = perf_counter()
        self.seconds: dict[str, float] = {}
        """Seconds of each phase so far, by name."""

    def record(self, name: str) -> None:
        """Charge the time since the last record to `name`."""
        last = self._last
        self.skip()
        self.seconds[name] = self.seconds.get(name, 0.0) + self._last - last

    def skip(self) -> None:
        """Charge the time since the last record to nothing: another timer measures it."""
        if torch.cuda.is_initialized():  # with Ray its actors have the GPUs, and their calls are waited for
            # Not the whole device: an engine in another thread samples on, or is capturing a graph, which forbids that.
            torch.cuda.current_stream().synchronize()
        self._last = perf_counter()

    def stop(self) -> dict[str, float]:
        """All phases, and the whole as `step`."""
        return {**self.seconds, "step": perf_counter() - self._started}
