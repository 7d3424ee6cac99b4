"""The settings of the task."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Gsm8kOptions:
    """Where the problems come from.

    Raises:
        ValueError: a path is given that would not be read.
    """

    source: Literal["gsm8k", "synthetic"] = "gsm8k"
    """gsm8k: the published problems, from `path` or from the Hugging Face Hub (or its cache here); synthetic: problems
    made up from templates, which needs no files and no network."""

    path: str = ""
    """A folder with the published problems (as on the Hub, or saved by `datasets`), or a Parquet or JSON Lines file
    with the columns `question` and `answer`; empty = the Hub."""

    def __post_init__(self) -> None:
        if self.source == "synthetic" and self.path:
            raise ValueError(f"task.path={self.path!r} has no effect with task.source=synthetic; give only one of them")
