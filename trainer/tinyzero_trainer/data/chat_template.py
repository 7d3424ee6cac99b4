"""A model's chat template, rendered in a process of its own, since it is code of whoever made the model.

jinja's sandbox keeps it from files and from Python's internals; the process bounds its time and memory.
"""

import atexit
import json
import pickle
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any

from tinyzero_sdk.workers.process import SharedTimer, WorkerProcess, limit_memory
from tinyzero_sdk.workers.supervisor import Worker

SECONDS = 20
HANGS_SECONDS = SECONDS + 40
"""For an answer of the process, with its start; a template that takes too long is noticed before."""

MEMORY = 2 << 30  # address space in bytes
_LONGEST = 1 << 26  # characters of a text
_TICK_SECONDS = 0.05


class TemplateError(ValueError):
    """A chat template fails, or takes too much time or memory."""


class TemplateRenderer:
    """Starts its process when it is first used, and again after one that ended."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._worker: Worker | None = None
        atexit.register(self.close)

    def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def render(self, template: str, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        """The text of chat messages, as transformers renders it; a TemplateError if there is none."""
        with self._lock:
            if self._worker is not None and self._worker.process.has_ended():  # something has killed it
                self.close()
            if self._worker is None:
                self._worker = Worker(WorkerProcess(pickle.dumps(None), render_templates), "a chat template")
            try:
                request = json.dumps([template, messages, variables], default=str)
                text, fault = self._ask(self._worker, request)
            except BaseException:  # Ctrl-C included: the next call would get the answer to this one
                self.close()
                raise
        if fault is not None:
            raise TemplateError(fault)
        return str(text)

    def _ask(self, worker: Worker, request: str) -> tuple[str | None, str | None]:
        worker.send(request)
        until = time.monotonic() + HANGS_SECONDS
        while not worker.fate(SECONDS) and time.monotonic() < until:
            for text, fault in worker.messages(_TICK_SECONDS):
                return text, fault
        if worker.kill(SECONDS).kind == "died":
            raise TemplateError(f"its process ended with {worker.process.wait()}")
        if worker.timer.seconds > SECONDS:
            raise TemplateError(f"it takes over {SECONDS} s")
        raise TemplateError(f"its process has not answered for {HANGS_SECONDS} s")


def render_templates(_: None, connection: Connection, timer: SharedTimer) -> None:
    """The service of the process: renders what comes, until the parent closes the connection."""
    from transformers.utils.chat_template_utils import render_jinja_template

    limit_memory(MEMORY)
    while True:
        template, messages, variables = json.loads(connection.recv())
        timer.start(0)
        try:
            rendered: Any = render_jinja_template([messages], chat_template=template, **variables)
            text, fault = rendered[0][0], None
            if len(text) > _LONGEST:
                text, fault = None, f"its text is longer than {_LONGEST >> 20} MiB"
        except Exception as error:  # the border to the template
            text, fault = None, f"{type(error).__name__}: {error}"
        timer.stop()
        connection.send((text, fault))
