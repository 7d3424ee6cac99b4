"""A client of OpenAI-compatible servers: those of vLLM, SGLang, llama.cpp or Ollama, and providers.

Retries, back-off and timeouts are those of the `openai` package, which respects the server's headers. That package is
imported late, since it takes half a second.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast
from urllib.parse import urlsplit

from tinyzero_sdk.console import plural
from tinyzero_sdk.errors import SettingsError, TinyZeroError
from tinyzero_sdk.records import Completion

FIRST_PAUSE = 0.5  # seconds before a request is repeated; doubles each time


class EndpointError(TinyZeroError):
    """The endpoint refuses or does not answer."""


@dataclass(frozen=True, slots=True)
class SampledCompletion(Completion):
    reasoning_content: str | None = None
    """What a reasoning model thought, where the server keeps it apart from the text."""


@dataclass(frozen=True, slots=True)
class Reply:
    completions: list[SampledCompletion]
    """At least one."""

    tokens: int
    """Tokens of the prompt and of all completions; 0 if the server does not say."""


def require_url(url: str, name: str, key_variable: str) -> None:
    """Raise a SettingsError if the setting `name` is no URL, or one with a password: results name their server."""
    if "@" in urlsplit(url).netloc:
        raise SettingsError(f"{name} has a user name or password; give the key in {key_variable}, and the URL without")
    if not url.startswith(("http://", "https://")):
        raise SettingsError(f"got {name} {url}; expected a URL, such as http://localhost:8000/v1")


class OpenAIClient:
    """Sends prompts; an async context manager. It belongs to the event loop in which it is first used."""

    def __init__(
        self,
        url: str,
        *,
        key: str = "",
        key_variable: str = "OPENAI_API_KEY",
        retries: int = 6,
        timeout: float = 600.0,
        extra: str = "endpoint",
    ) -> None:
        """
        Args:
            url: base URL, with `/v1` where the server needs it.
            key: the API key, which no message repeats.
            key_variable: the environment variable that it comes from, for messages.
            retries: of a failed request, after 0.5 s, 1 s, 2 s …, or when the server says.
            timeout: seconds for one request.
            extra: of our distribution, for the message where the package is missing.
        """
        try:
            import openai
        except ModuleNotFoundError as error:
            install = f"pip install 'tinyzero-sdk[{extra}]'"
            raise TinyZeroError(f"an endpoint needs the openai package: {install}") from error
        self.takes_several = True
        """Whether it gives several completions for one request, until the server refuses."""

        self._url, self._key, self._key_variable = url, key, key_variable
        self._retries, self._timeout = retries, timeout
        self._limit_name = "max_tokens"  # or the server's name for it
        self._client = openai.AsyncOpenAI(base_url=url, api_key=key or "none", max_retries=retries, timeout=timeout)

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._client.__aexit__(*error)

    async def complete(
        self,
        prompt: str | Sequence[Mapping[str, str]],
        parameters: Mapping[str, Any],
        *,
        max_tokens: int | None = None,
        count: int = 1,
    ) -> Reply:
        """Completions of a prompt: messages go to the chat endpoint, text to the completions endpoint.

        Where the server wants another name for the limit, or takes one completion at a time, it gets what it wants.
        There may be fewer completions than `count`.

        Raises:
            EndpointError: the answer is malformed, also after all retries.
            openai.APIError: the request failed; `describe` says how.
        """
        import openai

        sent = dict(parameters)
        if max_tokens is not None and "max_completion_tokens" not in sent:
            sent[self._limit_name] = max_tokens
        if count > 1 and self.takes_several:
            sent["n"] = count
        for attempt in range(self._retries + 1):
            try:
                if isinstance(prompt, str):
                    answer = await self._client.completions.create(prompt=prompt, **sent)
                else:
                    answer = await self._client.chat.completions.create(messages=cast(Any, prompt), **sent)
                reply = _read(answer)
                if reply.completions:
                    return reply
                fault = "an answer without choices"
            except openai.BadRequestError as error:
                if not self._adapt(str(error), sent):
                    raise
                return await self.complete(prompt, parameters, max_tokens=max_tokens, count=count)
            except ValueError as error:  # a body that is not JSON, which the package does not retry
                fault = f"an answer that is not JSON ({error})"
            await asyncio.sleep(min(FIRST_PAUSE * 2**attempt, 8.0) if attempt < self._retries else 0)
        raise EndpointError(f"{self._url} returned {fault} {plural(self._retries + 1, 'time')}")

    def _adapt(self, refusal: str, sent: Mapping[str, Any]) -> bool:
        """Whether the refused request has another form that this server may accept."""
        if "max_completion_tokens" in refusal and "max_tokens" in sent:
            self._limit_name = "max_completion_tokens"
            return True
        if "n" in sent:
            self.takes_several = False
            return True
        return False

    def describe(self, error: BaseException, model: str) -> BaseException:
        """An error of the endpoint in one line with what to do; other errors unchanged."""
        import openai

        url, variable, tries = self._url, self._key_variable, self._retries + 1
        message = " ".join(str(error).split())[:200]
        if self._key:
            message = message.replace(self._key, "…")  # some servers repeat it
        if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
            fix = f"check the key in {variable}" if self._key else f"set the environment variable {variable} to the key"
            text = f"{url} refuses access ({error.status_code}); {fix}"
        elif isinstance(error, openai.APITimeoutError):
            text = f"{url} did not answer within {self._timeout:g} s, {plural(tries, 'time')}; raise the timeout"
        elif isinstance(error, openai.APIConnectionError):
            text = f"cannot reach {url} ({error.__cause__ or message}), tried {plural(tries, 'time')}; is it running?"
        elif isinstance(error, openai.NotFoundError):
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


def _read(answer: Any) -> Reply:
    """The completions in an answer; none if it is malformed, which the package does not check."""
    choices, usage = getattr(answer, "choices", None), getattr(answer, "usage", None)
    total, tokens = getattr(usage, "total_tokens", None), getattr(usage, "completion_tokens", None)
    reply = Reply([], total if type(total) is int else 0)
    if not isinstance(choices, list):
        return reply
    if type(tokens) is not int or len(choices) > 1:  # the server counts all choices together
        tokens = None
    completions = []
    for choice in choices:
        message = getattr(choice, "message", None)
        text = getattr(message, "content", 0) if message is not None else getattr(choice, "text", 0)
        if not isinstance(text, str | None):
            return reply
        finished = getattr(choice, "finish_reason", None) != "length"
        thoughts = (getattr(message, name, None) for name in ("reasoning_content", "reasoning"))  # servers differ
        thought = next((thought for thought in thoughts if isinstance(thought, str)), None)
        completions.append(SampledCompletion(text or "", tokens, finished, thought))
    return Reply(completions, reply.tokens)
