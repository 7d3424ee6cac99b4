"""`tinyzero view`: the page and its data over HTTP, for this machine alone and read-only.

Runs are named by their path below one directory, and only paths found there are served. Requests must name the local
host, so that no other site's page can read the answers by pointing its own name here. Every user of the machine can
reach 127.0.0.1: an address with the token is answered with a cookie, without which nothing is served.
"""

import hmac
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import pyarrow.parquet as pq

from tinyzero_sdk.data.files import ENDINGS
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.report.completions import Completions, read_completions, version_of
from tinyzero_sdk.report.page import as_json, describe, html
from tinyzero_sdk.report.runs import CONFIG, METRICS, Run, modified, open_run

POLL_SECONDS = 3.0
_DEPTH = 4  # of the directories searched for runs
_INSIDE_RUN = {"checkpoints", "completions"}
_MOST_ROWS = 50_000
_MOST_RUNS = 8  # in one request, each of which may take a second to read; the page shows fewer
_LOCAL = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?", re.IGNORECASE)  # a forwarded port may be any other

_FAULTS = (OSError, ValueError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError)
"""What a request that the page does not send may raise, beside DataError."""


class Library:
    """The runs and scored files below a directory."""

    def __init__(self, root: Path) -> None:
        """`root` may itself be a run, or a scored file."""
        self.root = root.resolve()

    def paths(self) -> dict[str, Path]:
        """What there is now, by name, in the order of names."""
        if self.root.is_file() or (self.root / METRICS).is_file():
            return {self.root.name: self.root}
        return {str(path.relative_to(self.root)): path for path in sorted(self._search(self.root, _DEPTH))}

    def _search(self, directory: Path, depth: int) -> Iterator[Path]:
        """The runs and scored files; what cannot be read is none."""
        for path in directory.iterdir():
            if path.name.startswith(".") or not Path(os.path.realpath(path)).is_relative_to(self.root):
                continue
            with suppress(OSError):
                if (path / METRICS).is_file() or _is_scored(path):
                    yield path
                elif depth > 1 and path.is_dir() and path.name not in _INSIDE_RUN:
                    yield from self._search(path, depth - 1)

    def listed(self) -> list[dict[str, Any]]:
        """The newest first, each with what changes when it grows."""
        rows = []
        for name, path in self.paths().items():
            run = Run(name, path, is_run=path.is_dir())  # unread: there may be many, and long ones
            times = [modified(file) for file in (path, path / METRICS, path / CONFIG, *run.completion_files())]
            written = max(times[1:3]) if run.is_run else times[0]  # as `tinyzero runs` sorts them
            rows.append((written, {"name": name, "isRun": run.is_run, "modified": str(max(times))}))
        return [row for _, row in sorted(rows, key=lambda entry: entry[0], reverse=True)]

    def runs(self, names: Sequence[str]) -> list[Run]:
        """The runs of these names; a DataError where one is not here, a ValueError if they are too many."""
        if len(names) > _MOST_RUNS:
            raise ValueError(f"at most {_MOST_RUNS} runs")
        paths = self.paths() if names else {}
        for name in names:
            if name not in paths:
                raise DataError(f"there is no run {name!r} below {self.root}")
        return [open_run(paths[name], name) for name in names]

    def completions(self, run: Run) -> Completions:
        return _read(tuple((path, *version_of(path)) for path in run.completion_files()))

    def answer(self, path: str, query: Mapping[str, Sequence[str]]) -> Any:
        """The data of one request; a DataError where it has no answer."""
        if path == "/runs":
            return self.listed()
        runs = self.runs(query.get("run", ()))
        if path == "/describe":
            return [describe(run, self.completions(run)) for run in runs]
        if path == "/texts" and runs:
            return self.completions(runs[0]).texts(query.get("id", ()))
        if path == "/completions" and runs:
            completions = self.completions(runs[0])
            indices = completions.select(json.loads(query["filters"][0]))
            offset, limit = int(query["offset"][0]), min(_MOST_ROWS, int(query["limit"][0]))
            if min(offset, limit) < 0:
                raise ValueError("offset and limit are at least 0")
            return {"total": len(indices), "rows": completions.rows(indices[offset : offset + limit])}
        raise DataError(f"there is no {path}")


@lru_cache(maxsize=8)
def _read(files: Sequence[tuple[Path, int, int]]) -> Completions:
    """The completions of files in these versions, so that files that change are read again."""
    return read_completions([path for path, *_ in files])


def _is_scored(path: Path) -> bool:
    """Whether a file is a table with scores, or its first line has one."""
    if not (path.suffix in ENDINGS and path.is_file()):
        return False
    try:
        if path.suffix == ".parquet":
            names = pq.read_schema(path).names
        else:
            with path.open("rb") as file:
                names = [*json.loads(file.readline(1 << 24))]
    except (OSError, ValueError, TypeError, RecursionError):  # damaged, or empty
        return False
    return {"score", "completion"} <= {*names}


def make_server(root: Path, port: int, token: str = "") -> ThreadingHTTPServer:
    """A server of the page on 127.0.0.1; port 0 chooses a free one, and one that is taken is an OSError.

    With a token it answers only whoever has it, first as `/?token=…` and then as a cookie. A browser sends cookies of
    127.0.0.1 to every port, so this one is of a path that servers of other users do not know.
    """
    library = Library(root)
    page = html({"live": POLL_SECONDS, "written": str(root), "runs": []}, connect="'self'")
    base = f"/{secrets.token_urlsafe(12)}/" if token else "/"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, words = self.path.partition("?")
            query = parse_qs(words, keep_blank_values=True)
            if not _LOCAL.fullmatch(self.headers.get("Host") or ""):
                return self._send(403, "text/plain", "this server answers to 127.0.0.1 and localhost only")
            if token and path == "/" and _equal(query.pop("token", [""])[0], token):
                words = urlencode(query, doseq=True)
                headers = {"Location": base + (words and f"?{words}")}
                headers["Set-Cookie"] = f"tinyzero={token}; Path={base}; HttpOnly; SameSite=Lax"
                return self._send(303, "text/plain", "", headers)
            cookies = self.headers.get("Cookie", "").split(";")
            if token and not any(_equal(cookie.strip(), f"tinyzero={token}") for cookie in cookies):
                return self._send(
                    403, "text/plain", "open the address that `tinyzero view` has printed, with its token"
                )
            path = f"/{path.removeprefix(base)}"
            if path == "/":
                return self._send(200, "text/html", page)
            try:
                answer = library.answer(path, query)
            except DataError as error:
                return self._send(404, "text/plain", str(error))
            except _FAULTS as error:
                return self._send(400, "text/plain", f"not a request of this page: {error}")
            return self._send(200, "application/json", as_json(answer))

        def _send(self, status: int, kind: str, text: str, headers: Mapping[str, str] = {}) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Referrer-Policy", "no-referrer")
            self.send_header("X-Content-Type-Options", "nosniff")
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(ConnectionError):  # a page that is closed meanwhile
                self.wfile.write(body)

        def log_message(self, format: str, *values: Any) -> None:
            pass  # the terminal is for the address

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def _equal(given: str, secret: str) -> bool:
    """Whether they are equal, in a time that does not tell how much of them is."""
    return hmac.compare_digest(given.encode(), secret.encode())
