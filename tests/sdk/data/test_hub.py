"""The Hub: whether there is a network at all is known soon."""

import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

from tinyzero_sdk.data import hub


class Refuses(BaseHTTPRequestHandler):
    """A Hub that wants a token."""

    def do_HEAD(self):
        self.send_error(401)

    def log_message(self, *arguments):
        pass


def test_a_server_that_answers_is_reachable_and_a_closed_port_is_not(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with HTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert hub.unreachable(f"http://127.0.0.1:{server.server_port}") is None
    assert "refused" in (hub.unreachable(f"http://127.0.0.1:{server.server_port}") or "")
    assert hub.unreachable("no address") is not None


def test_a_server_that_never_answers_takes_no_longer_than_the_patience(monkeypatch):
    patience = hub._PATIENCE
    monkeypatch.setattr(hub, "_PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        begin = time.monotonic()
        assert "timed out" in (hub.unreachable(f"http://127.0.0.1:{deaf.getsockname()[1]}") or "")
        assert time.monotonic() - begin < patience
