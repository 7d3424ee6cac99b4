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
from tinyzero_trainer.rollout.vllm import call_timeout
from tinyzero_trainer.rollout.vllm.client import Request, VllmClient
from tinyzero_trainer.rollout.vllm.engine import VllmEngine
from tinyzero_trainer.types import Generation

PROMPTS = [[1, 2], [3], [1, 2]]
END = 7

Fault = tuple[str, int, str | Callable[[], None]]
"""Method, number of its call (from 1), and what happens then: a function to call, or `dies`, `hangs`, `raises`,
`fewer`, `empty`, `forgets`, `no logprobs`."""


class FakeClient(VllmClient):
    """One engine. A completion of n tokens takes n steps; its tokens are made of the prompt's seed."""

    separate_process = False  # weights are sent as they are

    def __init__(self, log: list[str], fault: Fault | None = None) -> None:
        self.log, self.fault = log, fault
        self.requests: dict[str, Request] = {}
        self.steps: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        self.dead = threading.Event()
        self.asleep = False
        self.weights: dict[str, Tensor] = {}

    def _enter(self, method: str) -> str | None:
        """The fault in this call of a method, if it does not end the call."""
        self.calls[method] = self.calls.get(method, 0) + 1
        if self.fault is None or self.fault[:2] != (method, self.calls[method]):
            return None
        kind = self.fault[2]
        if not isinstance(kind, str):
            kind()
            return None
        if kind == "dies":
            self.dead.set()
        if kind in ("dies", "hangs"):
            time.sleep(3600)  # as vLLM's client does
        if kind == "raises":
            raise RuntimeError("CUDA error: unspecified launch failure")
        return kind

    def start(self) -> None:
        self._enter("start")

    def add(self, request: Request) -> None:
        self._enter("add")
        assert not self.asleep
        self.requests[request.name], self.steps[request.name] = request, 0

    def busy(self) -> bool:
        return bool(self.requests)

    def step(self) -> dict[str, list[Generation]]:
        kind = self._enter("step")
        time.sleep(0.001)
        done = {}
        for name, request in list(self.requests.items()):
            self.steps[name] += 1
            if self.steps[name] == request.params.max_tokens:
                del self.requests[name]
                done[name] = self._answer(request, kind)
        if kind == "forgets":
            self.requests.clear()
            return {}
        return done

    def _answer(self, request: Request, kind: str | None) -> list[Generation]:
        count = request.samples - (kind == "fewer")
        tokens = [[(request.seed + sample) % 1000] * request.params.max_tokens for sample in range(count)]
        if request.params.max_tokens > 1 and not request.params.ignore_eos:
            tokens[0] = [*tokens[0][:-2], request.eos_ids[-1]]
        if kind == "empty":
            tokens[-1] = []
        wanted = request.params.logprobs and kind != "no logprobs"
        return [
            Generation(each, [-1.0] * len(each) if wanted else None, each[-1:] == list(request.eos_ids[-1:]))
            for each in tokens
        ]

    def abort(self, names: list[str]) -> None:
        self.log.append(f"abort {len(names)}")
        for name in names:
            self.requests.pop(name, None)

    def call_workers(self, method: str, bucket: list[tuple[str, Tensor]]) -> None:
        self._enter("send")
        self.weights |= {name: tensor.clone() for name, tensor in bucket}

    def reset_prefix_cache(self) -> None:
        self._enter("reset")
        self.log.append("reset")

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
        return VllmEngine(
            self.clients[-1], lambda: ([each] for each in self.weights.items()), eos_ids={3, END}, **self.settings
        )

    def restarting(self) -> RestartingEngine:
        """One that is restarted, as in a run."""
        return RestartingEngine.local(self.start, self.max_restarts, self.notes.append)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_timeout, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(call_timeout, "GRACE_SECONDS", 0.05)


def expected(samples: int, params: SamplingParams, seed: int) -> list[list[Generation]]:
    return Engines().start().generate(PROMPTS, samples, params, seed=seed)
