"""A finding: what a check has to say, how bad it is, and what to type."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tinyzero_trainer.hardware.gpu import GIB, MIB

Level = Literal["ok", "note", "warning", "error"]
"""`note`: good to know. `warning`: training works, but slowly or not in every setting. `error`: it will fail."""


@dataclass(frozen=True)
class Finding:
    """What a check has to say."""

    check: str
    """What was looked at, such as `torch` or `gpu 0`."""

    level: Level
    """How bad it is."""

    what: str
    """What was found."""

    do: str = ""
    """What to do about it; empty if nothing."""

    commands: tuple[str, ...] = ()
    """What to type for that, each as it stands."""

    @property
    def line(self) -> str:
        """All of it in one line, for an error message."""
        advice = self.do + (f": {' or: '.join(self.commands)}" if self.commands else "")
        return f"{self.what}; {advice}" if advice else self.what


def as_size(count: int) -> str:
    """Bytes as a person reads them."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"


def failed(findings: Iterable[Finding]) -> bool:
    """Whether any of them is an error."""
    return any(finding.level == "error" for finding in findings)
