"""Rows written to a file, of the format that its name says."""

import json

import pyarrow as pa
import pyarrow.parquet as pq


def write_rows(path, rows):
    """Write rows as Parquet or JSON Lines; the path."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
