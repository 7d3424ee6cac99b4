"""What changed between two evaluations, problem by problem: for `view`, by the code of `tinyzero compare`.

The page computes the same for a report, which has no server; a test holds both equal.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tinyzero_sdk.report.completions import Completions
from tinyzero_sdk.scoring.compare import differences

MOST_FLIPS = 100


def compare(sides: list[tuple[Completions, Mapping[str, Any]]]) -> dict[str, Any]:
    """The difference in accuracy from the first to the second of two selections, and the problems that changed."""
    old, new = (_problems(completions, filters) for completions, filters in sides)
    shared = [problem for problem in old if problem in new]
    if not shared:
        return {"problems": 0}
    rates = np.array([[old[problem][0], new[problem][0]] for problem in shared])
    (found,) = differences([("accuracy", *rates.T)], resamples=0)
    change = rates[:, 1] - rates[:, 0]

    def flips(sign: int) -> dict[str, Any]:
        changed = int((sign * change > 0).sum())
        places = np.argsort(-sign * change, kind="stable")[: min(changed, MOST_FLIPS)].tolist()
        pairs = [
            completions.rows(np.array([of[shared[place]][1] for place in places], np.int64))
            for (completions, _), of in zip(sides, (old, new), strict=True)
        ]
        listed = [
            {"problem": shared[place], "rates": rates[place].tolist(), "rows": rows}
            for place, *rows in zip(places, *pairs, strict=True)
        ]
        return {"total": changed, "first": listed}

    return {
        "problems": len(shared),
        "difference": found.difference,
        "interval": found.interval,
        "better": flips(1),
        "worse": flips(-1),
    }


def _problems(completions: Completions, filters: Mapping[str, Any]) -> dict[str, tuple[float, int]]:
    """Rate of right completions of each problem, and the place of its first one."""
    places = completions.select(filters)
    chosen = completions.index.select(["problem", "correct"]).take(pa.array(places)).combine_chunks()
    column = chosen["problem"].combine_chunks()
    codes, first, which = np.unique(column.indices.fill_null(-1).to_numpy(), return_index=True, return_inverse=True)
    rates = np.bincount(which, np.asarray(chosen["correct"].fill_null(False))) / np.bincount(which)
    texts = column.dictionary.to_pylist()
    order = np.argsort(first)
    return {
        texts[code]: (rate, place)
        for code, rate, place in zip(
            codes[order].tolist(), rates[order].tolist(), places[first[order]].tolist(), strict=True
        )
        if code >= 0
    }
