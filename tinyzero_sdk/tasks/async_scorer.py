"""A task's `async def score`, for callers that wait: its calls run in one event loop, under the limits of the task,
and what it returned is kept on disk.

Imported only for such tasks. A batch is scored by `prefetch`; what then asks for one score finds it there.
"""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from tinyzero_sdk.disk_cache import DiskCache, content_key
from tinyzero_sdk.errors import BrokenTaskError, TinyZeroError
from tinyzero_sdk.records import SCORER_FAILURES, Json, Score, ScorerLimits

try:
    import tenacity
    from aiolimiter import AsyncLimiter
except ModuleNotFoundError as missing:
    raise TinyZeroError(
        f"a task whose score is async needs {missing.name}: pip install 'tinyzero-sdk[judge]'"
    ) from missing

Answers = Mapping[str, tuple[str, Json]]
"""Answers to score, each with its ground truth, by the key of their score."""

_BEAT_SECONDS = 0.1
_backoff = tenacity.wait_random_exponential(multiplier=0.5, max=30)


class AsyncScorer:
    """Calls a coroutine function from code that waits for it, from one thread at a time."""

    def __init__(
        self,
        score: Callable[[str, Json], Awaitable[Any]],
        check: Callable[[Any, str], Score],
        limits: ScorerLimits,
        identity: Json,
    ) -> None:
        """`check` raises a BrokenTaskError for what is no valid score; `identity` is what else scores depend on."""
        self._score, self._check = score, check
        self._limits = limits
        self._identity = content_key(identity)
        self._cache = DiskCache("scores")
        self._ready: dict[str, Any] = {}
        self._slots = asyncio.Semaphore(limits.concurrency)
        rate = (limits.requests_per_minute or 0) / 60
        # In bursts of one second's calls: a burst of a minute's would be double the rate at first.
        self._limiter = AsyncLimiter(max(rate, 1.0), max(1 / rate, 1.0)) if rate else None

    def score(self, answer: str, ground_truth: Json) -> Any:
        """What the task returns, or raises, as an ordinary `score` does."""
        key = self._key(answer, ground_truth)
        if key not in self._ready:
            return _result(self._wait_for({key: (answer, ground_truth)}, lambda: None)[key])
        return _result(self._ready[key])

    def prefetch(self, answers: "list[tuple[str, Json]]", beat: Callable[[], object]) -> None:
        """Score all of them at once, so that `score` finds each; what an earlier call fetched is forgotten.

        `beat` is called several times a second as long as none of them blocks the others.
        """
        self._ready = self._wait_for({self._key(*answer): answer for answer in answers}, beat)

    def _key(self, answer: str, ground_truth: Json) -> str:
        return content_key([self._identity, answer, ground_truth])

    def _wait_for(self, answers: Answers, beat: Callable[[], object]) -> dict[str, Any]:
        future = asyncio.run_coroutine_threadsafe(self._score_all(answers, beat), _event_loop())
        try:
            return future.result()
        except BaseException:  # Ctrl-C: what is still under way may cost money
            future.cancel()
            raise

    async def _score_all(self, answers: Answers, beat: Callable[[], object]) -> dict[str, Any]:
        heart = asyncio.create_task(_beat(beat))
        try:
            results = await asyncio.gather(*(self._score_one(key, *answer) for key, answer in answers.items()))
        finally:
            heart.cancel()
        return dict(zip(answers, results, strict=True))

    async def _score_one(self, key: str, answer: str, ground_truth: Json) -> Any:
        """What the task returns, or the exception that it raises in the end."""
        try:
            stored = self._cache.get(key)
            if stored is not None:
                return Score(**stored) if isinstance(stored, dict) else stored
            async with self._slots:
                result = await self._try_repeatedly(answer, ground_truth)
            with suppress(BrokenTaskError, TypeError):  # what is no valid score is refused later, and not kept
                if self._check(result, answer).reason not in SCORER_FAILURES:
                    self._cache.put(key, asdict(result) if isinstance(result, Score) else result)
            return result
        except BaseException as error:  # whatever it is: the others go on, and the guard counts it
            this = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and this is not None and this.cancelling():
                raise  # the batch is cancelled, not something within the scorer
            return error.with_traceback(_frames_of_task(error.__traceback__))

    async def _try_repeatedly(self, answer: str, ground_truth: Json) -> Any:
        async def call() -> Any:
            if self._limiter is not None and retrying.statistics["attempt_number"] > 1:
                await self._limiter.acquire()
            return await self._score(answer, ground_truth)

        retrying = tenacity.AsyncRetrying(  # of its own: concurrent calls of one mix up their states
            stop=tenacity.stop_after_attempt(self._limits.retries + 1),
            wait=_pause,
            retry=tenacity.retry_if_exception(_may_pass),
            reraise=True,
        )
        if self._limiter is not None:
            await self._limiter.acquire()
        try:
            async with asyncio.timeout(self._limits.deadline) as deadline:
                return await retrying(call)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise BrokenTaskError(f"score took longer than task.limits.deadline={self._limits.deadline:g} s") from error


def identity_of(name: str, version: str, options: Any, score: Callable[..., Any], judge: Any) -> Json:
    """What scores of a task depend on beside answer and ground truth; not the weights, which are applied later."""
    source = inspect.getsourcefile(score)
    code = Path(source).read_text(encoding="utf-8", errors="replace") if source and Path(source).is_file() else ""
    settings = None if options is None else asdict(options)
    return [name, version, content_key(code), settings, None if judge is None else judge.identity]


def _result(result: Any) -> Any:
    if isinstance(result, BaseException):
        raise result
    return result


def _frames_of_task(frames: TracebackType | None) -> TracebackType | None:
    """Those after the last one of this file, where there are any: what is between is of the retries."""
    frame = frames
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == __file__:
            frames = frame.tb_next or frames
        frame = frame.tb_next
    return frames


def _may_pass(error: BaseException) -> bool:
    """Whether the same call may work later; our own errors say what a person has to do first."""
    return isinstance(error, Exception) and not isinstance(error, TinyZeroError)


def _pause(state: tenacity.RetryCallState) -> float:
    """Seconds before the next call: those that a server asked for (of an error of openai or httpx), or the usual."""
    error = state.outcome.exception() if state.outcome else None
    asked = getattr(getattr(error, "response", None), "headers", {}).get("retry-after", "")
    return max(_backoff(state), float(asked) if asked.isdigit() else 0.0)


async def _beat(beat: Callable[[], object]) -> None:
    while True:
        beat()
        await asyncio.sleep(_BEAT_SECONDS)


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """The loop of this process, in a thread of its own: the caller's thread may have one that runs."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="async scorers", daemon=True).start()
    return loop
