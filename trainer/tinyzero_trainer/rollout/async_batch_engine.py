"""An engine that samples whole batches, behind the interface of one whose groups go on: for `rollout.engine=vllm`.

The weights change between two batches, and a batch that is stopped is sampled again.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from threading import Lock

from tinyzero_trainer.errors import VllmError, WorkerDiedError
from tinyzero_trainer.rollout.engine import (
    AsyncEngine,
    Group,
    Groups,
    OnProgress,
    PromptBatch,
    RolloutEngine,
    SamplingParams,
)


class AsyncBatchEngine(AsyncEngine):
    """Samples the groups of one seed and length limit, and so of one step, at a time."""

    concurrent = True

    def __init__(self, engine: RolloutEngine) -> None:
        """`engine` has processes of its own, which sample while the policy is trained."""
        self._engine, self._waiting, self._version = engine, list[Group](), 0
        self._sampling, self._failed = Lock(), False

    def load_weights(self, version: int = 0) -> None:
        """See `AsyncEngine`; waits for the batch under way. If that fails, the engine is not used again."""
        with self._sampling:
            if not self._failed:
                self._engine.load_weights()
            self._version = version

    def sleep(self) -> None:
        self._engine.sleep()

    def close(self) -> None:
        self._engine.close()

    def generate_batch(self, batch: PromptBatch, on_progress: OnProgress) -> Groups:
        with self._sampling:
            return self._engine.generate_batch(batch, on_progress)

    def submit(self, groups: Sequence[Group]) -> None:
        self._waiting += groups

    def advance(self, params: SamplingParams, on_progress: OnProgress) -> list[Group]:
        if not self._waiting:
            return []
        first = self._waiting[0]
        batch = list(takewhile(lambda one: (one.seed, one.max_tokens) == (first.seed, first.max_tokens), self._waiting))
        params = replace(params, max_tokens=first.max_tokens)
        prompts, samples = [group.prompt for group in batch], len(first.completions)
        with self._sampling:
            version = self._version
            try:
                whole = PromptBatch(prompts, samples, params, first.seed, first.first)
                sampled = self._engine.generate_batch(whole, on_progress)
            except (WorkerDiedError, VllmError):
                self._failed = True
                raise
        self._waiting = self._waiting[len(batch) :]
        return [
            replace(
                group,
                completions=tuple(replace(each, versions=((version, len(each.token_ids)),)) for each in completions),
            )
            for group, completions in zip(batch, sampled, strict=True)
        ]

    def unfinished(self) -> list[Group]:
        return list(self._waiting)
