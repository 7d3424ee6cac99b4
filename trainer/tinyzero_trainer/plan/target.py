"""The card that is planned for: the one that is here, or one that the user names. Asks the driver, not torch."""

import os
import re
from dataclasses import dataclass

from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.cards import Card, find_card, known_cards
from tinyzero_trainer.doctor.nvidia_smi import nvidia_driver
from tinyzero_trainer.doctor.probe import main_memory
from tinyzero_trainer.plan.constants import GIB

_SAME_SIZE = 0.1
"""Relative difference up to which a size is that of the card which is named too."""


@dataclass(frozen=True, slots=True)
class Target:
    """A card to fit into."""

    name: str
    """What it is called."""

    memory: int
    """Bytes in all."""

    card: Card | None
    """What it can do; None = not known, so that nothing is said of time."""

    host: int | None = None
    """Bytes of the machine's own memory; None = it is another machine."""


def choose_target(name: str | None, memory: str | None, device: str) -> Target:
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
        card = find_card(name) or find_card(f"RTX {name}")
        if card is None:
            known = ", ".join(sorted({card.name for card in known_cards()}))
            raise SettingsError(f"--gpu {name!r} is not known; give --gpu-memory and leave it out, or one of: {known}")
        own = int(card.memory * GIB)
        return Target(card.name, own if size is None or abs(size / own - 1) < _SAME_SIZE else size, card)
    here = present_card(device)
    if size is not None:
        return Target("a card", size, here.card if here else None)
    if here is None:
        raise SettingsError("there is no NVIDIA GPU here to plan for; give --gpu-memory 24GB, or --gpu 'RTX 4090'")
    return here


def present_card(device: str) -> Target | None:
    """The card of this machine that `run.device` stands for; None if there is none, or it cannot be asked."""
    if device == "cpu":
        return None
    driver = nvidia_driver(None)
    cards = {str(card.index): card for card in driver.cards} if driver else {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = list(cards) if visible is None else [name.strip() for name in visible.split(",")]
    _, _, number = device.partition(":")
    place = int(number) if number.isdigit() else 0
    if place >= len(names):
        return None
    wanted = names[place].removeprefix("GPU-")
    by_uuid = (card for card in cards.values() if wanted and card.uuid.startswith(wanted))
    found = cards.get(wanted) or next(by_uuid, None)
    return Target(found.name, found.memory, find_card(found.name), main_memory()[0]) if found and found.memory else None


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
    return int(float(found[1]) * (GIB if (found[2] or "").lower() == "gib" else 10**9))
