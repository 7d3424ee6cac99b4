"""A client of OpenAI-compatible servers: those of vLLM, SGLang, llama.cpp or Ollama, and providers.

Retries, back-off and timeouts are those of the `openai` package, which respects the server's headers. That package is
imported late, since it takes half a second. Servers differ in what they take and in how they answer: a refusal that
says what it refuses is met with a request without that, and answers are read here, in whichever form they come.
"""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

from tinyzero_sdk.console import plural, warn
from tinyzero_sdk.errors import SettingsError, TinyZeroError
from tinyzero_sdk.records import Completion

FIRST_PAUSE = 0.5  # seconds before a request is repeated; doubles each time
FINAL = (400, 401, 402, 403, 404, 422, 501)
"""HTTP statuses that the same request gets again."""

_REFUSED = (400, 422, 501)  # those of a request that another form may mend

CUT_OFF = {"length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded", "abort"}
"""The `finish_reason` of a completion that is cut off, as OpenAI, Anthropic, Gemini, Mistral and SGLang name it."""

_FILTERED = re.compile(r"content_?filter|content_?policy|data_inspection|^(?:safety|refusal)$", re.IGNORECASE)
"""What a content filter says: of OpenAI, Azure, LiteLLM, Alibaba; and as a `finish_reason` of Gemini and Anthropic."""

_OPTIONAL = ("top_p", "temperature", "seed", "response_format")
"""What a request can do without, in the order in which it is left out."""

_NOT_TAKEN = re.compile(r"support|deprecated|permitted|forbidden|recogni[sz]ed|unknown|unexpected|only|both")
"""In a refusal of a parameter as such, rather than of a value out of its range."""


class EndpointError(TinyZeroError):
    """The endpoint refuses or does not answer."""


@dataclass(frozen=True, slots=True)
class SampledCompletion(Completion):
    reasoning_content: str | None = None
    """What a reasoning model thought, where the server keeps it apart from the text."""

    filtered: bool = False
    """A content filter of the server withheld it, or its end."""


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
        self._streams = False  # whether the server answers only in streams
        self._left_out: set[str] = set()  # of what is optional
        self._said: set[str] = set()

        async def is_final(response: Any) -> None:
            if response.status_code == 501:  # not implemented; the package would repeat it
                response.headers["x-should-retry"] = "false"

        http = openai.DefaultAsyncHttpxClient(event_hooks={"response": [is_final]})
        self._client = openai.AsyncOpenAI(
            base_url=url, api_key=key or "none", max_retries=retries, timeout=timeout, http_client=http
        )

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

        Where the server wants another name for the limit, takes one completion at a time, answers only in streams, or
        does not take something optional, it gets what it wants; a warning says what is left out. There may be fewer
        completions than `count`. Those of a prompt that its content filter refuses are empty.

        Raises:
            EndpointError: the answer is malformed or holds an error, also after all retries.
            openai.APIError: the request failed; `describe` says how.
        """
        import openai

        sent = self._form(parameters, max_tokens, count)
        is_text = isinstance(prompt, str)
        api: Any = self._client.completions if is_text else self._client.chat.completions
        what = {"prompt" if is_text else "messages": prompt}
        for attempt in range(self._retries + 1):
            try:
                reply = _read((await api.with_raw_response.create(**what, **sent)).http_response.text)
                if any(completion.filtered for completion in reply.completions):
                    self._warn_once("filter", "withholds answers by its content filter: what it leaves of them counts")
                return reply
            except openai.APIStatusError as error:
                fault: Exception = error
                status, told = error.status_code, said(error.body)
            except _AnswerError as error:
                fault, status, told = error, error.status, str(error)
            if status in _REFUSED:
                if _FILTERED.search(told):
                    self._warn_once("prompt", f"refuses prompts by its content filter: answers count as empty ({told})")
                    return Reply([SampledCompletion("", filtered=True) for _ in range(count)], 0)
                self._adapt(told, sent)
                if self._form(parameters, max_tokens, count) != sent:
                    return await self.complete(prompt, parameters, max_tokens=max_tokens, count=count)
            if isinstance(fault, openai.APIStatusError):
                raise fault
            if status in FINAL:
                break
            await asyncio.sleep(min(FIRST_PAUSE * 2**attempt, 8.0) if attempt < self._retries else 0)
        raise EndpointError(f"{self._url} returned {self._without_key(told)} {plural(attempt + 1, 'time')}")

    def _form(self, parameters: Mapping[str, Any], max_tokens: int | None, count: int) -> dict[str, Any]:
        """The parameters of a request in the form that this server takes, as far as it is known."""
        sent = {name: value for name, value in parameters.items() if name not in self._left_out}
        if max_tokens is not None:
            sent[self._limit_name] = max_tokens
        if count > 1 and self.takes_several:
            sent["n"] = count
        if self._streams:  # as a further parameter: the package reads it whole, as it reads other answers
            streamed = {"stream": True, "stream_options": {"include_usage": True}}
            sent["extra_body"] = streamed | sent.get("extra_body", {})
        return sent

    def _adapt(self, refusal: str, sent: Mapping[str, Any]) -> None:
        """Change the form of requests, where the refusal of one says how."""
        named = [name for name in _OPTIONAL if name in refusal and name in sent]
        if "max_completion_tokens" in refusal and "max_tokens" in sent:
            self._limit_name = "max_completion_tokens"
        elif named and _NOT_TAKEN.search(refusal.lower()):
            self._left_out.add(named[0])
            self._warn_once(named[0], f"does not take {named[0]}, which is left out ({refusal})")
        elif not self._streams and re.search(r"\bstream(?:ing)?\b", refusal.lower()):
            self._streams = True
        elif "n" in sent:
            self.takes_several = False

    def _warn_once(self, topic: str, text: str) -> None:
        if topic not in self._said:
            self._said.add(topic)
            warn(f"{self._url} {self._without_key(text)}")

    def _without_key(self, text: str) -> str:
        """The text, in one line and not too long, without the key, which some servers repeat."""
        line = " ".join(text.split())[:300]
        return line.replace(self._key, "…") if self._key else line

    def describe(self, error: BaseException, model: str) -> BaseException:
        """An error of the endpoint in one line with what to do; other errors unchanged."""
        import openai

        url, variable, tries = self._url, self._key_variable, self._retries + 1
        message = self._without_key(said(getattr(error, "body", None)) or str(error))
        if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
            fix = f"check the key in {variable}" if self._key else f"set the environment variable {variable} to the key"
            text = f"{url} refuses access ({error.status_code}); {fix}"
        elif isinstance(error, openai.APITimeoutError):
            text = f"{url} did not answer within {self._timeout:g} s, {plural(tries, 'time')}; raise the timeout"
        elif isinstance(error, openai.APIConnectionError):
            text = f"cannot reach {url} ({error.__cause__ or message}), tried {plural(tries, 'time')}; is it running?"
        elif isinstance(error, openai.NotFoundError):
            text = f"{url} has no model {model!r}, or is not the base of an API ({message})"
        elif isinstance(error, openai.APIStatusError) and error.status_code in _REFUSED:
            text = f"{url} rejects the request ({error.status_code}: {message})"
        elif isinstance(error, openai.APIStatusError):
            text = f"{url} answered {error.status_code} {plural(tries, 'time')} ({message}); try again later"
        else:
            return error
        return EndpointError(text)


class _AnswerError(Exception):
    """An answer without completions, and the HTTP status that it says should have been its own (0 = none)."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Self:
        """For an answer, or one of its choices, without a completion but perhaps with an error."""
        error = answer.get("error")
        code = str(error.get("code")) if isinstance(error, dict) else ""
        status = int(code) if re.fullmatch("[45][0-9][0-9]", code) else 0
        return cls(f"an error in its answer: {said(error)}" if error else "an answer without choices", status)


def said(body: Any, depth: int = 6) -> str:
    """What the body of an error says, in whichever form: its message, its code, of faults in fields each field.

    Example:
        >>> said({"detail": [{"loc": ["body", "n"], "msg": "must be 1", "input": {"n": 2}}]})
        'body.n: must be 1'
        >>> said({"message": "No.", "code": "content_filter"})
        'No. (content_filter)'
    """
    if not isinstance(body, list | dict):
        return "" if body is None else str(body)[:1000]
    if isinstance(body, list):
        return "; ".join(said(entry, depth - 1) for entry in body[:5] if depth)
    inner = [body[name] for name in ("message", "msg", "detail", "error") if body.get(name)]
    told = said(inner[0], depth - 1) if inner and depth else ""
    place, code = body.get("loc"), body.get("code")
    if isinstance(place, list):
        told = f"{'.'.join(map(str, place[:9]))}: {told}"
    if isinstance(code, str) and not code.isdecimal() and code not in told:
        told += f" ({code})"
    return told or ", ".join(f"{name}: {value}" for name, value in body.items() if not isinstance(value, list | dict))


def _read(text: str) -> Reply:
    """The completions in an answer or a stream, which the package does not check; raises an _AnswerError."""
    try:
        answer = _joined(text) if text.lstrip().startswith(("data:", "event:", ":")) else json.loads(text)
        choices, usage = answer.get("choices") or [], answer.get("usage") or {}
        if not choices or not isinstance(choices, list):
            raise _AnswerError.of(answer)
        total, tokens = usage.get("total_tokens"), usage.get("completion_tokens")
        if type(tokens) is not int or len(choices) > 1:  # the server counts all choices together
            tokens = None
        return Reply([_completion(choice, tokens) for choice in choices], total if type(total) is int else 0)
    except (ValueError, RecursionError) as error:
        raise _AnswerError(f"an answer that is not JSON ({error})") from error
    except (AttributeError, TypeError, LookupError) as error:  # something within it is of another type
        raise _AnswerError("an answer without choices") from error


def _completion(choice: Mapping[str, Any], tokens: int | None) -> SampledCompletion:
    message, reason = choice.get("message") or {}, str(choice.get("finish_reason"))
    if reason == "error":
        raise _AnswerError.of(choice)
    text, thought = _texts(message.get("content") if message else choice["text"])
    thoughts = (thought or None, message.get("reasoning_content"), message.get("reasoning"))  # servers differ
    return SampledCompletion(
        text or str(message.get("refusal") or ""),
        tokens,
        reason.lower() not in CUT_OFF,
        next((thought for thought in thoughts if isinstance(thought, str)), None),
        filtered=_FILTERED.search(reason) is not None,
    )


def _texts(content: Any) -> tuple[str, str]:
    """The text and the thought of a content, which may be a list of parts of both."""
    if isinstance(content, str | None):
        return content or "", ""
    texts = {True: "", False: ""}
    for part in content:
        inner = next((part[name] for name in ("text", "thinking", "refusal") if name in part), "")
        texts[part["type"] in ("thinking", "reasoning")] += _texts(inner)[0]
    return texts[False], texts[True]


def _joined(stream: str) -> dict[str, Any]:
    """The answer that a stream of events stands for, its deltas as parts of a content; raises an _AnswerError."""
    usage, choices, is_over = None, dict[int, dict[str, Any]](), False
    for line in stream.split("\n"):
        data = line.removeprefix("data:").strip()
        is_over = is_over or data == "[DONE]"
        if not line.startswith("data:") or data == "[DONE]":
            continue
        event = json.loads(data)
        if event.get("error"):
            return {"error": event["error"]}
        usage = event.get("usage") or usage
        for piece in event.get("choices") or ():
            choice = choices.setdefault(piece.get("index", 0), {"message": {"content": []}, "finish_reason": None})
            delta = piece.get("delta") or {"content": piece.get("text")}  # of a chat, or of a completion
            for kind, names in (("thinking", ("reasoning_content", "reasoning")), ("text", ("content",))):
                value: Any = next((delta[name] for name in names if delta.get(name)), [])
                parts = [{"type": kind, kind: value}] if isinstance(value, str) else value
                choice["message"]["content"] += parts
            choice["finish_reason"] = piece.get("finish_reason") or choice["finish_reason"]
    if not is_over and not all(choice["finish_reason"] for choice in choices.values()):
        raise _AnswerError("a stream that broke off")
    return {"choices": [choices[index] for index in sorted(choices)], "usage": usage}
