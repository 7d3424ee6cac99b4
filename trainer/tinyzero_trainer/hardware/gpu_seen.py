"""Whether there is a GPU that a run would use, asked before anything slow is imported. No torch in here.

A guess to decide by within milliseconds: torch may still find that it cannot use the GPU. `tinyzero doctor` looks
closely.
"""

import ctypes
import os
import re
from importlib.util import find_spec
from pathlib import Path

_DRIVER = "libnvidia-ml.so.1"


def sees_gpu(device: str) -> bool:
    """Whether a run would be on a GPU.

    Args:
        device: `run.device`; any but `auto` is taken at its word.
    """
    if device != "auto":
        return device.startswith("cuda")
    # Indices up to the first that is none are seen, so -1 in front hides all.
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = visible is not None and visible.strip().partition(",")[0] in ("", "-1")
    return not hidden and torch_is_for_cuda() and count_gpus() > 0


def torch_is_for_cuda() -> bool:
    """Whether the torch that is installed was built for CUDA, by its version file."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return False
    return re.search(r"^cuda\b[^=\n]*= *['\"]", text, re.MULTILINE) is not None


def count_gpus(driver: str = _DRIVER) -> int:
    """How many GPUs NVIDIA's driver has; 0 without one.

    Args:
        driver: name of its library.
    """
    count = ctypes.c_uint(0)
    try:
        library = ctypes.CDLL(driver)
        if library.nvmlInit_v2() != 0:
            return 0
        found = library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
        library.nvmlShutdown()
    except (OSError, AttributeError):
        return 0
    return count.value if found else 0
