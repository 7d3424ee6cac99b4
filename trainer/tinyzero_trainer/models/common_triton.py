"""What kernels in Triton share: how they start early, and rounding to fp8. Imported on a GPU only."""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinyzero_trainer.hardware.nvml import nvidia_driver
from tinyzero_trainer.models.float8_format import FP8_MAX, SMALLEST_SCALE

LARGEST_FP8 = tl.constexpr(FP8_MAX)
LEAST_SCALE = tl.constexpr(SMALLEST_SCALE)


def early(tensor: Tensor) -> dict[str, bool]:
    """Launch options for a kernel that is brought to the GPU while the one before it still runs, and waits there.

    A decoding step is some 200 short kernels, one after another.
    """
    return {"EARLY": True, "launch_pdl": True} if _can_start_early(tensor.device) else {"EARLY": False}


@cache
def _can_start_early(device: torch.device) -> bool:
    """Whether the GPU has "programmatic dependent launch" (from Hopper on), and the driver CUDA graphs with it."""
    driver = nvidia_driver()
    captures = driver is not None and driver.cuda is not None and driver.cuda >= (12, 3)
    return captures and torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit
def wait(EARLY: tl.constexpr):  # type: ignore[no-untyped-def]
    """Wait until the kernel before has ended: its results cannot be read earlier, nor its inputs overwritten."""
    if EARLY:
        tl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def round_to_fp8(states, scale):  # type: ignore[no-untyped-def]
    """Divide by a scale; what is too large becomes the largest number.

    NaN stays, so that the log-probability is NaN too, and the update is refused.
    """
    states = tl.clamp(states.to(tl.float32) / scale, -LARGEST_FP8, LARGEST_FP8, propagate_nan=tl.PropagateNan.ALL)
    return states.to(tl.float8e4nv)
