"""The rollout engine `vllm`. One that fails is not used again: executors/restart.py starts another in its place.

client.py talks to vLLM, call_timeout.py limits how long a call may take, engine_args.py has vLLM's arguments.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from time import monotonic, sleep
from typing import TypeVar

import torch

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.seeds import derive_seed
from tinyzero_trainer.errors import EngineDiedError, VllmError
from tinyzero_trainer.rollout.engine import Group, Groups, OnProgress, RolloutEngine, SamplingParams
from tinyzero_trainer.rollout.vllm.call_timeout import CallThread
from tinyzero_trainer.rollout.vllm.client import Request, VllmClient
from tinyzero_trainer.rollout.vllm.kind import MAX_TEMPERATURE
from tinyzero_trainer.rollout.vllm.sync_check import SyncCheck
from tinyzero_trainer.rollout.vllm.weight_transfer import send
from tinyzero_trainer.rollout.weight_source import Weights
from tinyzero_trainer.types import Generation

START_SECONDS = 1200.0
"""For an engine to start, compile its kernels and capture its graphs."""

CLOSE_SECONDS = 60.0

CACHE_SECONDS = 10.0
"""For aborted requests to release the prefix cache."""

CACHE_PAUSE = 0.05

SEED_MASK = 2**62 - 1

ADVICE = (
    "if memory is short lower vllm.gpu_memory_gb or rollout.max_num_seqs, if it is slow raise vllm.timeout, else take "
    "rollout.engine=torch (--resume continues from the last checkpoint)"
)

Result = TypeVar("Result")


class VllmEngine(RolloutEngine):
    """Samples the groups of one seed and length limit, and so of one step, at a time.

    Weights change between two of these batches, and a batch that is stopped is sampled again.
    """

    concurrent = True

    def __init__(
        self,
        client: VllmClient,
        weights: Callable[[], Iterator[Weights]],
        *,
        eos_ids: Collection[int],
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
        self._weights, self._eos_ids, self._timeout = weights, tuple(sorted(eos_ids)), timeout
        self._sleep_mode, self._log_reason, self._check = sleep_mode, log_reason, check
        self._thread = None if timeout is None else CallThread(client.alive)
        self._asleep = False
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
        """See `RolloutEngine`; also wakes a sleeping engine."""
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
        """See `RolloutEngine`; a sleeping engine wakes up with the policy's current weights."""
        if params.temperature > MAX_TEMPERATURE:
            raise VllmError(f"vLLM samples at temperatures up to {MAX_TEMPERATURE:g}, not {params.temperature:g}")
        if not self._waiting:
            return []
        seed, limit = self._waiting[0].seed, self._waiting[0].max_tokens
        batch = list(takewhile(lambda group: (group.seed, group.max_tokens) == (seed, limit), self._waiting))

        def run() -> Groups:
            if self._asleep:
                self._sync()
            return self._complete(batch, replace(params, max_tokens=limit), on_progress)

        sampled = self._attempt(run)
        self._waiting = self._waiting[len(batch) :]
        return [
            replace(group, completions=tuple(replace(each, versions=self._versions(each)) for each in completions))
            for group, completions in zip(batch, sampled, strict=True)
        ]

    def _versions(self, completion: Generation) -> tuple[tuple[int, int], ...]:
        return ((self.version, len(completion.token_ids)),)

    def unfinished(self) -> list[Group]:
        return list(self._waiting)

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        before, self._waiting = self._waiting, []
        try:
            yield
        finally:
            self._waiting = before

    def _requests(self, groups: Sequence[Group], params: SamplingParams) -> list[Request]:
        self._batches += 1  # the engine may still return an output of an earlier one
        return [
            Request(
                f"{self._batches}-{place}",
                group.prompt,
                len(group.completions),
                params,
                # Hashed: vLLM gives a prompt's completions consecutive seeds.
                derive_seed("vllm", group.seed, group.prompt_index) & SEED_MASK,
                self._eos_ids,
            )
            for place, group in enumerate(groups)
        ]

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
        while True:
            try:
                self._call(client.reset_prefix_cache)
                break
            except EngineDiedError:
                if monotonic() > end or not client.alive():
                    raise
            sleep(CACHE_PAUSE)
        if self._check is not None:
            self._check.compare(self._complete(self._check.batch.groups, self._check.batch.params))

    def _complete(
        self, groups: Sequence[Group], params: SamplingParams, on_progress: OnProgress = lambda _: None
    ) -> Groups:
        """The completions of groups; if `on_progress` raises, the rest is aborted."""
        client, requests, since = self._running, self._requests(groups, params), monotonic()
        waiting = {request.name: request for request in requests}
        completions: dict[str, list[Generation]] = {}

        def add() -> None:
            for request in requests:
                client.add(request)

        def step() -> dict[str, list[Generation]]:
            if not client.busy():
                raise EngineDiedError(f"it left {len(waiting)} of {len(requests)} prompts unanswered")
            return client.step()

        try:
            self._call(add, since=since)
            while waiting:
                finished = {name: each for name, each in self._call(step, since=since).items() if name in waiting}
                for name, each in finished.items():
                    _check_complete(waiting.pop(name), each)
                completions |= finished
                on_progress(sum(map(len, finished.values())))
        except EngineDiedError:
            raise
        except BaseException:
            if self._thread is None or not self._thread.interrupted:
                with contextlib.suppress(EngineDiedError):  # noticed when the engine is used again
                    self._call(lambda: client.abort(list(waiting)))
            raise
        return [completions[request.name] for request in requests]

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
            if self._thread is not None and self._thread.interrupted:
                self._discard()
            raise
        if (logged := self._log_reason()) is not None:
            reason += f" ({logged})"
        self._discard()
        # Outside the handler, which would keep the frames of the failed call, and the weights in them.
        raise EngineDiedError(reason, advice)

    def _discard(self) -> None:
        """End what is left of the engine, in any state."""
        client, thread = self._client, self._thread
        self._client = self._thread = None
        if client is not None:
            client.kill()
        if thread is not None:
            thread.end()

    def _call(
        self, function: Callable[[], Result], *, timeout: float | None = None, since: float | None = None
    ) -> Result:
        """Call the client; anything that goes wrong in it is an `EngineDiedError`."""

        def guarded() -> Result:
            try:
                return function()
            except TinyZeroError:
                raise
            except Exception as error:  # a library's, of any type
                name, lines = type(error).__name__, str(error).strip().splitlines() or [""]
                # EngineDeadError's own message only refers to vLLM's log.
                reason = "its process ended" if name == "EngineDeadError" else f"{name}: {lines[0]}"
                raise EngineDiedError(reason) from error

        if self._thread is None or self._timeout is None:
            return guarded()
        return self._thread.call(guarded, timeout=self._timeout if timeout is None else timeout, since=since)


def _check_complete(request: Request, completions: Sequence[Generation]) -> None:
    """Raises: EngineDiedError: less than what was requested."""
    if len(completions) != request.samples:
        raise EngineDiedError(f"it gave {len(completions)} completions for {request.samples}")
    if not all(completion.token_ids for completion in completions):
        raise EngineDiedError("it gave an empty completion")
    if request.params.logprobs and any(len(each.logprobs or ()) != len(each.token_ids) for each in completions):
        raise EngineDiedError("it did not give the log-probability of each token")
