"""The card that is planned for: the one that is here, or one that the user names. Asks the driver, not torch."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.estimate.constants import GIB
from tinyzero_trainer.hardware.cuda_devices import visible_gpus
from tinyzero_trainer.hardware.gpu import GpuInfo
from tinyzero_trainer.hardware.gpu_specs import GpuSpec, find_gpu_spec, has_bfloat16, known_gpus
from tinyzero_trainer.hardware.host import host_memory
from tinyzero_trainer.hardware.nvml import nvidia_driver

_SAME_SIZE = 0.1
"""Relative difference up to which a size is that of the card which is named too."""


@dataclass(frozen=True, slots=True)
class TargetGpu:
    """A card to fit into."""

    name: str
    """What it is called."""

    memory: int
    """Bytes in all."""

    card: GpuSpec | None
    """What it can do; None = not known, so that nothing is said of time."""

    host: int | None = None
    """Bytes of the machine's own memory; None = it is another machine."""

    taken: int = 0
    """Bytes of the card that others hold, as far as is known."""

    bfloat16: bool = True
    """Whether it computes in that; see `cards.has_bfloat16`."""

    @property
    def room(self) -> int:
        """Bytes that are left for a run."""
        return max(0, self.memory - self.taken)


def choose_target(name: str | None, memory: str | None, device: str) -> TargetGpu:
    """The card to plan for.

    Args:
        name: a kind of card, or None.
        memory: of a card, such as `24GB`, or None.
        device: `run.device`; which of the cards here is meant.

    Raises:
        SettingsError: the name or the size is not understood, or there is no card here and none was described.
    """
    size = None if memory is None else read_size(memory)
    if name is not None:
        card = find_gpu_spec(name) or find_gpu_spec(f"RTX {name}")
        if card is None:
            known = ", ".join(sorted({card.name for card in known_gpus()}))
            raise SettingsError(f"--gpu {name!r} is not known; give --gpu-memory and leave it out, or one of: {known}")
        own = int(card.memory * GIB)
        memory_of_it = own if size is None or abs(size / own - 1) < _SAME_SIZE else size
        return TargetGpu(card.name, memory_of_it, card, bfloat16=card.bfloat16)
    here = _look(device)
    if size is not None:
        like = here if isinstance(here, TargetGpu) else None
        return TargetGpu("a card", size, like.card if like else None, bfloat16=like is None or like.bfloat16)
    if isinstance(here, str):
        raise SettingsError(f"{here}; give --gpu-memory 24GB, or --gpu 'RTX 4090'")
    return here


def cards_for(name: str | None, memory: str | None) -> int:
    """GPUs that one process may use: all that are here, or the one that is described (see `choose_target`)."""
    return 1 if name is not None or memory is not None else len(visible_gpus() or (None,))


def present_gpu(device: str) -> TargetGpu | None:
    """The card of this machine that `run.device` stands for; None if there is none, or which it is cannot be known."""
    here = _look(device)
    return here if isinstance(here, TargetGpu) else None


def _look(device: str) -> TargetGpu | str:
    """The card that `run.device` stands for, or why there is none."""
    if device == "cpu":
        return "run.device=cpu uses no GPU"
    driver, seen = nvidia_driver(None), visible_gpus()
    known = driver.cards if driver else ()
    place = int(device.partition(":")[2] or 0)
    if seen is None:
        return _one_of_a_kind(known, device, place)
    if place >= len(seen):
        return _not_there(device, seen, known)
    card = seen[place]
    # A part of a card has a name of its own, by which nvidia-smi's list does not know it.
    whole = next((one for one in known if one.uuid == card.uuid and one.memory), None) if not _is_part(card) else None
    return _target(whole or card)


def _not_there(device: str, seen: Sequence[GpuInfo], known: Sequence[GpuInfo]) -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"
    if seen:
        last = len(seen) - 1
        return f"run.device={device}, but CUDA shows cuda:0{f' to cuda:{last}' if last else ' only'}{hidden}"
    if known:
        return f"CUDA shows none of the {len(known)} GPUs here{hidden}"
    return _NONE


def _one_of_a_kind(known: Sequence[GpuInfo], device: str, place: int) -> TargetGpu | str:
    """The card by nvidia-smi alone, whose order is not CUDA's: known only where all are alike."""
    kinds = list(dict.fromkeys((card.name, card.memory) for card in known))
    if len(kinds) > 1:
        names = ", ".join(name for name, _ in kinds)
        return f"the GPUs here are unlike ({names}), and CUDA cannot be asked which of them run.device={device} is"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip()
    if not kinds or visible in ("", "-1"):
        return _NONE
    if visible.startswith("MIG-"):
        return f"CUDA cannot be asked how large CUDA_VISIBLE_DEVICES={visible!r} is"
    if place >= len(known):
        return f"run.device={device}, but the number of GPUs here is {len(known)}"
    return _target(known[0] if len(known) == 1 else replace(known[0], used=None))


def _target(card: GpuInfo) -> TargetGpu | str:
    if not card.memory:
        return f"how much memory the {card.name} has is not known"
    kind = find_gpu_spec(card.name)
    has = has_bfloat16(card.capability, kind)
    return TargetGpu(card.name, card.memory, kind, host_memory()[0], card.used or 0, has)


def _is_part(card: GpuInfo) -> bool:
    return re.search(r"\bMIG\b", card.name) is not None


_NONE = "there is no NVIDIA GPU here to plan for"


def on_gpu(config: TrainConfig, target: TargetGpu) -> TrainConfig:
    """What a configuration means on a card: `model.dtype=auto` is float32 where there is no bfloat16."""
    if config.model.dtype != "auto" or target.bfloat16:
        return config
    return replace(config, model=replace(config.model, dtype="float32"))


def read_size(text: str) -> int:
    """Bytes of a card's memory.

    GB are those of 10^9 bytes, as a card's box has them: cards of the same size on the box show the driver a different
    number of GiB, and none shows fewer bytes than that.

    Raises:
        SettingsError: it is no such size.

    Example:
        >>> read_size("24GB") == read_size("24") == 24 * 10**9
        True
        >>> read_size("24 GiB") == 24 * 2**30
        True
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(GiB|GB|G)?\s*", text, re.IGNORECASE)
    if not found or not float(found[1]):
        raise SettingsError(f"--gpu-memory {text!r} is not a size; give a number of GB or GiB, such as 24GB")
    size = float(found[1]) * (GIB if (found[2] or "").lower() == "gib" else 10**9)
    if size > _LARGEST * 10**9:
        given = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        raise SettingsError(f"--gpu-memory {given!r} is more than any GPU has; expected at most {_LARGEST}GB")
    return int(size)


_LARGEST = 100_000
"""GB that are taken for a card's."""

_SHOWN = 40
"""Characters of what was given."""
