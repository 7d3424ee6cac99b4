"""The seam to vLLM: what the engine asks of it, and the only module that imports it.

Speaks to vLLM's LLMEngine, one step at a time; what is done when it fails is in engine.py.
"""

import contextlib
import gc
import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

import torch
from torch import Tensor

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.rollout.engine import SamplingParams
from tinyzero_trainer.rollout.vllm.log import EngineLog, hush
from tinyzero_trainer.rollout.vllm.weight_transfer import PARCEL_BYTES, Weights, parcels, wrapped

END_LIMIT = 10.0
"""Seconds for a start to end whose processes were killed, and for a process that was."""


class VllmError(TinyZeroError):
    """vLLM does not start, is given what it cannot do, or does not get on with its work."""


@dataclass(frozen=True, slots=True)
class Request:
    """Completions of one prompt that are asked for."""

    name: str
    """By which the answer tells what it answers."""

    prompt: list[int]
    """Token ids."""

    samples: int
    """How many completions."""

    params: SamplingParams
    """How to draw."""

    seed: int
    """Of the first completion; the others' follow it."""

    ends: tuple[int, ...]
    """Every token that ends a completion."""


@dataclass(frozen=True, slots=True)
class Answer:
    """All completions of a request, in order."""

    name: str
    """The request's."""

    tokens: list[list[int]]
    """Of each completion, an end token included."""

    logprobs: list[list[float]] | None
    """Of each token of each completion, where they were asked for."""


class Client(Protocol):
    """An engine. Every method may fail, or never return, if the engine does; but `alive` and `kill`."""

    def start(self) -> None:
        """Start it, before anything else is asked; its weights may be anything."""

    def add(self, request: Request) -> None:
        """Ask for completions."""

    def busy(self) -> bool:
        """Whether something that was asked for has not been answered."""

    def step(self) -> list[Answer]:
        """Wait for the next tokens; returns the requests that they complete."""

    def abort(self, names: list[str]) -> None:
        """Forget requests."""

    def parcels(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[Any]:
        """Weights in portions for `send`, which take effect when all of them are sent."""

    def send(self, parcel: Any) -> None:
        """Replace some weights."""

    def forget_prompts(self) -> None:
        """Drop the cache of prompts, which other weights have computed."""

    def sleep(self) -> None:
        """Give back all memory; the weights are lost."""

    def wake(self, what: str) -> None:
        """Take memory again: `weights`, then, when these are sent, `kv_cache`."""

    def alive(self) -> bool:
        """Whether its process runs; before it is started, True."""

    def kill(self) -> None:
        """End it at once, whatever it does, even if that is to start; from any thread."""

    def close(self) -> None:
        """End it in good order."""


class VllmClient:
    """See `Client`: vLLM in a process of its own, or in this one."""

    def __init__(
        self,
        arguments: Mapping[str, Any],
        environment: Mapping[str, str | None],
        *,
        separate_process: bool,
        log: EngineLog,
    ) -> None:
        """
        Args:
            arguments: of vLLM's EngineArgs.
            environment: variables to be set, or unset, while it starts.
            separate_process: whether it gets one.
            log: takes what its process writes.
        """
        self._arguments, self._environment = arguments, environment
        self._separate_process, self._log = separate_process, log
        self._group_was_there = torch.distributed.is_initialized()
        self._engine: Any = None
        self._processes: list[Any] = []
        self._others = set[Any]()
        self._killed = False
        self._not_starting = threading.Event()
        self._not_starting.set()

    def start(self) -> None:
        """See `Client`; takes up to minutes."""
        self._others = set(multiprocessing.active_children())
        self._not_starting.clear()
        try:
            if not self._killed:
                self._engine = self._start()
        finally:
            self._processes = self._new_children()
            self._not_starting.set()
        if self._killed:  # too late for `kill` to see all that was started
            if self._engine is not None:
                self._engine.engine_core.shutdown()
            raise RuntimeError("it was ended while it started")

    def _start(self) -> Any:
        hush()
        output = self._log.taken_by_children() if self._separate_process else contextlib.nullcontext()
        with output, _environment(self._environment), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice to vLLM's authors
            return start_engine(self._arguments, separate_process=self._separate_process)

    def _new_children(self) -> list[Any]:
        children = multiprocessing.active_children() if self._separate_process else []
        return [child for child in children if child not in self._others]

    def add(self, request: Request) -> None:
        """See `Client`."""
        prompt = {"type": "token", "prompt_token_ids": request.prompt}
        self._engine.add_request(request.name, prompt, _sampling_params(request))

    def busy(self) -> bool:
        """See `Client`."""
        return bool(self._engine.has_unfinished_requests())

    def step(self) -> list[Answer]:
        """See `Client`."""
        return [_answer(output) for output in self._engine.step() if output.finished]

    def abort(self, names: list[str]) -> None:
        """See `Client`."""
        self._engine.abort_request(names)

    def parcels(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[Weights]:
        """See `Client`."""
        # Only a GPU's worker can take a part of them at a time.
        from vllm.platforms import current_platform

        return parcels(
            weights, self._engine.model_config.dtype, sys.maxsize if current_platform.is_cpu() else PARCEL_BYTES
        )

    def send(self, parcel: Weights) -> None:
        """See `Client`."""
        if self._separate_process:
            with wrapped(parcel) as packed:
                self._engine.collective_rpc("tinyzero_receive", args=(packed,))
        else:
            self._engine.collective_rpc("tinyzero_load", args=(parcel,))

    def forget_prompts(self) -> None:
        """See `Client`."""
        if not self._engine.reset_prefix_cache():
            raise RuntimeError("vLLM did not drop its prefix cache, which requests still use")

    def sleep(self) -> None:
        """See `Client`."""
        self._engine.sleep(level=2)

    def wake(self, what: str) -> None:
        """See `Client`."""
        self._engine.wake_up(tags=[what])

    def alive(self) -> bool:
        """See `Client`."""
        return all(process.is_alive() for process in self._processes)

    def kill(self) -> None:
        """See `Client`."""
        self._killed = True
        end, starting = monotonic() + END_LIMIT, True
        while starting and monotonic() < end:  # until then there may be more of them each time
            starting = not self._not_starting.wait(0.1)
            processes = self._new_children() if starting else self._processes
            for process in processes:
                process.kill()
            for process in processes:
                process.join(END_LIMIT)

    def close(self) -> None:
        """See `Client`."""
        self._engine.engine_core.shutdown()
        self._engine = None
        if not self._separate_process:
            _leave_process(destroy_group=not self._group_was_there)


def start_engine(arguments: Mapping[str, Any], *, separate_process: bool) -> Any:
    """vLLM's LLMEngine."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.executor import Executor

    # As vLLM's own offline class does, whose limits for a step suit throughput.
    usage = UsageContext.LLM_CLASS
    config = EngineArgs(**arguments).create_engine_config(usage)
    return LLMEngine(
        vllm_config=config,
        executor_class=Executor.get_class(config),
        log_stats=False,
        usage_context=usage,
        multiprocess_mode=separate_process,
    )


def _leave_process(*, destroy_group: bool) -> None:
    """Undo what an engine in this process leaves, so that another can follow."""
    from vllm.distributed.parallel_state import destroy_distributed_environment, destroy_model_parallel

    destroy_model_parallel()
    if destroy_group:
        destroy_distributed_environment()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _sampling_params(request: Request) -> Any:
    from vllm.sampling_params import RequestOutputKind
    from vllm.sampling_params import SamplingParams as VllmParams

    params = request.params
    return VllmParams(
        n=request.samples,
        max_tokens=params.max_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        seed=request.seed,
        stop_token_ids=[] if params.ignore_eos else list(request.ends),
        ignore_eos=params.ignore_eos,
        logprobs=0 if params.logprobs else None,  # of the token drawn, and no others
        flat_logprobs=params.logprobs,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _answer(output: Any) -> Answer:
    completions = sorted(output.outputs, key=lambda completion: int(completion.index))
    tokens = [list(completion.token_ids) for completion in completions]
    logprobs = None
    if completions and completions[0].logprobs is not None:
        # Flat lists, in which the token that was drawn comes first of those at its place.
        flat = [completion.logprobs for completion in completions]
        logprobs = [[found.logprobs[start] for start in found.start_indices] for found in flat]
    return Answer(output.request_id, tokens, logprobs)


@contextlib.contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Variables set, or (None) unset, within."""
    before = {name: os.environ.get(name) for name in changes}
    try:
        _set(changes)
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
