"""A sampler for OpenAI-compatible endpoints: servers of vLLM, SGLang, llama.cpp or Ollama, and providers.

Retries, back-off and timeouts are those of the `openai` package, which respects the server's headers. Needs the extra
`endpoint`; imported only for `tinyzero eval --endpoint`.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tinyzero_sdk.console import plural
from tinyzero_sdk.errors import SettingsError, TinyZeroError
from tinyzero_sdk.evaluation.protocol import DEFAULT_SIZE, EvaluationPlan, EvaluationRequest, Keep, Problem, Sampler
from tinyzero_sdk.records import Completion, Json
from tinyzero_sdk.seeds import derive_seed
from tinyzero_sdk.settings import parse_overrides
from tinyzero_sdk.tasks.splits import DEFAULT_TEST_FRACTION
from tinyzero_sdk.tasks.task import Task

DEFAULT_TEMPLATE = "chat"
DEFAULT_MAX_TOKENS = 1024
FIRST_PAUSE = 0.5  # seconds before a request is repeated; doubles each time
_GRACE_SECONDS = 30.0  # for pending requests once one has failed: they may be paid for


class EndpointError(TinyZeroError):
    """The endpoint refuses or does not answer; earlier completions are stored."""


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    url: str
    """Base URL, with `/v1` where the server needs it."""

    key_variable: str = "OPENAI_API_KEY"
    """Environment variable with the API key, which is never written to a file."""

    concurrency: int = 16
    retries: int = 6
    """Number of retries, after 0.5 s, 1 s, 2 s …, or when the server says."""

    timeout: float = 600.0
    """Seconds for one request."""


def plan_endpoint(request: EvaluationRequest, options: EndpointOptions) -> EvaluationPlan:
    """The plan to evaluate a model behind an endpoint.

    Raises:
        SettingsError: the model or task is missing, or the URL or an option of the task is invalid.
    """
    from tinyzero_sdk.tasks.registry import load_task_with_overrides
    from tinyzero_sdk.workers.process import count_cores

    if not request.task or not request.model:
        what = "--model, its name at the endpoint" if request.task else "--task"
        raise SettingsError(f"an evaluation at an endpoint needs {what}")
    if not options.url.startswith(("http://", "https://")):
        raise SettingsError(f"got --endpoint {options.url}; expected a URL, such as http://localhost:8000/v1")
    words = [word for word in request.overrides if not word.startswith("data.")]
    task = load_task_with_overrides(request.task, words, allow_unsafe_scorers=request.allow_unsafe_scorers)
    if len(words) < len(request.overrides):
        task = _with_files(task, request)
    max_tokens = request.max_tokens or DEFAULT_MAX_TOKENS
    return EvaluationPlan(
        task=task,
        model=request.model,
        opener=lambda: _open(request, options, max_tokens),
        max_tokens=max_tokens,
        size=request.size or DEFAULT_SIZE,
        test_fraction=DEFAULT_TEST_FRACTION if request.test_fraction is None else request.test_fraction,
        split=request.split,
        samples=request.samples,
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        workers=count_cores(),
    )


def _with_files(task: Task, request: EvaluationRequest) -> Task:
    """The task with the problems of `data.path` and `data.test_path`."""
    from tinyzero_sdk.data.file_task import load_file_tasks

    files = parse_overrides([word for word in request.overrides if word.startswith("data.")])["data"]
    for key, value in files.items():
        if key not in ("path", "test_path") or not isinstance(value, str):
            raise SettingsError(f"data.{key}={value!r}: expected a file as data.path or data.test_path")
    fraction = DEFAULT_TEST_FRACTION if request.test_fraction is None else request.test_fraction
    (task,) = load_file_tasks({task.name: task}, files.get("path"), files.get("test_path"), fraction).values()
    if request.template and not task.makes_prompts:
        raise SettingsError("--template has no effect: the rows of data.path have their own prompts")
    return task


@contextmanager
def _open(request: EvaluationRequest, options: EndpointOptions, max_tokens: int) -> Iterator[Sampler]:
    yield EndpointSampler(request, options, max_tokens)


class EndpointSampler:
    """See `Sampler`. Messages go to the chat endpoint, text to the completions endpoint."""

    def __init__(self, request: EvaluationRequest, options: EndpointOptions, max_tokens: int) -> None:
        self.template = request.template or DEFAULT_TEMPLATE
        self.settings: Mapping[str, Json] = {"endpoint": options.url}
        self._options = options
        self._seed = request.seed
        self._batched = True  # several completions per request, until the server refuses
        self._limit_name = "max_tokens"  # or the server's name for it
        self._parameters: dict[str, Any] = {
            "model": request.model,
            "temperature": request.temperature,
            "top_p": request.top_p,
        }
        self._max_tokens = max_tokens

    def sample(self, problems: Sequence[Problem], keep: Keep, advance: Callable[[int], None]) -> None:
        """See `Sampler`.

        Raises:
            EndpointError: a request failed for good.
        """
        asyncio.run(self._sample_all([problem for problem in problems if problem.missing], keep))

    async def _sample_all(self, problems: Sequence[Problem], keep: Keep) -> None:
        try:
            import openai
        except ModuleNotFoundError as error:
            raise TinyZeroError("an endpoint needs the openai package: pip install 'tinyzero-sdk[endpoint]'") from error
        key = os.environ.get(self._options.key_variable, "").strip()
        waiting = deque(problems)
        async with openai.AsyncOpenAI(
            base_url=self._options.url,
            api_key=key or "none",
            max_retries=self._options.retries,
            timeout=self._options.timeout,
        ) as client:

            async def work() -> None:
                while waiting:
                    await self._sample_one(client, waiting.popleft(), keep)

            workers = [asyncio.create_task(work()) for _ in range(min(self._options.concurrency, len(problems)))]
            try:
                done, pending = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
                failures = [failure for worker in done if (failure := worker.exception())]
                if failures:
                    waiting.clear()
                    if pending:
                        await asyncio.wait(pending, timeout=_GRACE_SECONDS)
                    raise self._describe(failures[0], key) from failures[0]
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)

    async def _sample_one(self, client: Any, problem: Problem, keep: Keep) -> None:
        left = list(problem.missing)
        while left:
            count = len(left) if self._batched else 1
            completions = await self._request(client, problem, left[0], count)
            if len(completions) < count:
                self._batched = False  # the server ignores `n`
            for completion in completions[:count]:
                keep(problem, left.pop(0), completion)

    async def _request(self, client: Any, problem: Problem, sample: int, count: int) -> list[Completion]:
        """The completions of one request; at least one."""
        import openai

        parameters = {**self._parameters, self._limit_name: self._max_tokens}
        if count > 1:
            parameters["n"] = count
        if self._seed is not None:
            parameters["seed"] = derive_seed("completion", self._seed, problem.index, sample) % 2**31
        for attempt in range(self._options.retries + 1):
            try:
                if isinstance(problem.prompt, str):
                    answer = await client.completions.create(prompt=problem.prompt, **parameters)
                else:
                    answer = await client.chat.completions.create(messages=problem.prompt, **parameters)
                completions = _read(answer)
                if completions:
                    return completions
                fault = "an answer without choices"
            except openai.BadRequestError as error:
                if not self._adapt(str(error), parameters):
                    raise
                return await self._request(client, problem, sample, count if self._batched else 1)
            except ValueError as error:  # a body that is not JSON, which the package does not retry
                fault = f"an answer that is not JSON ({error})"
            await asyncio.sleep(min(FIRST_PAUSE * 2**attempt, 8.0) if attempt < self._options.retries else 0)
        raise EndpointError(f"{self._options.url} returned {fault} {plural(self._options.retries + 1, 'time')}")

    def _adapt(self, refusal: str, parameters: Mapping[str, Any]) -> bool:
        """Whether the refused request has another form that this server may accept."""
        if "max_completion_tokens" in refusal and "max_tokens" in parameters:
            self._limit_name = "max_completion_tokens"
            return True
        if "n" in parameters:
            self._batched = False
            return True
        return False

    def _describe(self, error: BaseException, key: str) -> BaseException:
        """An error of the endpoint in one line with what to do; other errors unchanged."""
        import openai

        url, variable, tries = self._options.url, self._options.key_variable, self._options.retries + 1
        message = " ".join(str(error).split())[:200]
        if key:
            message = message.replace(key, "…")  # some servers repeat it
        if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
            fix = f"check the key in {variable}" if key else f"set the environment variable {variable} to the key"
            text = f"{url} refuses access ({error.status_code}); {fix}, or name another one with --api-key-env"
        elif isinstance(error, openai.APITimeoutError):
            text = f"{url} did not answer within {self._options.timeout:g} s, {plural(tries, 'time')}; raise --timeout"
        elif isinstance(error, openai.APIConnectionError):
            text = f"cannot reach {url} ({error.__cause__ or message}), tried {plural(tries, 'time')}; is it running?"
        elif isinstance(error, openai.NotFoundError):
            model = self._parameters["model"]
            text = f"{url} has no model {model!r}, or is not the base of an API ({message})"
        elif isinstance(error, openai.BadRequestError | openai.UnprocessableEntityError):
            text = f"{url} rejects the request ({message})"
        elif isinstance(error, openai.APIStatusError):
            text = f"{url} answered {error.status_code} {plural(tries, 'time')} ({message}); try again later"
        elif isinstance(error, openai.APIError):
            text = f"{url} gave no answer ({message})"
        else:
            return error
        return EndpointError(text)


def _read(answer: Any) -> list[Completion]:
    """The completions in an answer; none if it is malformed, which the package does not check."""
    choices, usage = getattr(answer, "choices", None), getattr(answer, "usage", None)
    if not isinstance(choices, list):
        return []
    tokens = getattr(usage, "completion_tokens", None)
    if type(tokens) is not int or len(choices) > 1:  # the server counts all choices together
        tokens = None
    completions = []
    for choice in choices:
        message = getattr(choice, "message", None)
        text = getattr(message, "content", 0) if message is not None else getattr(choice, "text", 0)
        if not isinstance(text, str | None):
            return []
        completions.append(Completion(text or "", tokens, getattr(choice, "finish_reason", None) != "length"))
    return completions
