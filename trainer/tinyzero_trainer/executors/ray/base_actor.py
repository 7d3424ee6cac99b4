"""What all actors of a run can do, and what the trainer knows of them."""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VISIBLE_SECONDS = 5.0
"""For a file that was just written to appear on another machine."""


@dataclass(frozen=True, slots=True)
class ActorHandle:
    """An actor of the run."""

    name: str
    """For messages: policy rank 1 of 2."""

    handle: Any
    """Ray's."""

    trains: bool
    """Whether only a checkpoint could restore its state."""

    timeout: float = float("inf")
    """Seconds without an answer to a ping, after which it counts as hanging."""

    process: Any = None
    """Ray's reference to what `BaseActor.process` returns."""


class BaseActor:
    """Methods of every actor."""

    def host(self) -> str:
        """Its machine's address, as others of the cluster reach it."""
        import ray

        return str(ray.util.get_node_ip_address())

    def process(self) -> tuple[int, str, str]:
        """Its process id, the id of its node, and its machine's address."""
        import ray

        return os.getpid(), ray.get_runtime_context().get_node_id(), self.host()

    def sees(self, file: Path, content: bytes) -> bool:
        """Whether a file has this content on its machine too; a network file system may take a while."""
        deadline = time.monotonic() + VISIBLE_SECONDS
        while True:
            with suppress(OSError):
                if file.read_bytes() == content:
                    return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.2)

    def gpu(self) -> str:
        """The GPU that Ray has assigned to it, as named in CUDA_VISIBLE_DEVICES."""
        return os.environ.get("CUDA_VISIBLE_DEVICES", "")
