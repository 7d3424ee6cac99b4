"""The page: its parts from `static/` joined into one HTML file, with the data of the runs.

Nothing is written as HTML but the page's own parts: data is JSON, in which `<` is escaped, and the page inserts it as
text. A strict Content-Security-Policy allows the page's own script and style, by their hashes, and no other.
"""

import base64
import gzip
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tinyzero_sdk.console import finite
from tinyzero_sdk.report.completions import TEXTS, Completions, read_completions
from tinyzero_sdk.report.runs import Run
from tinyzero_sdk.scoring.compare import FEW, remark
from tinyzero_sdk.scoring.statistics import EXACT_FREEDOM, student_t

STYLES = ("uPlot.min.css", "page.css")
SCRIPTS = (
    *("uPlot.iife.min.js", "dom.js", "state.js", "source.js", "panels.js", "curves.js", "completions.js"),
    *("evaluations.js", "configuration.js", "main.js"),
)
_BLOCK_ROWS = 4000  # texts that a page unpacks together
_TOKEN_VALUES = 3_000_000  # tokens whose log-probabilities and entropies a file of a report holds
_PER_TOKEN = ("token_ends", "logprobs", "entropies")


def describe(run: Run, completions: Completions) -> dict[str, Any]:
    """What the page needs of a run before it shows completions."""
    return {
        "name": run.name,
        "isRun": run.is_run,
        "steps": run.steps,
        "axes": run.axes,
        "curves": run.curves,
        "bands": run.bands,
        "config": run.config,
        "leftOut": completions.left_out,
        "completions": len(completions),
        "facets": completions.facets() if len(completions) else {},
        "evaluations": completions.evaluations() if len(completions) else [],
    }


def report(
    runs: Sequence[Run], *, most: int, refresh: float | None = None, warn: Callable[[str], None] = lambda message: None
) -> str:
    """A page that holds all it shows of runs with different names, and loads itself again after `refresh` seconds.

    Of more than `most` completions of a run it has those of evenly chosen problems; `warn` is told what is left out.
    """
    described: list[dict[str, Any]] = []
    blocks: list[tuple[dict[str, Any], bytes]] = []
    for run in runs:
        completions = read_completions(run.completion_files())
        for reason in completions.left_out:
            warn(f"left out of {run.path}: {reason}")
        indices = _sample(completions, most)
        own = list(_blocks(run.name, completions, indices))
        blocks += own
        # Of the first completions the page has the values of each token.
        with_tokens = next((about["first"] for about, _ in own[1:] if not about["tokens"]), len(indices))
        described.append(describe(run, completions) | {"kept": len(indices), "withTokens": with_tokens})
    written = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return html({"runs": described, "refresh": refresh, "written": written}, blocks)


def html(
    page: Mapping[str, Any], blocks: Sequence[tuple[Mapping[str, Any], bytes]] = (), connect: str = "'none'"
) -> str:
    """The page's HTML: what it shows first, and blocks of what it unpacks later, each described and as gzip.

    `connect` is where the script may send requests to, as in a Content-Security-Policy.
    """
    style, script = _joined(STYLES), _joined(SCRIPTS)
    # What the page needs to compare two evaluations.
    quantiles = [student_t(freedom) for freedom in range(1, EXACT_FREEDOM)]
    page = {**page, "studentT": quantiles, "remarks": [remark(changed) for changed in range(FEW)]}
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; connect-src {connect}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "POLICY": policy,
        "STYLE": style,
        "PAGE": as_json(page),
        "SCRIPT": script,
        "BLOCKS": "\n".join(
            f'<script type="application/json">{as_json({**about, "gzip": base64.b64encode(data).decode()})}</script>'
            for about, data in blocks
        ),
    }
    return "".join(parts.get(piece, piece) for piece in _static("page.html").split("%%"))


def as_json(value: Any) -> str:
    """JSON that can stand within a script element; NaN and infinities become null."""
    text = json.dumps(finite(value), ensure_ascii=False, separators=(",", ":"), default=str).replace("<", "\\u003c")
    return text.encode(errors="backslashreplace").decode()  # a lone surrogate as JSON's own escape


def _sample(completions: Completions, most: int) -> np.ndarray:
    """The indices of all completions, or of at most `most`: all those of evenly chosen problems."""
    if len(completions) <= most:
        return np.arange(len(completions))
    _, which, sizes = np.unique(completions.problems(), return_inverse=True, return_counts=True)
    order = np.random.default_rng(0).permutation(len(sizes))
    chosen = order[np.cumsum(sizes[order]) <= most]
    return np.flatnonzero(np.isin(which, chosen))


def _blocks(name: str, completions: Completions, indices: np.ndarray) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The chosen rows of the index, and their texts in groups."""
    if not len(indices):
        return
    index = completions.index.take(pa.array(indices))
    columns = {column: _encoded(index[column].combine_chunks()) for column in index.column_names}
    yield {"run": name, "first": None}, _packed(columns | {"id": completions.ids(indices)})
    left = _TOKEN_VALUES
    names: Sequence[str] = TEXTS.names
    for first in range(0, len(indices), _BLOCK_ROWS):
        table = completions.texts_at(indices[first : first + _BLOCK_ROWS], names)
        if names == TEXTS.names:
            left -= pc.sum(pc.list_value_length(table["token_ends"])).as_py() or 0
            names = TEXTS.names if left >= 0 else [text for text in TEXTS.names if text not in _PER_TOKEN]
        about = {"run": name, "first": first, "tokens": names == TEXTS.names}
        yield about, _packed({column: _encoded(table[column]) for column in names})


def _encoded(column: pa.Array | pa.ChunkedArray) -> Any:
    """A column as JSON: strings that repeat as numbers into a list of them."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_string(column.type) and len(column.unique()) < len(column) / 2:
        column = column.dictionary_encode()
    if pa.types.is_dictionary(column.type):
        column = column.cast(pa.string()).dictionary_encode()  # only the values that occur
        return {"values": column.dictionary.to_pylist(), "codes": column.indices.to_pylist()}
    return [_rounded(value) for value in column.to_pylist()]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, list) and value and isinstance(value[0], tuple):  # a map of Arrow
        return dict(value)
    return [_rounded(entry) for entry in value] if isinstance(value, list) else value


def _packed(value: Any) -> bytes:
    return gzip.compress(as_json(value).encode(), compresslevel=6, mtime=0)


@cache
def _joined(names: Sequence[str]) -> str:
    return "\n".join(map(_static, names))


@cache
def _static(name: str) -> str:
    return (files("tinyzero_sdk.report") / "static" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
