"""Fakes of what a training step is given: a stream of problems, and workers around a policy and an engine."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from tinyzero_sdk import Item
from tinyzero_trainer.data.prompts import StreamState
from tinyzero_trainer.types import Prompt, Rollout


class FakeStream:
    """Problems 0, 1, 2, …, with prompts of one token and of two in turn."""

    def __init__(self, progress: dict[str, StreamState]) -> None:
        self.drawn = progress["toy"].taken if progress else 0

    def __next__(self) -> Prompt:
        self.drawn += 1
        return Prompt(Item(self.drawn - 1), "", [1] * (2 - self.drawn % 2), "toy")

    def close_step(self, samples: Sequence[Rollout]) -> dict[str, float]:
        return {}

    def progress(self) -> dict[str, StreamState]:
        return {"toy": StreamState(taken=self.drawn)}


def fake_workers(
    policy: Any = None,
    engine: Any = None,
    critic: Any = None,
    log: Callable[[str], None] = lambda text: None,
    teacher: Any = None,
) -> Any:
    """What a step and its parts use of `Workers`."""
    task = SimpleNamespace(difficulties=lambda items: [0.0] * len(items), is_async=False)
    return SimpleNamespace(
        policy=policy,
        engine=engine,
        critic=critic,
        teacher=teacher,
        tasks={"toy": SimpleNamespace(task=task)},
        language_model=SimpleNamespace(context=999, tokenizer=None),
        pools={},
        display=SimpleNamespace(activity=lambda *_: nullcontext(lambda count: None), log=log, warn=log),
    )
