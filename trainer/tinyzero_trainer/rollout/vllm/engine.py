"""The rollout engine `vllm`. One that fails is not used again: executors/restart.py starts another in its place."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from itertools import takewhile
from threading import Thread
from time import monotonic, sleep
from typing import TypeVar

import torch

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.seeds import derive_seed
from tinyzero_trainer.errors import EngineDiedError, VllmError, first_line
from tinyzero_trainer.rollout.engine import Completions, Group, OnProgress, SamplingEngine, SamplingParams
from tinyzero_trainer.rollout.vllm.client import VllmClient
from tinyzero_trainer.rollout.vllm.kind import MAX_TEMPERATURE
from tinyzero_trainer.rollout.vllm.sync_check import SyncCheck
from tinyzero_trainer.rollout.vllm.weight_transfer import send
from tinyzero_trainer.rollout.weight_source import Weights
from tinyzero_trainer.types import Generation

START_SECONDS = 1200.0  # for an engine to start, compile its kernels and capture its graphs
CLOSE_SECONDS = 60.0
CACHE_SECONDS = 10.0  # for aborted requests to release the prefix cache
CACHE_PAUSE = 0.05
POLL_SECONDS = 0.1
GRACE_SECONDS = 2.0  # for a call to report by itself that the process has ended: its reason is better than ours

ADVICE = (
    "if memory is short lower vllm.gpu_memory_gb or rollout.max_num_seqs, if it is slow raise vllm.timeout, else take "
    "rollout.engine=torch (--resume continues from the last checkpoint)"
)

Result = TypeVar("Result")


class VllmEngine(SamplingEngine):
    """Samples the groups of one seed, and so of one step, at a time.

    Weights change between two of these batches, and a batch that is stopped is sampled again.
    """

    concurrent = True

    def __init__(
        self,
        client: VllmClient,
        weights: Callable[[], Iterator[Weights]],
        *,
        timeout: float | None = None,
        sleep_mode: bool = False,
        log_reason: Callable[[], str | None] = lambda: None,
        check: SyncCheck | None = None,
    ) -> None:
        """Start vLLM with the current weights.

        Args:
            weights: yields the policy's, in buckets.
            timeout: seconds for a batch and for any other call; None = no limit, as vLLM runs in this process.
            sleep_mode: whether `sleep` frees its memory.
            log_reason: the last error in the log of the engine's process.
            check: made after each weight sync.

        Raises:
            EngineDiedError: vLLM did not start.
        """
        self._client: VllmClient | None = client
        self._weights, self._timeout = weights, timeout
        self._sleep_mode, self._log_reason, self._check = sleep_mode, log_reason, check
        self._asleep = False
        self._abandoned = False  # whether a call was interrupted in this thread, as by Ctrl-C, and may go on
        self._waiting = list[Group]()
        self._batches = 0
        torch.cuda.empty_cache()  # vLLM refuses to start if the memory that it may take is not free

        def start() -> None:
            self._call(client.start, timeout=START_SECONDS)
            self._sync()

        try:
            self._attempt(start, "did not start", advice="")
        except BaseException:
            self._discard()  # half started it is of no use, and would keep its memory
            raise

    def load_weights(self, version: int = 0) -> None:
        """Take over the policy's weights; wakes a sleeping engine, too."""
        self._attempt(self._sync)
        self.version = version

    def sleep(self) -> None:
        def fall_asleep() -> None:
            self._call(self._running.sleep)
            self._asleep = True

        if self._sleep_mode and not self._asleep:
            self._attempt(fall_asleep)

    def close(self) -> None:
        if self._client is not None:
            with contextlib.suppress(EngineDiedError):
                self._call(self._client.close, timeout=CLOSE_SECONDS)
            self._discard()

    def submit(self, groups: Sequence[Group]) -> None:
        self._waiting += groups

    def advance(self, params: SamplingParams, on_progress: OnProgress) -> list[Group]:
        """Sample the next waiting groups of one seed; a sleeping engine wakes up with the policy's current weights."""
        if params.temperature > MAX_TEMPERATURE:
            raise VllmError(f"vLLM samples at temperatures up to {MAX_TEMPERATURE:g}, not {params.temperature:g}")
        if not self._waiting:
            return []
        batch = list(takewhile(lambda group: group.seed == self._waiting[0].seed, self._waiting))

        def run() -> Completions:
            if self._asleep:
                self._sync()
            return self._sample(batch, params, on_progress)

        sampled = self._attempt(run)
        self._waiting = self._waiting[len(batch) :]
        complete = list[Group]()
        for group, completions in zip(batch, sampled, strict=True):
            versioned = [replace(sample, versions=((self.version, len(sample.token_ids)),)) for sample in completions]
            complete.append(replace(group, completions=tuple(versioned)))
        return complete

    def unfinished(self) -> list[Group]:
        return list(self._waiting)

    @contextlib.contextmanager
    def isolated(self) -> Iterator[None]:
        before, self._waiting = self._waiting, []
        try:
            yield
        finally:
            self._waiting = before

    # ---- calls to vLLM -----------------------------------------------------------------------------------------------

    def _sync(self) -> None:
        """Send the policy's weights; wakes the engine up, its cache last, since only then there is memory for it."""
        client = self._running
        if self._asleep:
            torch.cuda.empty_cache()  # vLLM's process cannot use what this one caches
            self._call(lambda: client.wake("weights"))
        for bucket in self._weights():
            self._call(lambda: send(client, bucket))  # noqa: B023  # called at once
        if self._asleep:
            torch.cuda.empty_cache()  # of the buckets
            self._call(lambda: client.wake("kv_cache"))
        self._asleep = False
        end = monotonic() + CACHE_SECONDS
        while not self._call(client.reset_prefix_cache):
            if monotonic() > end:
                raise EngineDiedError("it did not drop its prefix cache, which requests still use")
            sleep(CACHE_PAUSE)
        if self._check is not None:
            self._check.compare(self._sample(self._check.batch.groups, self._check.batch.params))

    def _sample(
        self, groups: Sequence[Group], params: SamplingParams, on_progress: OnProgress = lambda _: None
    ) -> Completions:
        """The completions of groups; if `on_progress` raises, the rest is aborted."""
        client, since = self._running, monotonic()
        self._batches += 1  # the engine may still return an output of an earlier one
        requests = {f"{self._batches}-{place}": group for place, group in enumerate(groups)}
        completions: dict[str, list[Generation]] = {}

        def add() -> None:
            for name, group in requests.items():
                client.add(name, group, params, first_seed(group))

        try:
            self._call(add, since=since)
            while len(completions) < len(requests):
                outputs = self._call(client.step, since=since)
                finished = {name: sampled for name, sampled in outputs.items() if name in requests}
                if any(len(sampled) < len(requests[name].completions) for name, sampled in finished.items()):
                    raise EngineDiedError("it gave fewer completions than requested")
                completions |= finished
                on_progress(sum(map(len, finished.values())))
        except EngineDiedError:
            raise
        except BaseException:
            if not self._abandoned:
                with contextlib.suppress(EngineDiedError):  # noticed when the engine is used again
                    self._call(lambda: client.abort([name for name in requests if name not in completions]))
            raise
        return [completions[name] for name in requests]

    # ---- failures ----------------------------------------------------------------------------------------------------

    @property
    def _running(self) -> VllmClient:
        if self._client is None:
            raise EngineDiedError("it has ended")
        return self._client

    def _attempt(self, action: Callable[[], Result], failure: str = "failed", advice: str = ADVICE) -> Result:
        try:
            return action()
        except EngineDiedError as error:
            reason = f"vLLM {failure}: {error.reason}"
        except BaseException:
            if self._abandoned:
                self._discard()
            raise
        if (logged := self._log_reason()) is not None:
            reason += f" ({logged})"
        self._discard()
        # Outside the handler, which would keep the frames of the failed call, and the weights in them.
        raise EngineDiedError(reason, advice)

    def _discard(self) -> None:
        """End what is left of the engine, in any state."""
        client, self._client = self._client, None
        if client is not None:
            client.kill()

    def _call(
        self, function: Callable[[], Result], *, timeout: float | None = None, since: float | None = None
    ) -> Result:
        """Call the client; anything that goes wrong in it is an `EngineDiedError`.

        In a thread if there is a timeout: vLLM's own client waits forever for an answer of a killed process.

        Args:
            timeout: seconds, after which the engine counts as hanging and the call is abandoned; None = the engine's.
            since: the `monotonic` time from which these count; None = now.
        """
        future: Future[Result] = Future()
        try:
            if self._timeout is None:
                _call_into(future, function)
            else:
                limit = self._timeout if timeout is None else timeout
                self._call_in_thread(future, function, limit, monotonic() if since is None else since)
            return future.result()
        finally:
            self._abandoned = self._timeout is not None and not future.done()
            del future  # or its exception would hold itself, and the weights of a call with it, by this frame

    def _call_in_thread(
        self, future: "Future[Result]", function: Callable[[], Result], limit: float, since: float
    ) -> None:
        thread = Thread(target=_call_into, args=(future, function), name="vllm-call", daemon=True)
        thread.start()
        while not wait([future], POLL_SECONDS).done:
            if not self._running.alive() and not wait([future], GRACE_SECONDS).done:
                raise EngineDiedError("its process ended")
            if monotonic() > since + limit:
                raise EngineDiedError(f"it did not answer within {limit:g} s")
        thread.join()


def _call_into(future: "Future[Result]", function: Callable[[], Result]) -> None:
    try:
        future.set_result(function())
    except TinyZeroError as error:
        future.set_exception(error)
    except Exception as error:  # a library's, of any type
        name = type(error).__name__
        # EngineDeadError's own message only refers to vLLM's log.
        reason = "its process ended" if name == "EngineDeadError" else f"{name}: {first_line(error)}"
        future.set_exception(EngineDiedError(reason))


def first_seed(group: Group) -> int:
    """The seed of a group's first completion: hashed, as vLLM gives the others the numbers that follow."""
    return derive_seed("vllm", group.seed, group.prompt_index) & (2**62 - 1)
