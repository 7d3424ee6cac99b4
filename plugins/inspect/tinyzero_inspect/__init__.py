"""Logs of Inspect: `tinyzero score --format inspect` reads them, and `tinyzero export` writes them."""

from tinyzero_inspect.reader import read
from tinyzero_inspect.writer import export
from tinyzero_sdk.scoring.readers import Reader

READER = Reader(read, export=export)
