"""Findings on the driver and the cards."""

from collections.abc import Iterator
from dataclasses import replace

from tinyzero_trainer.doctor.facts import Capability, Card, CudaVersion, Driver, Facts, Wanted
from tinyzero_trainer.doctor.findings import Finding, as_size
from tinyzero_trainer.doctor.kernels import (
    MIN_DRIVER,
    build_for,
    has_kernels,
    install,
    named_outside,
    parse_cuda,
    refusal,
)

TAKEN_SHARE = 0.1
"""Of a card's memory: what others may hold before it is worth a word."""


def check_driver(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    """Whether there is a driver, and whether it is new enough for the CUDA that torch was built for."""
    driver = facts.driver
    if driver is None:
        if wanted.device.startswith("cuda"):
            do = "set run.device=auto, or start the container with the cards"
            yield Finding("driver", "error", f"run.device={wanted.device}, but no NVIDIA driver", do, _CONTAINER)
        else:
            yield Finding("driver", "note", "no NVIDIA GPU: training runs on the CPU, which suits the tiny model")
    elif driver.error:
        do, commands = "see what it says; after an update, reboot", ("nvidia-smi",)
        if facts.machine.container:
            do, commands = "start the container with the cards", _CONTAINER
        yield _if_used(Finding("driver", "error", driver.error, do, commands), wanted)
    else:
        yield _if_used(_fit_of_driver(facts, driver), wanted)


def _if_used(finding: Finding, wanted: Wanted, *devices: str) -> Finding:
    """A finding on cards, which is no error where they are not used.

    Args:
        finding: on one card or all.
        wanted: names the device to train on.
        devices: what `run.device` may be for it to matter; whatever is not the CPU if none is given.
    """
    used = wanted.device in devices if devices else wanted.device != "cpu"
    return finding if used or finding.level == "ok" else replace(finding, level="note")


def _fit_of_driver(facts: Facts, driver: Driver) -> Finding:
    """The driver's CUDA against torch's."""
    name = f"NVIDIA driver {driver.version}".rstrip()
    if driver.cuda is None:
        return Finding("driver", "note", f"{name}; which CUDA it supports is not known", "look", ("nvidia-smi",))
    what = f"{name} supports CUDA up to {_dotted(driver.cuda)}"
    if not facts.torch.cuda:
        return Finding("driver", "ok", what)
    built = parse_cuda(facts.torch.cuda)
    fit = f"{what}, torch was built for CUDA {facts.torch.cuda}"
    if built[0] > driver.cuda[0]:
        needed = MIN_DRIVER.get(built[0], f"one for CUDA {built[0]}")
        # The oldest builds are for CUDA 12.
        build = build_for(_first_capability(driver), driver.cuda) if driver.cuda >= (12, 0) else None
        do = f"update the driver (to {needed} or newer)" + (", or install a torch built for its CUDA" if build else "")
        return Finding("driver", "error", fit, do, (install(build),) if build else ())
    if built > driver.cuda:
        do = f"nothing, unless a kernel cannot be compiled: then update it to one for CUDA {facts.torch.cuda}"
        return Finding("driver", "note", f"{fit}: that works within CUDA {built[0]}", do)
    return Finding("driver", "ok", fit)


def _first_capability(driver: Driver) -> Capability | None:
    return driver.cards[0].capability if driver.cards else None


def check_visibility(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    """Whether torch sees the cards that the driver knows."""
    torch, driver = facts.torch, facts.driver
    if torch.cards or not torch.version or torch.hip or driver is None or not driver.cards:
        return
    cards = f"the {driver.cards[0].name}" if len(driver.cards) == 1 else f"any of the {len(driver.cards)} GPUs"
    what = f"torch {torch.version} does not see {cards}"
    commands: tuple[str, ...] = ("nvidia-smi",)
    if torch.cuda is None:
        what += ": it was built for the CPU only"
        build = build_for(_first_capability(driver), driver.cuda)
        do = "install a torch built for CUDA" if build else "train on the CPU: no torch is built for such a card"
        commands = (install(build),) if build else ()
    elif facts.visible is not None and not facts.visible.strip().startswith(_NAMES):
        what += f": CUDA_VISIBLE_DEVICES={facts.visible!r} hides them"
        do, commands = "show them", ("unset CUDA_VISIBLE_DEVICES",)
    else:
        what += f": {torch.cuda_error or 'it gives no reason'}"
        do = "cure that, or train on the CPU with run.device=cpu"
    yield _if_used(Finding("gpu", "error", what, do, commands), wanted)


def check_cards(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    """Each visible card: its kernels, and who else is on it."""
    torch, cards = facts.torch, facts.torch.cards
    if torch.hip:
        yield Finding("gpu", "note", f"torch {torch.version} is built for AMD's cards, on which nobody has tried this")
        return
    fine = [card for card in cards if card.capability and has_kernels(card.capability, torch.archs)]
    for card in cards:
        check = f"gpu {card.index}"
        refused = card.capability and refusal(
            check,
            card.name,
            card.capability,
            torch=torch.version,
            cuda=torch.cuda,
            archs=torch.archs,
            driver=facts.driver.cuda if facts.driver else None,
            others=[named_outside(card.index, facts.visible) for card in fine],
        )
        state = refused or _state(
            check, card, [named_outside(other.index, facts.visible) for other in fine if _emptier(other, card)]
        )
        yield _if_used(state, wanted, "auto", "cuda", f"cuda:{card.index}")


def _emptier(other: Card, card: Card) -> bool:
    return (other.free or 0) > (card.free or 0)


def _state(check: str, card: Card, emptier: list[str]) -> Finding:
    """A card that torch can use: what it is, and what is free."""
    capability = "" if card.capability is None else f", sm_{card.capability[0]}{card.capability[1]}"
    what = f"{card.name}{capability}, {as_size(card.memory)}"
    if card.free is not None and card.memory - card.free > TAKEN_SHARE * card.memory:
        taken = f"{as_size(card.memory - card.free)} of it in use"
        by = ", ".join(f"{process.name} ({process.pid}): {as_size(process.used)}" for process in card.processes)
        do = "end what holds it" + (f", or take CUDA_VISIBLE_DEVICES={emptier[0]}" if emptier else "")
        return Finding(check, "warning", f"{what}, {taken}{f' by {by}' if by else ''}", do, ("nvidia-smi",))
    if card.capability and card.capability < (8, 0):
        return Finding(check, "note", f"{what}; it has no bfloat16 units, so expect it to be slow")
    return Finding(check, "ok", what + ("" if card.free is None else f", {as_size(card.free)} free"))


_CONTAINER = ("docker run --gpus all …",)

_NAMES = (*"0123456789", "GPU-", "MIG-")
"""How CUDA_VISIBLE_DEVICES begins where it names a card."""


def _dotted(version: CudaVersion) -> str:
    return f"{version[0]}.{version[1]}"
