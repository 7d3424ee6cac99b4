"""The engine `vllm` around fake clients, each with a fault of its own."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.trainer.rollout.fake_vllm import FakeVllm
from tinyzero_trainer.executors.restart import RestartingEngine
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.vllm import call_timeout
from tinyzero_trainer.rollout.vllm.engine import VllmEngine
from tinyzero_trainer.types import Generation

CPU = torch.device("cpu")
PROMPTS = [[1, 2], [3], [1, 2]]
END = 7


class Setup:
    """Engines started one after another, each with a fault of its own."""

    def __init__(
        self,
        *faults: tuple[str, int, str] | None,
        max_restarts: int = 2,
        timeout: float | None = 20.0,
        **settings: object,
    ) -> None:
        self.faults, self.log, self.notes, self.engines = list(faults), [], [], []
        self.weights = {"head": torch.zeros(2)}
        self.max_restarts, self.settings = max_restarts, {"timeout": timeout} | settings

    def client(self) -> FakeVllm:
        self.log.append("start")
        self.engines.append(FakeVllm(self.log, self.faults.pop(0) if self.faults else None))
        return self.engines[-1]

    def yield_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.weights.items()

    def engine(self, **more: object) -> VllmEngine:
        """One that is not restarted."""
        return VllmEngine(self.client(), self.yield_weights, eos_ids={3, END}, **self.settings | more)  # type: ignore[arg-type]

    def restarting(self, **more: object) -> RestartingEngine:
        """One that is restarted, as in a run."""
        return RestartingEngine(lambda: self.engine(**more), self.max_restarts, self.notes.append)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_timeout, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(call_timeout, "GRACE_SECONDS", 0.05)
    monkeypatch.setattr(call_timeout, "CANCEL_SECONDS", 0.3)


def expected(samples: int, params: SamplingParams, seed: int) -> list[list[Generation]]:
    return Setup().engine().generate(PROMPTS, samples, params, seed=seed)
