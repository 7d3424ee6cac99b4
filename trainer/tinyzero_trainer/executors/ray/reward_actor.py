"""The base of all actors of a run, and the actors that score. No torch, so that a scorer starts quickly."""

import os
import time
from contextlib import suppress
from pathlib import Path

from tinyzero_sdk import Completion, Score, Task
from tinyzero_sdk.records import Json
from tinyzero_trainer.config import RewardConfig
from tinyzero_trainer.rewards.reward_pool import scoring_pool

VISIBLE_SECONDS = 5.0
"""For a file that was just written to appear on another machine."""


class BaseActor:
    """Methods of every actor."""

    def host(self) -> str:
        """Its machine's address, as others of the cluster reach it."""
        import ray

        return str(ray.util.get_node_ip_address())

    def process(self) -> tuple[int, str]:
        """Its process id, and the id of its node."""
        import ray

        return os.getpid(), ray.get_runtime_context().get_node_id()

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


class RewardActor(BaseActor):
    """A task's scoring processes, on the machine of this actor."""

    def start(self, config: RewardConfig, task: Task) -> None:
        """Start them. Unpickling has loaded the task by name, which fails if its version differs."""
        self._pool = scoring_pool(config, task)

    def score(
        self, completions: list[Completion], ground_truths: list[Json], groups: list[int]
    ) -> tuple[list[Score], str | None]:
        """The scores in order, and the pool's first error so far."""
        return self._pool.score(completions, ground_truths, groups), self._pool.first_error

    def close(self) -> None:
        self._pool.close()
