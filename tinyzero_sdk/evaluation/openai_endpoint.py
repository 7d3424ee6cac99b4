"""A sampler for OpenAI-compatible endpoints; imported only for `tinyzero eval --endpoint`."""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.evaluation.protocol import DEFAULT_SIZE, EvaluationPlan, EvaluationRequest, Keep, Problem
from tinyzero_sdk.openai_client import OpenAIClient, require_url
from tinyzero_sdk.records import Json
from tinyzero_sdk.seeds import derive_seed
from tinyzero_sdk.settings import parse_overrides
from tinyzero_sdk.tasks.splits import DEFAULT_TEST_FRACTION
from tinyzero_sdk.tasks.task import Task

DEFAULT_TEMPLATE = "chat"
DEFAULT_MAX_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    url: str  # base URL, with `/v1` where the server needs it
    key_variable: str = "OPENAI_API_KEY"  # environment variable with the API key, which is never written to a file
    concurrency: int = 16
    retries: int = 6  # number of retries, after 0.5 s, 1 s, 2 s …, or when the server says
    timeout: float = 600.0  # seconds for one request
    system: str = ""  # system prompt, put before the one that the problem may have
    stop: Sequence[str] = ()  # texts that end a completion
    extra_body: Mapping[str, Json] = field(default_factory=dict)
    """Further parameters of a request, as the server names them."""


def plan_endpoint(request: EvaluationRequest, options: EndpointOptions) -> EvaluationPlan:
    """The plan to evaluate a model behind an endpoint; refuses a missing model or task, and a wrong URL or option."""
    from tinyzero_sdk.tasks.registry import load_task_with_overrides
    from tinyzero_sdk.workers.process import count_cores

    if not request.task or not request.model:
        what = "--model, its name at the endpoint" if request.task else "--task"
        raise SettingsError(f"an evaluation at an endpoint needs {what}")
    require_url(options.url, "--endpoint", options.key_variable)
    words = [word for word in request.overrides if not word.startswith("data.")]
    task = load_task_with_overrides(request.task, words, allow_unsafe_scorers=request.allow_unsafe_scorers)
    if len(words) < len(request.overrides):
        task = _with_files(task, request)
    max_tokens = request.max_tokens or DEFAULT_MAX_TOKENS
    return EvaluationPlan(
        task=task,
        model=request.model,
        opener=lambda: nullcontext(EndpointSampler(request, options, max_tokens)),
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
    """The task with the problems of `data.path` and `data.test_path`, whose columns `data.columns` may name."""
    from tinyzero_sdk.data.file_task import load_file_tasks

    files = parse_overrides([word for word in request.overrides if word.startswith("data.")])["data"]
    columns = files.pop("columns", None)
    for key, value in files.items():
        if key not in ("path", "test_path") or not isinstance(value, str):
            raise SettingsError(
                f"data.{key}={value!r}: expected a file as data.path or data.test_path, or data.columns.NAME=COLUMN"
            )
    fraction = DEFAULT_TEST_FRACTION if request.test_fraction is None else request.test_fraction
    paths = files.get("path"), files.get("test_path")
    (task,) = load_file_tasks({task.name: task}, *paths, fraction, columns).values()
    if request.template and not task.makes_prompts:
        raise SettingsError("--template has no effect: the rows of data.path have their own prompts")
    return task


class EndpointSampler:
    """A `Sampler` whose completions come from an endpoint: of chats for messages, of completions for text."""

    def __init__(self, request: EvaluationRequest, options: EndpointOptions, max_tokens: int) -> None:
        self.template = request.template or DEFAULT_TEMPLATE
        own: dict[str, Json] = {"stop": list(options.stop), "extra_body": dict(options.extra_body)}
        own = {name: value for name, value in own.items() if value}
        system = {"system": options.system} if options.system else {}
        self.settings: Mapping[str, Json] = {"endpoint": options.url, **system, **own}
        self._options = options
        self._seed = request.seed
        self._max_tokens = max_tokens
        self._parameters: dict[str, Any] = {
            "model": request.model,
            "temperature": request.temperature,
            "top_p": request.top_p,
            **own,
        }

    def sample(self, problems: Sequence[Problem], keep: Keep, advance: Callable[[int], None]) -> None:
        """Sample the missing completions of all problems, and pass each to `keep` as it arrives.

        Raises:
            EndpointError: a request failed for good.
        """
        asyncio.run(self._sample_all([problem for problem in problems if problem.missing], keep))

    async def _sample_all(self, problems: Sequence[Problem], keep: Keep) -> None:
        options, waiting = self._options, deque(problems)
        async with OpenAIClient(
            options.url,
            key=os.environ.get(options.key_variable, "").strip(),
            key_variable=options.key_variable,
            retries=options.retries,
            timeout=options.timeout,
        ) as client:

            async def work() -> None:
                while waiting:
                    await self._sample_one(client, waiting.popleft(), keep)

            workers = [asyncio.create_task(work()) for _ in range(min(options.concurrency, len(problems)))]
            try:
                done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
                if failures := [failure for worker in done if (failure := worker.exception())]:
                    raise client.describe(failures[0], self._parameters["model"]) from failures[0]
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)

    async def _sample_one(self, client: OpenAIClient, problem: Problem, keep: Keep) -> None:
        left, prompt = list(problem.missing), self._with_system(problem.prompt)
        while left:
            parameters, count = dict(self._parameters), len(left) if client.takes_several else 1
            if self._seed is not None:
                parameters["seed"] = derive_seed("completion", self._seed, problem.index, left[0]) % 2**31
            reply = await client.complete(prompt, parameters, max_tokens=self._max_tokens, count=count)
            if len(reply.completions) < count:
                client.takes_several = False  # the server ignores `n`
            for completion in reply.completions[: len(left)]:
                keep(problem, left.pop(0), completion)

    def _with_system(self, prompt: str | list[dict[str, str]]) -> str | list[dict[str, str]]:
        if not self._options.system:
            return prompt
        if isinstance(prompt, str):
            raise SettingsError("--system needs a prompt of messages, and this one is text; give --template chat")
        first, rest = prompt[0], prompt[1:]
        if first["role"] != "system":
            return [{"role": "system", "content": self._options.system}, *prompt]
        return [{"role": "system", "content": f"{self._options.system}\n\n{first['content']}"}, *rest]
