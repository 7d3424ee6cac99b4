"""A fake client of vLLM that does as it is told: answers, dies, hangs, or gives too little."""

import threading
import time
from collections.abc import Iterable, Iterator

from torch import Tensor

from tinyzero_trainer.rollout.vllm.client import Request, RequestOutput


class FakeVllm:
    """One engine. A completion of n tokens takes n steps; its tokens are made of the prompt's seed."""

    def __init__(self, log: list[str], fault: tuple[str, int, str] | None = None) -> None:
        """
        Args:
            log: what was done with it is added.
            fault: method, number of its call (from 1), and what happens then: `dies`, `hangs`, `raises`, `fewer`,
                `empty`, `forgets`, `no logprobs`.
        """
        self.log, self.fault = log, fault
        self.requests: dict[str, Request] = {}
        self.steps: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        self.dead = threading.Event()
        self.asleep = False
        self.weights: dict[str, Tensor] = {}

    def _enter(self, method: str) -> str | None:
        """What is to go wrong in this call of a method."""
        self.calls[method] = self.calls.get(method, 0) + 1
        if self.fault is None or self.fault[:2] != (method, self.calls[method]):
            return None
        kind = self.fault[2]
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

    def step(self) -> list[RequestOutput]:
        kind = self._enter("step")
        time.sleep(0.001)
        done = []
        for name, request in list(self.requests.items()):
            self.steps[name] += 1
            if self.steps[name] == request.params.max_tokens:
                del self.requests[name]
                done.append(self._answer(request, kind))
        if kind == "forgets":
            self.requests.clear()
            return []
        return done

    def _answer(self, request: Request, kind: str | None) -> RequestOutput:
        count = request.samples - (kind == "fewer")
        tokens = [[(request.seed + sample) % 1000] * request.params.max_tokens for sample in range(count)]
        if request.params.max_tokens > 1 and not request.params.ignore_eos:
            tokens[0] = [*tokens[0][:-2], request.eos_ids[-1]]
        if kind == "empty":
            tokens[-1] = []
        wanted = request.params.logprobs and kind != "no logprobs"
        return RequestOutput(request.name, tokens, [[-1.0] * len(each) for each in tokens] if wanted else None)

    def abort(self, names: list[str]) -> None:
        self.log.append(f"abort {len(names)}")
        for name in names:
            self.requests.pop(name, None)

    def buckets(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        yield from weights

    def send(self, bucket: tuple[str, Tensor]) -> None:
        self._enter("send")
        self.weights[bucket[0]] = bucket[1].clone()

    def reset_prefix_cache(self) -> None:
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
