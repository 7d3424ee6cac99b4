"""The engine `vllm` around fake clients that answer, die, hang, or return too little."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tinyzero_trainer.executors.restart import RestartingEngine
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.engine import Group
from tinyzero_trainer.rollout.vllm import engine
from tinyzero_trainer.rollout.vllm.client import VllmClient
from tinyzero_trainer.rollout.vllm.engine import VllmEngine
from tinyzero_trainer.types import Generation

PROMPTS = [[1, 2], [3], [1, 2]]
END = 7

Fault = tuple[str, int, str | Callable[[], None]]
"""Method, number of its call (from 1), and what happens then: a function, or `dies`, `hangs`, `raises` or `fewer`."""


class FakeClient(VllmClient):
    """One engine. A completion of n tokens takes n steps; its tokens are made of the prompt's seed."""

    separate_process = False  # weights are sent as they are

    def __init__(self, log: list[str], fault: Fault | None = None) -> None:
        self.log, self.fault = log, fault
        self.requests: dict[str, tuple[Group, SamplingParams, int]] = {}
        self.steps: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        self.dead = threading.Event()
        self.asleep = self.fewer = False
        self.weights: dict[str, Tensor] = {}

    def _enter(self, method: str) -> None:
        self.calls[method] = self.calls.get(method, 0) + 1
        if self.fault is None or self.fault[:2] != (method, self.calls[method]):
            return
        kind = self.fault[2]
        if not isinstance(kind, str):
            kind()
        if kind == "dies":
            self.dead.set()
        if kind in ("dies", "hangs"):
            time.sleep(3600)  # as vLLM's client does
        self.fewer = kind == "fewer"
        if kind == "raises":
            raise RuntimeError("CUDA error: unspecified launch failure")

    def start(self) -> None:
        self._enter("start")

    def add(self, name: str, group: Group, params: SamplingParams, seed: int) -> None:
        self._enter("add")
        assert not self.asleep
        self.requests[name], self.steps[name] = (group, params, seed), 0

    def step(self) -> dict[str, list[Generation]]:
        self._enter("step")
        time.sleep(0.001)
        done = {}
        for name, (group, params, seed) in list(self.requests.items()):
            self.steps[name] += 1
            if self.steps[name] == group.max_tokens:
                del self.requests[name]
                done[name] = self._answer(group, params, seed)
        return done

    def _answer(self, group: Group, params: SamplingParams, seed: int) -> list[Generation]:
        tokens = [[(seed + sample) % 1000] * group.max_tokens for sample in range(len(group.completions) - self.fewer)]
        if group.max_tokens > 1 and not params.ignore_eos:
            tokens[0] = [*tokens[0][:-2], END]
        return [Generation(each, [-1.0] * len(each) if params.logprobs else None, each[-1] == END) for each in tokens]

    def abort(self, names: list[str]) -> None:
        self.log.append(f"abort {len(names)}")
        for name in names:
            self.requests.pop(name, None)

    def call_workers(self, method: str, bucket: list[tuple[str, Tensor]]) -> None:
        self._enter("send")
        self.weights |= {name: tensor.clone() for name, tensor in bucket}

    def reset_prefix_cache(self) -> bool:
        self._enter("reset")
        self.log.append("reset")
        return True

    def sleep(self) -> None:
        self._enter("sleep")
        self.asleep = True
        self.log.append("sleep")

    def wake(self, what: str) -> None:
        self._enter("wake")
        self.asleep = what != "kv_cache"
        self.log.append(f"wake {what}")

    def alive(self) -> bool:
        return not self.dead.is_set()

    def kill(self) -> None:
        self.dead.set()
        self.log.append("kill")

    def close(self) -> None:
        self._enter("close")
        self.log.append("close")


class Engines:
    """Engines started one after another, each with its own fault."""

    def __init__(
        self, *faults: Fault | None, max_restarts: int = 2, timeout: float | None = 20.0, **settings: Any
    ) -> None:
        self.faults, self.log, self.notes, self.clients = list(faults), list[str](), list[str](), list[FakeClient]()
        self.weights = {"head": torch.zeros(2)}
        self.max_restarts, self.settings = max_restarts, {"timeout": timeout} | settings

    def start(self) -> VllmEngine:
        """One that is not restarted."""
        self.log.append("start")
        self.clients.append(FakeClient(self.log, self.faults.pop(0) if self.faults else None))
        return VllmEngine(self.clients[-1], lambda: ([each] for each in self.weights.items()), **self.settings)

    def restarting(self) -> RestartingEngine:
        """One that is restarted, as in a run."""
        return RestartingEngine.local(self.start, self.max_restarts, self.notes.append)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(engine, "GRACE_SECONDS", 0.05)


def expected(samples: int, params: SamplingParams, seed: int) -> list[list[Generation]]:
    return Engines().start().generate(PROMPTS, samples, params, seed=seed)
