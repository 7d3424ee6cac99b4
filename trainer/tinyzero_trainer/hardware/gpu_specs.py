"""Memory, FLOP/s and bandwidth of well-known GPUs by NVIDIA's data sheets, found by the driver's name of a GPU.

For plans, and for the fraction of the peak that an update reaches. No torch in here.

Sources: NVIDIA's data sheets of the data-centre GPUs, dense (half of what they print "with sparsity"); of the GeForce
and RTX GPUs the architecture whitepapers of Ampere (GA102), Ada and Blackwell, with accumulation in float32.
"""

import re
from dataclasses import dataclass

from tinyzero_trainer.hardware.gpu import Capability


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """A GPU model."""

    name: str
    memory: float
    """GiB that the driver shows, at most."""

    tflops: float
    """Dense bfloat16 TFLOP/s with accumulation in float32; of GPUs without bfloat16, float16."""

    bandwidth: float
    """GB/s of its memory."""

    float32: float
    """TFLOP/s in float32, without TF32."""

    capability: Capability

    link: float = 19
    """GB/s each way to the other GPUs of a node that collectives reach: 78 % of NVLink, as 350 of 450 were measured
    (https://github.com/NVIDIA/nccl/issues/1281), where it connects all; else 60 % of 16 lanes of PCIe, as assumed."""

    @property
    def flops(self) -> float:
        return self.tflops * 1e12

    def flops_in(self, size: int) -> float:
        """FLOP/s with numbers of `size` bytes: 4 is float32."""
        return self.float32 * 1e12 if size == 4 else self.flops


BFLOAT16_FROM: Capability = (8, 0)  # older GPUs emulate bfloat16, at a fraction of the speed


def has_bfloat16(capability: Capability | None) -> bool:
    """Whether a GPU computes in bfloat16, so that `model.dtype=auto` is that and not float32; None = not known.

    Example:
        >>> has_bfloat16((7, 5)), has_bfloat16((8, 9)), has_bfloat16(None)
        (False, True, True)
    """
    return capability is None or capability >= BFLOAT16_FROM


_SPECS = (
    # The first pattern that is found in the driver's name counts, so a variant stands before the plain model.
    (r"GB300|B300", GpuSpec("B300", 268, 2250, 8000, 75, (10, 3), 700)),
    (r"GB200|B200", GpuSpec("B200", 179, 2250, 8000, 75, (10, 0), 700)),
    (r"H200 NVL", GpuSpec("H200 NVL", 140.4, 835, 4800, 60, (9, 0), 38)),
    (r"H200", GpuSpec("H200", 140.4, 989, 4800, 67, (9, 0), 350)),
    (r"GH200", GpuSpec("GH200", 95.0, 989, 4000, 67, (9, 0), 350)),
    (r"H100 NVL", GpuSpec("H100 NVL", 93.6, 835, 3900, 60, (9, 0), 38)),
    (r"H100 PCIe", GpuSpec("H100 PCIe", 79.6, 756, 2000, 51, (9, 0), 38)),
    (r"H[18]00", GpuSpec("H100", 79.6, 989, 3350, 67, (9, 0), 350)),
    (r"H20\b", GpuSpec("H20", 95.6, 148, 4000, 44, (9, 0), 350)),
    (r"A[18]00.*40 ?GB", GpuSpec("A100 40GB", 40.0, 312, 1555, 19.5, (8, 0), 233)),
    (r"A[18]00.*PCI", GpuSpec("A100 PCIe", 80.0, 312, 1935, 19.5, (8, 0))),
    (r"A[18]00(?!0)", GpuSpec("A100", 80.0, 312, 2039, 19.5, (8, 0), 233)),
    (r"L40S", GpuSpec("L40S", 45.0, 362, 864, 91.6, (8, 9))),
    (r"L40\b", GpuSpec("L40", 45.0, 181, 864, 90.5, (8, 9))),
    (r"L4\b", GpuSpec("L4", 22.5, 121, 300, 30.3, (8, 9))),
    (r"A40\b", GpuSpec("A40", 45.0, 150, 696, 37.4, (8, 6))),
    (r"A30\b", GpuSpec("A30", 24.0, 165, 933, 10.3, (8, 0))),
    (r"A10G", GpuSpec("A10G", 22.5, 70, 600, 31.5, (8, 6))),
    (r"A10\b", GpuSpec("A10", 22.5, 125, 600, 31.2, (8, 6))),
    (r"V100.*32 ?GB", GpuSpec("V100 32GB", 32.0, 125, 900, 15.7, (7, 0), 9.6)),
    (r"V100", GpuSpec("V100", 16.0, 125, 900, 15.7, (7, 0), 9.6)),
    (r"T4\b", GpuSpec("T4", 15.0, 65, 320, 8.1, (7, 5), 9.6)),
    (r"RTX PRO 6000", GpuSpec("RTX PRO 6000 Blackwell", 95.6, 503, 1792, 125, (12, 0), 38)),
    (r"RTX 6000 Ada", GpuSpec("RTX 6000 Ada", 48.0, 364, 960, 91.1, (8, 9))),
    (r"RTX A6000", GpuSpec("RTX A6000", 48.0, 155, 768, 38.7, (8, 6))),
    (r"RTX A5000", GpuSpec("RTX A5000", 24.0, 111, 768, 27.8, (8, 6))),
    (r"RTX 5090", GpuSpec("RTX 5090", 31.8, 210, 1792, 105, (12, 0), 38)),
    (r"RTX 5080", GpuSpec("RTX 5080", 15.9, 113, 960, 56, (12, 0), 38)),
    (r"RTX 5070 Ti", GpuSpec("RTX 5070 Ti", 15.9, 88, 896, 44, (12, 0), 38)),
    (r"RTX 4090", GpuSpec("RTX 4090", 24.0, 165, 1008, 82.6, (8, 9))),
    (r"RTX 4080", GpuSpec("RTX 4080", 16.0, 97, 717, 48.7, (8, 9))),
    (r"RTX 4070", GpuSpec("RTX 4070", 12.0, 58, 504, 29.1, (8, 9))),
    (r"RTX 4060 Ti", GpuSpec("RTX 4060 Ti", 16.0, 44, 288, 22.1, (8, 9))),
    (r"RTX 3090", GpuSpec("RTX 3090", 24.0, 71, 936, 35.6, (8, 6))),
    (r"RTX 3080", GpuSpec("RTX 3080", 10.0, 60, 760, 29.8, (8, 6))),
    (r"RTX 3060", GpuSpec("RTX 3060", 12.0, 26, 360, 12.7, (8, 6))),
)


def known_gpus() -> tuple[GpuSpec, ...]:
    return tuple(gpu for _, gpu in _SPECS)


def find_gpu_spec(name: str) -> GpuSpec | None:
    """The GPU model with this name; None if it is not known, or is a MIG instance, which has a fraction of the GPU.

    Example:
        >>> find_gpu_spec("NVIDIA A100-SXM4-80GB").tflops
        312
        >>> find_gpu_spec("Quadro 6000") is None
        True
    """
    if re.search(r"\bMIG\b", name):
        return None
    return next((gpu for pattern, gpu in _SPECS if re.search(rf"(?<![A-Za-z0-9]){pattern}", name, re.I)), None)
