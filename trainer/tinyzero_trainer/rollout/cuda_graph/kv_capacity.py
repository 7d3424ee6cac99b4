"""How many sequences a GPU has room for. What to do where that is too few is said in cli/oom_advice.py."""

from dataclasses import dataclass

import torch

from tinyzero_trainer.utils.oom import OutOfMemoryError

LEAST = 8
"""Sequences at a time below which generating is not worth it."""

USED = 0.9
"""Share of the memory found that is taken: kernels need workspaces, and memory falls into pieces."""


class KvCacheError(OutOfMemoryError):
    """The GPU's memory does not hold the KV cache of even a few sequences."""

    def __init__(self, size: int, room: int, found: int, least: int) -> None:
        """
        Args:
            size: bytes of each.
            room: bytes that there are.
            found: sequences that fit.
            least: sequences that must.
        """
        self.found = found
        self.share = USED * room / (least * size)
        """Of what they need, what there is."""
        super().__init__(
            "completions were generated",
            f"a sequence needs {size / 2**30:.2g} GiB while it is generated, and there are "
            f"{room / 2**30:.2g} GiB left, expected room for {least}",
        )
        self.args = (size, room, found, least)  # what an unpickled one is made of


@dataclass(frozen=True, slots=True)
class Memory:
    """What there is on a GPU, in bytes."""

    free: int
    """Nobody has it."""

    reusable: int
    """This process has it, and uses it at other times."""


def present_memory(device: torch.device) -> Memory:
    """What there is now."""
    free, _ = torch.cuda.mem_get_info(device)
    return Memory(free, torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def sequences(wanted: int, size: int, memory: Memory, *, keep: bool) -> tuple[int, bool]:
    """How many sequences to generate at a time.

    Args:
        wanted: at most.
        size: bytes of each.
        memory: what there is.
        keep: whether the memory is to be kept while others work.

    Returns:
        The number, and whether its memory can be kept; where it cannot, it also takes what others use at other times.

    Raises:
        KvCacheError: not even `LEAST`, or the few that are wanted, fit.
    """
    if keep and wanted * size <= USED * memory.free:
        return wanted, True
    found = min(wanted, int(USED * (memory.free + memory.reusable)) // size)
    if found < min(wanted, LEAST):
        raise KvCacheError(size, memory.free + memory.reusable, max(0, found), min(wanted, LEAST))
    return found, False
