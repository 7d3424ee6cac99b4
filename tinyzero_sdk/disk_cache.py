"""What was paid for, kept on disk: scores and answers by their content, and what a judge has spent.

SQLite, so that several processes may share it and a killed one loses nothing. Values are JSON: nothing that is read
from the file can run. They are trusted: the file is its user's alone, and whoever may write to it decides the scores.
"""

import contextlib
import hashlib
import json
import os
import sqlite3
from functools import cached_property
from pathlib import Path
from typing import Any

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.records import Json

FOLDER_VARIABLE = "TINYZERO_CACHE_DIR"
_BUSY_SECONDS = 60.0  # that another process may take to write

_TABLES = """
CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS spent (name TEXT PRIMARY KEY, calls INTEGER NOT NULL, tokens INTEGER NOT NULL) WITHOUT ROWID;
"""


def cache_folder() -> Path:
    """The folder that `TINYZERO_CACHE_DIR` names, or `tinyzero` in the user's own for caches."""
    chosen, shared = os.environ.get(FOLDER_VARIABLE), os.environ.get("XDG_CACHE_HOME")
    return Path(chosen).expanduser() if chosen else Path(shared or Path.home() / ".cache") / "tinyzero"


def content_key(content: Json) -> str:
    text = json.dumps(content, sort_keys=True, default=_plain)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _plain(value: Any) -> Json:
    """What JSON does not know: numpy's as its Python value, in full, and others with their type."""
    return value.tolist() if hasattr(value, "tolist") else [type(value).__name__, str(value)]


class DiskCache:
    """JSON values by key, and counts of calls and tokens by name; opened when it is first used."""

    def __init__(self, name: str) -> None:
        self.path = cache_folder() / f"{name}.sqlite"

    def __del__(self) -> None:
        if "_connection" in self.__dict__:
            self._connection.close()

    @cached_property
    def _connection(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not self.path.exists():
                self.path.touch(mode=0o600)  # SQLite gives its other files the same mode
            connection = sqlite3.connect(
                self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            with contextlib.suppress(sqlite3.OperationalError):  # another process is just switching it on
                connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")  # a crash of the machine may cost the last entries
            connection.executescript(_TABLES)
        except (OSError, sqlite3.Error) as error:
            raise SettingsError(
                f"cannot keep results in {self.path} ({error}); name a folder that can be written in {FOLDER_VARIABLE}"
            ) from error
        return connection

    def get(self, key: str) -> Json:
        """The value, or None if there is none."""
        row = self._connection.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
        return None if row is None else json.loads(row[0])

    def put(self, key: str, value: Json) -> None:
        text = json.dumps(value, default=float)  # as numpy's numbers need
        self._connection.execute("INSERT OR REPLACE INTO entries VALUES (?, ?)", (key, text))

    def spend(self, name: str, *, calls: int = 0, tokens: int = 0) -> tuple[int, int]:
        """Add to what `name` has spent; returns the sums, of all processes since the file was made."""
        row: tuple[int, int] = self._connection.execute(
            "INSERT INTO spent VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE "
            "SET calls = calls + excluded.calls, tokens = tokens + excluded.tokens RETURNING calls, tokens",
            (name, calls, tokens),
        ).fetchone()
        return row
