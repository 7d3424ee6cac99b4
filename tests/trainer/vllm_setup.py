"""The engine `vllm` around engines that are fakes, each with a fault of its own."""

import pytest
import torch

from tests.trainer.fake_vllm import FakeVllm
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.vllm import call_timeout as calls
from tinyzero_trainer.rollout.vllm.engine import Limits, VllmEngine
from tinyzero_trainer.types import Generation

CPU = torch.device("cpu")
PROMPTS = [[1, 2], [3], [1, 2]]
END = 7


class Setup:
    """Engines started one after another, each with a fault of its own."""

    def __init__(self, *faults: tuple[str, int, str] | None, **limits: object) -> None:
        self.faults, self.log, self.notes, self.engines = list(faults), [], [], []
        self.weights = {"head": torch.zeros(2)}
        self.limits = Limits(**({"time_limit": 20.0} | limits))  # type: ignore[arg-type]

    def start(self) -> FakeVllm:
        self.log.append("start")
        self.engines.append(FakeVllm(self.log, self.faults.pop(0) if self.faults else None))
        return self.engines[-1]

    def engine(self, **more: object) -> VllmEngine:
        return VllmEngine(
            self.start,
            lambda: iter(self.weights.items()),
            eos_ids={3, END},
            limits=self.limits,
            note=self.notes.append,
            **more,  # type: ignore[arg-type]
        )


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "POLL", 0.01)
    monkeypatch.setattr(calls, "GRACE", 0.05)
    monkeypatch.setattr(calls, "CANCEL_LIMIT", 0.3)


def expected(samples: int, params: SamplingParams, seed: int) -> list[list[Generation]]:
    return Setup().engine().generate(PROMPTS, samples, params, seed=seed)
