"""Read a run directory, or a file of scored completions: metrics, configuration, and where its completions are.

Tolerant, since the run may be in progress, killed, resumed or made by an older version.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tinyzero_sdk.data.arrow import to_float
from tinyzero_sdk.data.files import ENDINGS
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.scoring.statistics import wilson
from tinyzero_sdk.settings import flatten, read_toml

METRICS, CONFIG = "metrics.jsonl", "config.toml"
MAX_POINTS = 2000  # of a curve: about two for each pixel of a wide screen
_HELD_OUT = re.compile(r"val-core/(?P<task>.+)/acc/mean@\d+")
_AXES = {"tokens": "tokens/overall_total", "seconds": "time/elapsed_s"}  # cumulative metrics to plot against

Curve = tuple[list[int] | None, list[float]]
"""Steps and values; None for `Run.steps`."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a page shows of one run; of a scored file only the completions."""

    name: str
    path: Path
    is_run: bool = True
    steps: list[int] = field(default_factory=list)
    """At most `MAX_POINTS` steps of the run, with the first and the last."""

    axes: Mapping[str, list[float]] = field(default_factory=dict)
    """What `tokens` and `seconds` were at `steps`, where known."""

    curves: Mapping[str, Curve] = field(default_factory=dict)
    bands: Mapping[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    """Both ends of a 95% interval at each point of a curve."""

    config: Mapping[str, str] = field(default_factory=dict)  # values as JSON, by dotted key

    def completion_files(self) -> list[Path]:
        """Its files of completions, in a fixed order."""
        return sorted(self.path.glob("completions/*.parquet")) if self.is_run else [self.path]


def open_run(path: Path, name: str = "") -> Run:
    """A run directory, or a file of scored completions; what is neither is a DataError."""
    name = name or str(path)
    if path.is_file() and path.suffix in ENDINGS:
        return Run(name, path, is_run=False)
    metrics = path / METRICS
    if not metrics.is_file():
        raise DataError(
            f"{path} is not a run or a scored file; expected a directory with {METRICS}, or a .jsonl or .parquet file"
        )
    return _read_run(name, path, (modified(metrics), metrics.stat().st_size, modified(path / CONFIG)))


def modified(path: Path) -> int:
    """When a file was last written, in ns since 1970; 0 where there is none."""
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return 0


@lru_cache(maxsize=32)
def _read_run(name: str, path: Path, version: tuple[int, ...]) -> Run:
    """`version` is that of its files, so that those that change are read again."""
    rows = _read_metrics(path / METRICS)
    steps = [row["step"] for row in rows]
    names = sorted(set().union(*rows) - {"step"})
    values = {key: np.array([to_float(row.get(key)) for row in rows]) for key in names}
    shown = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), MAX_POINTS)).round().astype(int)).tolist()
    curves = {}
    for key, column in values.items():
        present = np.flatnonzero(np.isfinite(column))
        kept = present[keep_extremes(column[present])]
        curves[key] = np.array(steps)[kept].tolist(), column[kept].tolist()
    bands = {}
    for key in names:
        if match := _HELD_OUT.fullmatch(key):
            sizes = dict(zip(steps, values.get(f"val-aux/{match['task']}/size", ()), strict=False))
            at, rates = curves[key]
            shares = [min(max(rate, 0.0), 1.0) for rate in rates]
            ends = [wilson(share, sizes.get(step, 0)) for step, share in zip(at or steps, shares, strict=True)]
            bands[key] = ([low for low, _ in ends], [high for _, high in ends])
    config = read_toml(path / CONFIG) if (path / CONFIG).exists() else {}
    return Run(
        name,
        path,
        steps=[steps[place] for place in shown],
        # A cumulative metric keeps its last value wherever it has none, and is 0 before the first.
        axes={
            axis: np.maximum.accumulate(np.nan_to_num(values[key]))[shown].tolist()
            for axis, key in _AXES.items()
            if key in values
        },
        curves={
            key: (None if at == steps else at, [float(f"{value:.6g}") for value in column])
            for key, (at, column) in curves.items()
            if column
        },
        bands=bands,
        config={key: json.dumps(value, ensure_ascii=False, default=str) for key, value in flatten(config)},
    )


def _read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl` in the order of their steps; one that is half written is none.

    After a resumed run has gone back, its lines replace the older ones from that step on.
    """
    rows: list[dict[str, Any]] = []
    for line in path.read_bytes().splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            while rows and rows[-1]["step"] >= row["step"]:
                rows.pop()
            rows.append(row)
    return rows


def keep_extremes(values: np.ndarray, most: int = MAX_POINTS) -> Sequence[int] | np.ndarray:
    """Indices of at most about `most` values: the least and the greatest of each of `most` / 2 equal stretches.

    Example:
        >>> keep_extremes(np.array([0.0, 1.0, 9.0, 1.0, 0.0, 1.0, 0.0, -5.0, 0.0]), most=4).tolist()
        [0, 2, 5, 7, 8]
    """
    if len(values) <= most:
        return np.arange(len(values))
    bounds = np.linspace(0, len(values), most // 2 + 1).astype(int)
    stretches = [(start, values[start:stop]) for start, stop in pairwise(bounds.tolist())]
    ends = [start + int(pick(part)) for start, part in stretches for pick in (np.argmin, np.argmax)]
    return np.unique([0, *ends, len(values) - 1])
