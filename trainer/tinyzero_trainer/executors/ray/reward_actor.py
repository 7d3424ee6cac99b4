"""What every actor of a run can be asked, and the actors that score. No torch, which a scorer need not wait for."""

import os
import time
from contextlib import suppress
from pathlib import Path

from tinyzero_sdk import Completion, Score, Task
from tinyzero_sdk.records import Json
from tinyzero_trainer.config import RewardConfig
from tinyzero_trainer.rewards.pool import scoring_pool

VISIBLE_SECONDS = 5.0
"""For a file that was just written to appear on another machine."""


class BaseActor:
    """What every actor can be asked."""

    def host(self) -> str:
        """Its machine's address, as others of the cluster reach it."""
        import ray

        return str(ray.util.get_node_ip_address())

    def sees(self, file: Path, content: bytes) -> bool:
        """Whether a file has this content on its machine too; a network file system may take a while."""
        until = time.monotonic() + VISIBLE_SECONDS
        while True:
            with suppress(OSError):
                if file.read_bytes() == content:
                    return True
            if time.monotonic() > until:
                return False
            time.sleep(0.2)

    def gpu(self) -> str:
        """The GPU that Ray has given it, by its name in CUDA_VISIBLE_DEVICES."""
        return os.environ.get("CUDA_VISIBLE_DEVICES", "")


class RewardActor(BaseActor):
    """A task's scoring processes, on the machine of this actor."""

    def start(self, config: RewardConfig, task: Task) -> None:
        """Start them. The task was found by name when it was unpickled, which fails if its version differs."""
        self._pool = scoring_pool(config, task)

    def score(self, completions: list[Completion], ground_truths: list[Json]) -> tuple[list[Score], str | None]:
        """The scores in order, and the pool's first error so far."""
        return self._pool.score(completions, ground_truths), self._pool.first_error

    def close(self) -> None:
        """End the processes."""
        self._pool.close()
