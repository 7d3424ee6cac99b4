"""Whether torch has kernels for a GPU, and which build of torch has. No torch in here, so any GPU can be simulated.

A GPU runs machine code (`sm_XY`) of its own major version and of no newer minor one, and may compile PTX
(`compute_XY`) of any older version. `sm_90a` runs on 9.0 alone, `sm_100f` on its own family
(CUDA C++ Programming Guide, "Application compatibility" and "Feature set compiler targets").
"""

import re
from collections.abc import Iterable, Sequence

from tinyzero_trainer.errors import Fault
from tinyzero_trainer.hardware.gpu import Capability, CudaVersion

WHEELS = "https://download.pytorch.org/whl"  # PyTorch's builds by CUDA version; torch's own warning points there too
MIN_DRIVER = {11: "450", 12: "525", 13: "580"}  # oldest branch on Linux by CUDA's major version (CUDA's release notes)

_ARCH = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def has_kernels(capability: Capability, archs: Iterable[str]) -> bool:
    """Whether a GPU can run, or compile, any of the code torch was built with.

    Example:
        >>> has_kernels((8, 9), ["sm_80", "sm_90a"]), has_kernels((12, 0), ["sm_90"])
        (True, False)
        >>> has_kernels((12, 0), ["sm_90", "compute_90"])
        True
    """
    for matched in filter(None, map(_ARCH.fullmatch, archs)):
        kind, major, minor, feature = matched.groups()
        code = (int(major), int(minor))
        if feature == "a":
            runs = code == capability
        elif kind == "sm" or feature == "f":
            runs = code[0] == capability[0] and code[1] <= capability[1]
        else:
            runs = code <= capability
        if runs:
            return True
    return False


def missing_kernels(
    name: str,
    capability: Capability,
    *,
    torch: str,
    cuda: str | None,
    archs: Sequence[str],
    driver: CudaVersion | None = None,
) -> Fault | None:
    """Why torch cannot compute on a GPU; None = it can, or that is not known.

    Args:
        cuda: the CUDA it was built for; None = it was not built for NVIDIA.
        archs: of `torch.cuda.get_arch_list()`; empty = not known.
        driver: newest CUDA that the driver supports, for the advice; None = not known, torch's own is assumed.
    """
    if cuda is None or not archs or has_kernels(capability, archs):
        return None
    advice, commands = ["train on the CPU with run.device=cpu"], []
    if build := build_for(capability, driver or parse_cuda(cuda)):
        advice.append("install a torch built for it")
        commands.append(install(build))
    major, minor = capability
    return Fault(
        f"{name} has compute capability {major}.{minor} (sm_{major}{minor}), but torch {torch} "
        f"has kernels for {' '.join(archs)} only",
        ", or ".join(advice),
        tuple(commands),
    )


def build_for(capability: Capability | None, driver: CudaVersion | None = None) -> str | None:
    """The series of PyTorch's builds, such as `cu126`, that runs on a GPU with its driver; None if none does.

    A GPU that is not known is assumed to be a common one, and a driver to support CUDA 12.

    Example:
        >>> build_for((6, 1), (13, 0)), build_for((12, 0), (12, 8)), build_for((9, 0), (13, 0)), build_for((3, 7))
        ('cu126', 'cu129', 'cu130', None)
    """
    capability = capability or (8, 0)
    if not (5, 0) <= capability < (13, 0):
        return None
    if capability < (7, 5):
        return "cu126"  # later builds left Maxwell, Pascal and Volta out
    if driver and driver >= (13, 0):
        return "cu130"
    return "cu129" if capability >= (10, 0) else "cu126"


def parse_cuda(version: str) -> CudaVersion:
    major, _, minor = version.partition(".")
    return int(major), int(minor.partition(".")[0] or 0)


def install(build: str) -> str:
    return f"pip install --force-reinstall torch -i {WHEELS}/{build}"
