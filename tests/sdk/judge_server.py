"""A judge for tests: grades sentences as a strict reader would, at a `fake_endpoint`."""

import json
import re

import pytest

from tests.sdk.evaluation.fake_endpoint import serve

BLOCK = re.compile(r"^\[(\w{16}) (\w+)\]\n(.*?)\n\[\1 end of \2\]$", re.MULTILINE | re.DOTALL)


def blocks(request):
    """The fenced blocks of a request by name."""
    text = request["messages"][-1]["content"]
    return {name: content for _, name, content in BLOCK.findall(text)}


def grade(request):
    """1 for one short sentence with all the words asked for, and what else the rubric asks."""
    found = blocks(request)
    wanted = re.findall(r"\w+", found["question"].partition("words ")[2])
    words = re.findall(r"\w+", found["answer"].lower())
    is_sentence = re.fullmatch(r"[A-Z][\w ]+\.", found["answer"]) and len(words) < 16 and "words" not in words
    is_right = bool(is_sentence) and set(wanted) <= set(words)
    schema = request["response_format"]["json_schema"]["schema"]["properties"]
    return {name: "as it is" if name == "explanation" else float(is_right) for name in schema}


def reply(number, request):
    """The reply to a request."""
    message = {"role": "assistant", "content": json.dumps(grade(request))}
    usage = {"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 100}
    choices = [{"index": 0, "finish_reason": "stop", "message": message}]
    return 200, {"id": "x", "object": "x", "created": 0, "model": request["model"], "choices": choices, "usage": usage}


@pytest.fixture
def server(monkeypatch, tmp_path):
    """The judge's server, named in the environment, with an empty cache."""
    with serve() as running:
        running.intervene = reply
        monkeypatch.setenv("TINYZERO_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setenv("TINYZERO_JUDGE_BASE_URL", running.url)
        monkeypatch.setenv("TINYZERO_JUDGE_MODEL", "strict")
        yield running
