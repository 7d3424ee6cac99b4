"""Rows written to a file, of the format that its name says, and read as `--format` says."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from tinyzero_sdk.scoring.readers import find_reader

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def write_rows(path, rows):
    """Write rows as Parquet or JSON Lines; the path."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_format(name, path):
    """The rows and the bad rows that a reader finds."""
    blocks = list(find_reader(name, path).read(path))
    assert blocks[-1].progress == 1.0
    rows = [row for block in blocks for row in block.rows()]
    assert len(rows) == sum(len(block.numbers) for block in blocks)
    return rows, [bad for block in blocks for bad in block.bad]
