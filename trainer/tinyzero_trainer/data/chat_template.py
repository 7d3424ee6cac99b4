"""A model's chat template, rendered in a process of its own, since it is code of whoever made the model.

jinja's sandbox keeps it from files and from Python's internals; the process bounds its time and memory.
"""

import atexit
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from threading import Lock
from typing import Any

from tinyzero_sdk.workers.process import limit_memory

SECONDS = 20
HANGS_SECONDS = SECONDS + 40
"""For an answer of the process, which ends itself if the template takes too long."""

MEMORY = 2 << 30  # address space in bytes
_LONGEST = 1 << 26  # bytes of a text


class TemplateError(ValueError):
    """A chat template fails, or takes too much time or memory."""


class TemplateRenderer:
    """Starts its process when it is first used, and again after one that ended."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._child: tuple[subprocess.Popen[bytes], Connection] | None = None
        atexit.register(self.close)

    def close(self) -> int | None:
        """End the process; its exit code, if it had ended by itself."""
        if self._child is None:
            return None
        process, connection = self._child
        self._child = None
        connection.close()
        code = process.poll()
        process.kill()
        process.wait()
        return code

    def render(self, template: str, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        """The text of chat messages, as transformers renders it; a TemplateError if there is none."""
        with self._lock:
            if self._child is not None and self._child[0].poll() is not None:  # something has killed it
                self.close()
            if self._child is None:
                self._child = _start()
            process, connection = self._child
            try:
                request = [template, messages, variables, SECONDS]
                connection.send_bytes(json.dumps(request, default=str).encode())
                if connection.poll(HANGS_SECONDS):
                    text, fault = json.loads(connection.recv_bytes(_LONGEST))
                else:
                    self.close()
                    fault = f"its process has not answered for {HANGS_SECONDS} s"
            except EOFError:
                is_late = process.wait() == -signal.SIGALRM
                self.close()
                fault = f"it takes over {SECONDS} s" if is_late else f"its process ended with {process.returncode}"
            except OSError:
                self.close()
                fault = f"its text is longer than {_LONGEST >> 20} MiB"
            except BaseException:  # Ctrl-C: the next call would get the answer to this one
                self.close()
                raise
        if fault is not None:
            raise TemplateError(fault)
        return str(text)


def _start() -> tuple[subprocess.Popen[bytes], Connection]:
    ours, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno())],  # by its file: its package imports torch
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # no Ctrl-C from the terminal
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # each would reserve memory
        )
    return process, ours


def main() -> None:
    """Render what comes from the parent, until it closes the connection."""
    from transformers.utils.chat_template_utils import render_jinja_template

    limit_memory(MEMORY)
    with Connection(int(sys.argv[1])) as connection:
        while True:
            try:
                template, messages, variables, seconds = json.loads(connection.recv_bytes())
            except EOFError:
                return
            signal.alarm(seconds)  # ends the process, also amid a calculation in C
            try:
                rendered: Any = render_jinja_template([messages], chat_template=template, **variables)
                answer = [rendered[0][0], None]
            except Exception as error:  # the border to the template
                answer = [None, f"{type(error).__name__}: {error}"]
            signal.alarm(0)
            connection.send_bytes(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
