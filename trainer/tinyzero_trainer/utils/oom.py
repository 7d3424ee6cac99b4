"""Running out of memory, on a GPU or on the host, as one error. Knows no settings.

`catch_out_of_memory` wraps each phase of a run; the command line adds what to change (cli/oom_advice.py).
"""

import errno
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tinyzero_sdk.errors import TinyZeroError

_GPU_SIGNS = (
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "Triton Error [CUDA]: out of memory",
    "_STATUS_ALLOC_FAILED",  # of cuBLAS, cuDNN, cuSOLVER, cuSPARSE
    "CUBLAS_STATUS_NOT_INITIALIZED",  # cuBLAS has no memory for its handle
)
"""Errors of allocations outside PyTorch's allocator: CUDA graphs, kernels, workspaces of libraries."""

_HOST_SIGNS = (
    "DefaultCPUAllocator",
    "cudaHostAlloc",
    "cudaHostRegister",
    "cudaErrorMemoryAllocation",
    "Cannot allocate memory",
    "(os error 12)",
)
"""Errors of allocations of host memory, pinned or not."""


class OutOfMemoryError(TinyZeroError):
    """The memory of a GPU, or of the host, is too small for the settings."""

    policy_intact = False  # to save takes memory too

    def __init__(self, phase: str = "", reason: str = "", *, on_host: bool = False, advice: str = "") -> None:
        super().__init__(phase, reason)
        self.phase, self.reason, self.on_host, self.advice = phase, reason, on_host, advice
        self.micro_batch_tokens: int | None = None
        """With how many it ran out; None = with the configuration's."""

    def __str__(self) -> str:
        memory = "host memory (RAM)" if self.on_host else "the GPU's memory"
        because = f" ({self.reason})" if self.reason else ""
        advice = self.advice or "lower optimizer.micro_batch_tokens, or ask tinyzero plan which settings fit"
        return f"{memory} ran out while {self.phase}{because}; {advice}"


@contextmanager
def catch_out_of_memory(phase: str, advice: str = "") -> Iterator[None]:
    """Turn running out of memory in the block into an `OutOfMemoryError`; `advice` is for a GPU's memory."""
    try:
        yield
        return
    except OutOfMemoryError as error:
        error.phase = error.phase or phase
        if not error.on_host:
            error.advice = advice or error.advice
        raise
    except (RuntimeError, MemoryError, OSError, TinyZeroError) as error:
        cause = error.__cause__ or error if isinstance(error, TinyZeroError) else error
        on_host = _is_of_host(cause)
        if not on_host and not _is_of_gpu(cause):
            raise
        line = str(cause).partition("\n")[0]
        reason = line.removeprefix("CUDA out of memory. ").partition(". ")[0].strip(" .")
        traceback.clear_frames(error.__traceback__)  # they still hold the tensors of the failed pass
    torch.cuda.empty_cache()
    raise OutOfMemoryError(phase, reason, on_host=on_host, advice="" if on_host else advice)


def _is_of_gpu(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or any(sign in str(error) for sign in _GPU_SIGNS)


def _is_of_host(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError):
        return False
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    text = str(error)
    if _is_of_gpu(error):
        # CUDA uses the same words for pinned host memory and a GPU's: only the failing line distinguishes them.
        place = traceback.extract_tb(error.__traceback__)[-1:]
        pinned = any("pin_memory" in (frame.line or "") for frame in place)
        return pinned or any(sign in text for sign in ("cudaHostAlloc", "cudaHostRegister"))
    return any(sign in text for sign in _HOST_SIGNS)
