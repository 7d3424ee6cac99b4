"""`tinyzero view`: the page and its data over HTTP, for this machine alone and read-only.

Runs are named by their path below one directory, and only paths found there are served. Requests must name the local
host, so that no other site's page can read the answers by pointing its own name here.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pyarrow.parquet as pq

from tinyzero_sdk.data.files import open_for_arrow
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.report.comparison import compare
from tinyzero_sdk.report.completions import Completions, read_completions
from tinyzero_sdk.report.page import as_json, describe, html
from tinyzero_sdk.report.runs import CONFIG, METRICS, Run, modified, name_of, open_run

POLL_SECONDS = 3.0
_DEPTH = 4  # of the directories searched for runs
_INSIDE_RUN = {"checkpoints", "completions"}
_MOST_ROWS = 50_000
_SEARCH_SECONDS = 0.2  # of one request; the page asks again, and shows what has been found so far
_LOCAL = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?", re.IGNORECASE)  # a forwarded port may be any other


_FAULTS = (DataError, OSError, KeyError, ValueError, ArithmeticError, AttributeError, RecursionError, TypeError)
"""What a request that the page does not send may raise."""


class Library:
    """The runs and scored files below a directory."""

    def __init__(self, root: Path) -> None:
        """`root` may itself be a run, or a scored file."""
        self.root = root.resolve()
        self._completions: dict[str, tuple[object, Completions]] = {}

    def paths(self) -> dict[str, Path]:
        """What there is now, by name, in the order of names."""
        if self.root.is_file() or (self.root / METRICS).is_file():
            return {name_of(self.root.name): self.root}
        found = {name_of(path.relative_to(self.root)): path for path in self._search(self.root, _DEPTH, [])}
        return dict(sorted(found.items()))

    def unreadable(self) -> list[Path]:
        """What is there beside these, and might hold some."""
        unreadable: list[Path] = []
        if self.root.is_dir() and not (self.root / METRICS).is_file():
            self._search(self.root, _DEPTH, unreadable)
        return unreadable

    def _search(self, directory: Path, depth: int, unreadable: list[Path]) -> list[Path]:
        """The runs and scored files; adds to `unreadable`."""
        found: list[Path] = []
        try:
            entries = sorted(directory.iterdir())
        except OSError:
            unreadable.append(directory)
            return []
        for path in entries:
            if path.name.startswith(".") or not Path(os.path.realpath(path)).is_relative_to(self.root):
                continue
            try:
                if (path / METRICS).is_file() or (path.is_file() and _is_scored(path)):
                    found.append(path)
                elif depth > 1 and path.is_dir() and path.name not in _INSIDE_RUN:
                    found += self._search(path, depth - 1, unreadable)
            except (OSError, ValueError, RecursionError):
                unreadable.append(path)
        return found

    def listed(self) -> list[dict[str, Any]]:
        """The newest first, each with what changes when it grows."""
        rows = []
        for name, path in self.paths().items():
            run = Run(name, path, is_run=path.is_dir())  # unread: there may be many, and long ones
            times = [modified(one) for one in (path, path / METRICS, path / CONFIG, *run.completion_files())]
            written = max(times[1:3]) if run.is_run else times[0]  # as `tinyzero runs` sorts them
            rows.append((written, {"name": name, "isRun": run.is_run, "modified": str(max(times))}))
        return [row for _, row in sorted(rows, key=lambda entry: entry[0], reverse=True)]

    def run(self, name: str) -> Run:
        """
        Raises:
            DataError: no such run is here.
        """
        paths = self.paths()
        if name not in paths:
            raise DataError(f"there is no run {name!r} below {self.root}")
        return open_run(paths[name], name)

    def completions(self, run: Run) -> Completions:
        """Those of a run; read again only after its files have changed."""
        files = run.completion_files()
        stamp = [(path, path.stat().st_mtime_ns, path.stat().st_size) for path in files if path.exists()]
        if run.name not in self._completions or self._completions[run.name][0] != stamp:
            self._completions[run.name] = (stamp, read_completions(files))
        return self._completions[run.name][1]

    def answer(self, path: str, query: Mapping[str, Sequence[str]]) -> Any:
        """The data of one request.

        Raises:
            DataError: it has no answer.
        """
        if path == "/runs":
            return self.listed()
        runs = [self.run(name) for name in query.get("run", ())]
        if path == "/describe":
            return [describe(run, self.completions(run)) for run in runs]
        if path == "/texts" and runs:
            return self.completions(runs[0]).texts(query.get("id", ()))
        if path == "/compare" and len(runs) == len(query.get("filters", ())) == 2:
            filters = [json.loads(text) for text in query["filters"]]
            return compare([(self.completions(run), own) for run, own in zip(runs, filters, strict=True)])
        if path == "/completions" and runs:
            completions = self.completions(runs[0])
            places, left = completions.select_within(json.loads(query["filters"][0]), _SEARCH_SECONDS)
            offset, limit = int(query["offset"][0]), min(_MOST_ROWS, int(query["limit"][0]))
            if min(offset, limit) < 0:
                raise ValueError("offset and limit are at least 0")
            rows = completions.rows(places[offset : offset + limit].astype(np.int64))
            return {"total": len(places), "rows": rows, "left": left}
        raise DataError(f"there is no {path}")


def _is_scored(path: Path) -> bool:
    """Whether the first row of a file has a score; raises OSError, ValueError or RecursionError if it has none."""
    if path.suffix == ".parquet":
        return {"score", "completion"} <= set(pq.read_schema(open_for_arrow(path)).names)
    if path.suffix != ".jsonl" or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        row = json.loads(file.readline(1 << 24))
    return isinstance(row, dict) and {"score", "completion"} <= set(row)


def make_server(root: Path, port: int) -> ThreadingHTTPServer:
    """A server of the page on 127.0.0.1; port 0 chooses a free one.

    Raises:
        OSError: the port is taken.
    """
    library = Library(root)
    page = html({"live": POLL_SECONDS, "written": name_of(root), "runs": []}, connect="'self'")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urlsplit(self.path)
            if not _LOCAL.fullmatch(self.headers.get("Host") or ""):
                return self._send(403, "text/plain", "this server answers to 127.0.0.1 and localhost only")
            if address.path == "/":
                return self._send(200, "text/html", page)
            try:
                answer = library.answer(address.path, parse_qs(address.query, keep_blank_values=True))
            except _FAULTS as error:
                if isinstance(error, DataError | OSError | KeyError):
                    return self._send(404, "text/plain", str(error))
                return self._send(400, "text/plain", f"not a request of this page: {error}")
            return self._send(200, "application/json", as_json(answer))

        do_HEAD = do_GET

        def _send(self, status: int, kind: str, text: str) -> None:
            body = text.encode(errors="backslashreplace")  # an error may name a path that is not UTF-8
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            if self.command != "HEAD":
                with suppress(ConnectionError):  # a page that is closed meanwhile
                    self.wfile.write(body)

        def log_message(self, format: str, *values: Any) -> None:
            pass  # the terminal is for the address

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)
