"""A server that speaks as much of OpenAI's protocol as an evaluation needs, and can be made to fail."""

import functools
import itertools
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest.mock import patch

TLS = functools.cache(ssl.create_default_context)  # a client reads all certificates for each, which takes a while
Reply = tuple[int, Any] | tuple[int, Any, str]
"""Status, the body (text as it is, everything else as JSON), and its type if that is not JSON."""


def complete(prompt, number):
    """What it answers: the number asked for, every second time one more."""
    asked = int("".join(filter(str.isdigit, prompt)))
    return f"<answer>{asked + number % 2}</answer>"


@dataclass
class FakeEndpoint:
    """The server's state."""

    url: str = ""
    key: str = ""  # expected, if it is not empty
    takes_n: bool = True  # whether it gives several completions at once; otherwise it gives one, whatever is asked
    delay: float = 0.0  # seconds before each answer
    intervene: Callable[[int, dict[str, Any]], Reply | None] = lambda number, request: None
    """Sees the number of the request (from 1) and its body; a reply that it returns replaces the usual one."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    busiest: int = 0  # most requests at a time
    _busy: int = 0
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, path, authorization, request):
        """The reply to a request."""
        with self._lock:
            self.requests.append({"path": path, **request})
            number = len(self.requests)
            self._busy += 1
            self.busiest = max(self.busiest, self._busy)
        try:
            time.sleep(self.delay)
            if self.key and authorization != f"Bearer {self.key}":
                return 401, {"error": {"message": f"Incorrect API key provided: {authorization}"}}
            return self.intervene(number, request) or (200, self._complete(path, request))
        finally:
            with self._lock:
                self._busy -= 1

    def _complete(self, path, request):
        count = request.get("n", 1) if self.takes_n else 1
        is_chat = path.endswith("/chat/completions")
        prompt = request["messages"][-1]["content"] if is_chat else request["prompt"]
        choices = []
        for index in range(count):
            text = complete(prompt, next(self._numbers))
            content = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
            reason = "length" if request["max_tokens"] < 5 else "stop"
            choices.append({"index": index, "finish_reason": reason, **content})
        usage = {"prompt_tokens": 1, "completion_tokens": 7 * count, "total_tokens": 7 * count + 1}
        whole = {"id": "x", "object": "x", "created": 0, "model": request["model"]}
        return whole | {"choices": choices, "usage": usage}


@contextmanager
def serve():
    """Run a server in a thread."""
    endpoint = FakeEndpoint()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, reply, *kind = endpoint.answer(self.path, self.headers.get("Authorization", ""), json.loads(body))
            content = (reply if isinstance(reply, str) else json.dumps(reply)).encode()
            self.send_response(status)
            self.send_header("Content-Type", *(kind or ["application/json"]))
            self.send_header("Content-Length", str(len(content)))
            self.send_header("retry-after-ms", "1")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

        def handle_one_request(self):
            try:
                super().handle_one_request()
            except (BrokenPipeError, ConnectionResetError):  # the client was killed
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    endpoint.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        with patch.object(ssl, "create_default_context", lambda *_, **__: TLS()):
            yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
