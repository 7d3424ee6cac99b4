"""A finding: what a check reports, how bad it is, and which commands fix it."""

from dataclasses import dataclass
from typing import Literal

from tinyzero_trainer.hardware.gpu import GIB, MIB

Level = Literal["ok", "note", "warning", "error"]
"""`note`: good to know. `warning`: training works, but slowly or not in every setting. `error`: it will fail."""


@dataclass(frozen=True)
class Finding:
    check: str
    """What was checked, such as `torch` or `gpu 0`."""

    level: Level
    what: str
    do: str = ""
    commands: tuple[str, ...] = ()


def as_size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"
