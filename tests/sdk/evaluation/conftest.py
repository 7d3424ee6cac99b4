"""A fake server, and a task to evaluate at it."""

import json

import pytest

from tests.sdk.conftest import options_source
from tests.sdk.evaluation.fake_endpoint import serve

CHAT = """
@hookimpl
def make_prompt(item, template):
    text = f"say {item.data['number']}"
    return [{"role": "user", "content": text}] if template == "chat" else text
"""


@pytest.fixture
def server():
    with serve() as running:
        yield running


@pytest.fixture
def task(write_task):
    return write_task(make_prompt=CHAT, extra=options_source("digits: int = 3"))


def rows_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
