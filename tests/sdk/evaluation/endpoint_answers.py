"""What servers answer: a table, each row as a server's public documentation or source has it.

A row gives its `body` with its `status`: always, the first `times`, or `when` a request has a parameter (or has `not`).
Other requests get `events`, or a usual answer. TEXT is what the model writes, HEAD and TAIL its two parts.
"""

import json
from pathlib import Path
from typing import Any

from tests.sdk.evaluation.fake_endpoint import Reply

CASES = [json.loads(line) for line in Path(__file__).with_suffix(".jsonl").read_text(encoding="utf-8").splitlines()]
PLAIN = CASES[0]["body"]


def stream(deltas: list[Any], reason: str = "stop", usage: bool = True) -> str:
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    chunks += [{"choices": [], "usage": PLAIN["usage"]}] * usage
    return ": ping\n\n" + "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def reply(case: dict[str, Any], number: int, request: dict[str, Any], text: str) -> Reply:
    """The answer of a server to a request with a number, from 1."""
    when = case.get("when", "")
    applies = (when.removeprefix("not ") in request) != when.startswith("not ") if when else True
    if "body" in case and applies and number <= case.get("times", number):
        status, body = case["status"], case["body"]
    elif "events" in case:
        status, body = 200, stream(case["events"], case.get("reason", "stop"), usage="stream_options" in request)
    else:
        status, body = 200, PLAIN
    filled = body if isinstance(body, str) else json.dumps(body)
    for word, part in (("TEXT", text), ("HEAD", text[:5]), ("TAIL", text[5:])):
        filled = filled.replace(json.dumps(word), json.dumps(part))
    return status, filled, "text/event-stream" if isinstance(body, str) else "application/json"


def mutations(value: Any) -> Any:
    """The value with each of its parts replaced by others, one at a time."""
    yield from (None, True, 0, -1, 10**400, 0.5, "", "x", "4" * 5000)
    yield from ([], [None], ["a", {"type": "text"}], {}, {"x": {}})
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        for other in mutations(inner):
            copy = dict(value) if isinstance(value, dict) else list(value)
            copy[key] = other
            yield copy
