"""A fake server, and a task to evaluate at it."""

import functools
import json
import ssl

import pytest

from tests.sdk.conftest import options_source
from tests.sdk.evaluation.fake_endpoint import serve

CHAT = """
@hookimpl
def make_prompt(item, template):
    text = f"say {item.data['number']}"
    return [{"role": "user", "content": text}] if template == "chat" else text
"""


TLS = functools.cache(ssl.create_default_context)  # a client reads all certificates for each, which takes a while


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(ssl, "create_default_context", lambda *_, **__: TLS())
    with serve() as running:
        yield running


@pytest.fixture
def task(write_task):
    return write_task(make_prompt=CHAT, extra=options_source("digits: int = 3"))


def rows_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
