"""The rollout engine `vllm`: generates with vLLM, and replaces it when it fails.

What speaks to vLLM is client.py, how long a call may take is in call_timeout.py, and with which arguments vLLM
is started is in engine_args.py.
"""

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TypeVar

import torch

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.seeds import derive_seed
from tinyzero_trainer.rollout.engine import SamplingParams
from tinyzero_trainer.rollout.vllm.call_timeout import Caller, Cancelled, EngineFault
from tinyzero_trainer.rollout.vllm.client import Answer, Client, Request, VllmError
from tinyzero_trainer.rollout.vllm.progress import Progress
from tinyzero_trainer.rollout.weight_sync import WeightSource
from tinyzero_trainer.types import Generation

START_LIMIT = 1200.0
"""Seconds for an engine to start, kernels compiled and graphs captured."""

CACHE_LIMIT = 10.0
"""Seconds for requests that were aborted to let go of the cache."""

CACHE_PAUSE = 0.05
"""Seconds before it is asked again whether they have."""

HIGHEST_TEMPERATURE = 2.0
"""That vLLM takes."""

SEED_MASK = 2**62 - 1

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine may do, and how often it may fail."""

    separate_process: bool = True
    """Whether vLLM runs in a process of its own, which can be replaced."""

    sleep: bool = False
    """Whether it gives its memory back when it is told to sleep."""

    restarts: int = 2
    """Times that it is replaced."""

    time_limit: float = 1800.0
    """Seconds for a batch, or for anything else that it is asked to do."""


class VllmEngine:
    """vLLM behind the protocol of a rollout engine."""

    def __init__(
        self,
        connection: Callable[[], Client],
        weights: WeightSource,
        *,
        eos_ids: Collection[int],
        limits: Limits,
        note: Callable[[str], None] = lambda _: None,
        reason: Callable[[], str | None] = lambda: None,
        check: Callable[["VllmEngine"], None] | None = None,
    ) -> None:
        """Start vLLM with the present weights.

        Args:
            connection: to an engine that is still to be started; called again for each that replaces it.
            weights: those of the policy, whenever it is called.
            eos_ids: every token that ends a completion.
            limits: see `Limits`.
            note: is told of what the user should know.
            reason: what the engine's process has said of its end.
            check: called after each time the weights were sent; raises if they did not arrive.

        Raises:
            VllmError: vLLM did not start.
        """
        self._new_connection, self._weights, self._ends = connection, weights, tuple(sorted(eos_ids))
        self._limits, self._note, self._reason, self._check = limits, note, reason, check
        self._restarts_left = limits.restarts
        self._connection: Client | None = None
        self._caller: Caller | None = None
        self._asleep = False
        self._batches = 0
        try:
            self._connect()
        except EngineFault as fault:
            why = self._why(fault)
            self._discard()
            raise VllmError(f"vLLM did not start: {why}") from fault

    # ---- what the loop asks ------------------------------------------------------------------------------------------

    def load_weights(self) -> None:
        """See `RolloutEngine`; an engine that sleeps is awake afterwards."""
        self._insist(self._sync, connected=self._sync_again)

    def sleep(self) -> None:
        """See `RolloutEngine`."""
        if self._limits.sleep and not self._asleep:
            self._insist(self._fall_asleep)

    def close(self) -> None:
        """See `RolloutEngine`."""
        if self._connection is None:
            return
        with contextlib.suppress(EngineFault):
            self._call(self._connection.close, limit=60.0)
        self._discard()

    def generate(
        self,
        prompts: Sequence[list[int]],
        samples: int,
        params: SamplingParams,
        *,
        seed: int,
        first: int = 0,
        on_progress: Callable[[int], None] | None = None,
    ) -> list[list[Generation]]:
        """See `RolloutEngine`; an engine that sleeps wakes up with the policy's present weights.

        Raises:
            VllmError: it failed more often than it may be replaced, or vLLM cannot do what is asked.
        """
        if params.temperature > HIGHEST_TEMPERATURE:
            raise VllmError(f"vLLM samples at temperatures up to {HIGHEST_TEMPERATURE:g}, not {params.temperature:g}")
        progress = Progress(on_progress)

        def run() -> list[list[Generation]]:
            if self._asleep:
                self._sync()
            progress.begin()
            return self._run(self._requests(prompts, samples, params, seed, first), progress)

        try:
            groups = self._insist(run)
        except Cancelled:
            assert progress.raised is not None
            raise progress.raised from None
        progress.show()
        return groups

    def probe(self, prompts: Sequence[list[int]], params: SamplingParams) -> list[Generation]:
        """One completion of each prompt, for a check: faults are the caller's."""
        return [group[0] for group in self._run(self._requests(prompts, 1, params, seed=0, first=0), Progress(None))]

    def _requests(
        self, prompts: Sequence[list[int]], samples: int, params: SamplingParams, seed: int, first: int
    ) -> list[Request]:
        self._batches += 1  # an engine may still have something to say of an earlier one
        return [
            Request(
                f"{self._batches}-{index}",
                prompt,
                samples,
                params,
                # Hashed: vLLM gives a prompt's completions seeds that follow each other.
                derive_seed("vllm", seed, index) & SEED_MASK,
                self._ends,
            )
            for index, prompt in enumerate(prompts, first)
        ]

    # ---- one engine --------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Start an engine, with the present weights."""
        free_cached_memory()  # vLLM refuses to start where it does not find what it may take
        self._connection = connection = self._new_connection()
        if self._limits.separate_process:
            self._caller = Caller(connection.alive)
        try:
            self._call(connection.start, limit=START_LIMIT)
            self._sync()
        except EngineFault:
            raise  # what the engine has said of it is read before it is given up
        except BaseException:
            self._discard()  # half started it is of no use, and would keep its memory
            raise

    def _sync(self) -> None:
        """Send the policy's weights; wakes the engine up, the cache last, for which there is room only then."""
        connection = self._present()
        if self._asleep:
            free_cached_memory()
            self._call(lambda: connection.wake("weights"))
        for parcel in connection.parcels(self._weights()):
            self._call(lambda: connection.send(parcel))  # noqa: B023  # called at once
        if self._asleep:
            free_cached_memory()  # what the weights took on their way
            self._call(lambda: connection.wake("kv_cache"))
        self._asleep = False
        self._forget_prompts()
        if self._check is not None:
            self._check(self)

    def _sync_again(self) -> None:
        """After a fault in `_sync`: a new engine has the weights already."""

    def _forget_prompts(self) -> None:
        connection, end = self._present(), monotonic() + CACHE_LIMIT
        while True:
            try:
                return self._call(connection.forget_prompts)
            except EngineFault:
                if monotonic() > end or not connection.alive():
                    raise
            sleep(CACHE_PAUSE)

    def _fall_asleep(self) -> None:
        self._call(self._present().sleep)
        self._asleep = True

    def _run(self, requests: list[Request], progress: "Progress") -> list[list[Generation]]:
        connection = self._present()
        if self._caller is None:
            answers = self._call(lambda: drive(connection, requests, progress.count_and_show))
        else:
            answers = self._call(
                lambda: drive(connection, requests, progress.count), meanwhile=progress.show, cancel=progress.cancel
            )
        return [_rollouts(request, answers[request.name]) for request in requests]

    # ---- and what comes after it -------------------------------------------------------------------------------------

    def _insist(self, action: Callable[[], Result], *, connected: Callable[[], Result] | None = None) -> Result:
        """Do something with the engine, and again with another one if it fails.

        Args:
            action: may raise `EngineFault`.
            connected: what is done instead with a new engine.
        """
        while True:
            try:
                if self._connection is None:
                    self._connect()
                    action = action if connected is None else connected
                return action()
            except EngineFault as fault:
                self._replace(fault)
            except BaseException:
                if self._caller is not None and self._caller.stuck:
                    self._discard()
                raise

    def _replace(self, fault: EngineFault) -> None:
        """Give the engine up; the next thing done with it starts another."""
        why, allowed = self._why(fault), self._limits.restarts if self._limits.separate_process else 0
        self._discard()
        if not self._restarts_left or not allowed:
            times = "" if not allowed else f" {allowed + 1} times"
            raise VllmError(
                f"vLLM failed{times}, at last because {why}; if memory is short lower vllm.gpu_memory_gb or "
                "rollout.max_num_seqs, if it is slow raise vllm.timeout, else take rollout.engine=torch (--resume "
                "goes on from the last checkpoint)"
            ) from fault
        self._restarts_left -= 1
        left = f"{self._restarts_left} more time{'' if self._restarts_left == 1 else 's'}"
        self._note(f"vLLM failed, since {why}; it is started anew and repeats what it was doing (at most {left})")

    def _discard(self) -> None:
        """End what is left of an engine, whatever state it is in."""
        connection, caller = self._connection, self._caller
        self._connection = self._caller = None
        self._asleep = False
        if connection is not None:
            connection.kill()
        if caller is not None:
            caller.end()

    def _why(self, fault: EngineFault) -> str:
        reason = self._reason()
        return str(fault) if reason is None else f"{fault} ({reason})"

    def _present(self) -> Client:
        assert self._connection is not None
        return self._connection

    def _call(
        self,
        function: Callable[[], Result],
        *,
        limit: float | None = None,
        meanwhile: Callable[[], None] | None = None,
        cancel: Callable[[], None] | None = None,
    ) -> Result:
        """Call the engine; whatever goes wrong within it is an `EngineFault`."""

        def guarded() -> Result:
            try:
                return function()
            except (EngineFault, Cancelled, TinyZeroError):
                raise
            except Exception as error:  # a library's, of any type: its reason is kept
                raise EngineFault(_in_short(error)) from error

        if self._caller is None:
            return guarded()
        limit = self._limits.time_limit if limit is None else limit
        return self._caller.call(guarded, limit=limit, meanwhile=meanwhile, cancel=cancel)


def free_cached_memory() -> None:
    """Give the GPU what this process's allocator only keeps: vLLM's cannot have it otherwise."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _in_short(error: Exception) -> str:
    kind, lines = type(error).__name__, str(error).strip().splitlines() or [""]
    # vLLM's own words for it are that its log says more.
    return "its process ended" if kind == "EngineDeadError" else f"{kind}: {lines[0]}"


def drive(connection: Client, requests: Sequence[Request], report: Callable[[int], None]) -> dict[str, Answer]:
    """Have requests answered; returns the answers by the requests' names.

    Args:
        connection: to an engine with nothing else to do.
        requests: unlike names.
        report: called after each step with the completions that it has finished; if it raises, the rest is aborted.

    Raises:
        EngineFault: the engine is done, and not all are answered.
    """
    waiting = {request.name: request for request in requests}
    answers: dict[str, Answer] = {}
    try:
        for request in requests:
            connection.add(request)
        while waiting:
            if not connection.busy():
                raise EngineFault(f"it left {len(waiting)} of {len(requests)} prompts unanswered")
            found = [answer for answer in connection.step() if waiting.pop(answer.name, None) is not None]
            answers |= {answer.name: answer for answer in found}
            report(sum(len(answer.tokens) for answer in found))
    except BaseException:
        with contextlib.suppress(Exception):  # it may be why there is something to abort
            connection.abort(list(waiting))
        raise
    return answers


def _rollouts(request: Request, answer: Answer) -> list[Generation]:
    """Raises: EngineFault: it is not what was asked for."""
    if len(answer.tokens) != request.samples:
        raise EngineFault(f"it gave {len(answer.tokens)} completions for {request.samples}")
    if not all(answer.tokens):
        raise EngineFault("it gave an empty completion")
    wanted = request.params.logprobs
    if wanted and (answer.logprobs is None or [*map(len, answer.logprobs)] != [*map(len, answer.tokens)]):
        raise EngineFault("it did not give the log-probability of each token")
    logprobs: Sequence[list[float] | None] = answer.logprobs or [None] * request.samples
    ends = () if request.params.ignore_eos else request.ends
    return [
        Generation(tokens, found if wanted else None, finished=tokens[-1] in ends)
        for tokens, found in zip(answer.tokens, logprobs, strict=True)
    ]
