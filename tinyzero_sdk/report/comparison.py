"""What changed between two evaluations, problem by problem: for `view`, by the code of `tinyzero compare`.

The page computes the same for a report, which has no server; a test holds both equal.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa

from tinyzero_sdk.records import REASONS
from tinyzero_sdk.report.completions import Completions
from tinyzero_sdk.scoring.compare import Side, codes_of, differences, mean_by_problem, measures, remark

MOST_FLIPS = 100


def compare(sides: list[tuple[Completions, Mapping[str, Any]]]) -> dict[str, Any]:
    """The differences from the first to the second of two selections, and the problems that changed."""
    known: dict[str | None, int] = {}
    both = [_side(completions, filters, known) for completions, filters in sides]
    common = np.logical_and.reduce([np.bincount(side.problems, minlength=len(known)) > 0 for side in both])
    if not common.any():
        return {"problems": 0}
    old, new = (side.within(common) for side in both)
    problems = [name for name, is_common in zip(known, common.tolist(), strict=True) if is_common]
    pairs = [(name, old.mean(name), new.mean(name)) for name in old.columns]
    pairs = [pair for pair in pairs if np.isfinite(pair[1] + pair[2]).any()]
    occurring = [pair for pair in pairs if pair[0] not in REASONS or pair[1].any() or pair[2].any()]
    rates = np.stack([old.mean("accuracy"), new.mean("accuracy")], axis=1)  # [problems, 2]
    change = rates[:, 1] - rates[:, 0]

    def flips(sign: int) -> dict[str, Any]:
        changed = int((sign * change > 0).sum())
        chosen = np.argsort(-sign * change, kind="stable")[: min(changed, MOST_FLIPS)]
        rows = [
            completions.rows(side.numbers[side.first[chosen]])
            for (completions, _), side in zip(sides, (old, new), strict=True)
        ]
        first = [
            {"problem": problems[place], "rates": rates[place].tolist(), "rows": of_both}
            for place, *of_both in zip(chosen.tolist(), *rows, strict=True)
        ]
        return {"total": changed, "first": first}

    return {
        "problems": len(problems),
        "metrics": [asdict(difference) for difference in differences(occurring, resamples=0)],
        "better": flips(1),
        "worse": flips(-1),
        "remark": remark(int((change != 0).sum())),
    }


def _side(completions: Completions, filters: Mapping[str, Any], known: dict[str | None, int]) -> Side:
    """A selection; new problems are added to those that are known."""
    places = completions.select(filters)
    places = places[np.asarray(completions.index["problem"].is_valid())[places]]
    rows = completions.index.take(pa.array(places))
    problems, values, greedily = codes_of(rows["problem"], known), measures(rows), np.full(len(places), np.nan)
    if filters.get("decoding") == ["sampled"]:
        greedy = _side(completions, {**filters, "decoding": ["greedy"]}, known)
        greedily = mean_by_problem(greedy.problems, greedy.columns["accuracy"], len(known))[problems]
    first = {name: values[name] for name in ("accuracy", "mean score")}
    return Side(places, problems, {**first, "greedy accuracy": greedily, **values})
