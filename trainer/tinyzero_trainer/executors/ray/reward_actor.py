"""All actors of a run, what the trainer knows of them, and those that score. No torch, so that these start quickly."""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyzero_sdk import Completion, Score, Task
from tinyzero_sdk.records import Json
from tinyzero_trainer.config import RewardConfig
from tinyzero_trainer.rewards.reward_pool import scoring_pool

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
