"""What every actor of a run has. No torch; see reward_actor.py."""

import os
import time
from contextlib import suppress
from pathlib import Path

SEE_SECONDS = 5.0
"""For a file that was just written to be seen on another machine."""


class Worker:
    """What every actor can tell."""

    def host(self) -> str:
        """Its machine's address, as others of the cluster reach it."""
        import ray

        return str(ray.util.get_node_ip_address())

    def sees(self, file: Path, content: bytes) -> bool:
        """Whether a file is on this machine as it is on another; over a network it may take a while to get here."""
        until = time.monotonic() + SEE_SECONDS
        while True:
            with suppress(OSError):
                if file.read_bytes() == content:
                    return True
            if time.monotonic() > until:
                return False
            time.sleep(0.2)

    def place(self) -> tuple[str, str]:
        """Its machine, and the GPU that Ray has given it, by its name in CUDA_VISIBLE_DEVICES."""
        return self.host(), os.environ.get("CUDA_VISIBLE_DEVICES", "")
