"""How many sequences fit in a GPU's memory. What to do if too few do is said in cli/oom_advice.py."""

from dataclasses import dataclass

import torch

from tinyzero_trainer.distributed.sizes import MARGIN
from tinyzero_trainer.utils.oom import OutOfMemoryError

MIN_SEQUENCES = 8  # below this, generating is not worth it

USABLE = 0.9  # of the memory: kernels need workspaces, and memory fragments


class KvCacheError(OutOfMemoryError):
    """The GPU's memory does not hold the KV cache of even a few sequences."""

    def __init__(self, size: int, available: int, fitting: int, required: int) -> None:
        """`size` and `available` in bytes, `fitting` and `required` in sequences."""
        self.fitting = fitting
        self.fraction = USABLE * available / (required * size)  # of the required memory, that is available
        super().__init__(
            "completions were generated",
            f"a sequence needs {size / 2**30:.2g} GiB while it is generated, and there are "
            f"{available / 2**30:.2g} GiB left, expected room for {required}",
        )
        self.args = (size, available, fitting, required)  # for unpickling


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """A GPU's free memory, in bytes."""

    unused: int  # not allocated by any process
    reusable: int  # cached by this process, which needs it at other times
    margin: int = 0  # what a plan leaves free of the unused memory

    @classmethod
    def of(cls, device: torch.device) -> "FreeMemory":
        """The device's free memory at present."""
        free, _ = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device)
        return cls(free, reserved - torch.cuda.memory_allocated(device), int(MARGIN * (free + reserved)))


def fitting_sequences(wanted: int, size: int, memory: FreeMemory, *, keep: bool) -> tuple[int, bool]:
    """How many of the `wanted` sequences of `size` bytes to generate at a time, and whether to keep their memory.

    With `keep` it is kept between calls if the margin stays free; if not, the reusable memory is taken as well.

    Raises:
        KvCacheError: fewer than `MIN_SEQUENCES` fit, and fewer than wanted.
    """
    if keep and wanted * size <= USABLE * memory.unused - memory.margin:
        return wanted, True
    available, required = memory.unused + memory.reusable, min(wanted, MIN_SEQUENCES)
    fitting = min(wanted, int(USABLE * available) // size)
    if fitting < required:
        raise KvCacheError(size, available, max(0, fitting), required)
    return fitting, False
