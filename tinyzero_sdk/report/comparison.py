"""What changed between two evaluations, problem by problem: for `view`, by the code of `tinyzero compare`.

The page computes the same for a report, which has no server; a test holds both equal.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tinyzero_sdk.records import REASONS
from tinyzero_sdk.report.completions import Completions
from tinyzero_sdk.scoring.compare import differences, remark

MOST_FLIPS = 100


def compare(sides: list[tuple[Completions, Mapping[str, Any]]]) -> dict[str, Any]:
    """The differences from the first to the second of two selections, and the problems that changed."""
    old, new = (_Side.of(completions, filters) for completions, filters in sides)
    places = {problem: place for place, problem in enumerate(new.problems)}
    shared = [(place, places[problem]) for place, problem in enumerate(old.problems) if problem in places]
    if not shared:
        return {"problems": 0}
    at = [np.array(own) for own in zip(*shared, strict=True)]
    pairs = [(name, old.means[name][at[0]], new.means[name][at[1]]) for name in old.means]
    known = [pair for pair in pairs if np.isfinite(pair[1] + pair[2]).any()]
    occurring = [pair for pair in known if pair[0] not in REASONS or pair[1].any() or pair[2].any()]
    rates = np.stack(pairs[0][1:], axis=1)  # [problems, 2] accuracy
    change = rates[:, 1] - rates[:, 0]

    def flips(sign: int) -> dict[str, Any]:
        changed = int((sign * change > 0).sum())
        chosen = np.argsort(-sign * change, kind="stable")[: min(changed, MOST_FLIPS)]
        rows = [
            completions.rows(side.first[own[chosen]])
            for (completions, _), side, own in zip(sides, (old, new), at, strict=True)
        ]
        listed = zip(chosen.tolist(), *rows, strict=True)
        first = [
            {"problem": old.problems[at[0][place]], "rates": rates[place].tolist(), "rows": both}
            for place, *both in listed
        ]
        return {"total": changed, "first": first}

    metrics = [asdict(one) for one in differences(occurring, resamples=0)]
    found = {"problems": len(shared), "metrics": metrics, "better": flips(1), "worse": flips(-1)}
    return {**found, "remark": remark(int((change != 0).sum()))}


@dataclass(frozen=True)
class _Side:
    problems: list[str]
    """In the order of their first completions."""

    first: np.ndarray
    """[problems] place of the first completion."""

    means: dict[str, np.ndarray]
    """[problems] by what is compared; NaN where unknown."""

    @classmethod
    def of(cls, completions: Completions, filters: Mapping[str, Any]) -> "_Side":
        places = completions.select(filters)
        places = places[np.asarray(completions.index["problem"].is_valid())[places]]
        chosen = completions.index.take(pa.array(places))
        column = chosen["problem"].combine_chunks()
        codes, first, which = np.unique(column.indices.to_numpy(), return_index=True, return_inverse=True)
        order = np.argsort(first)
        which = np.argsort(order)[which]
        names = column.dictionary.to_pylist()

        def mean(values: np.ndarray) -> np.ndarray:
            present = np.isfinite(values)
            counts = np.bincount(which[present], minlength=len(codes))
            sums = np.bincount(which[present], values[present], len(codes))
            return np.divide(sums, counts, out=np.full(len(codes), np.nan), where=counts > 0)

        numbers = {
            name: chosen[name].cast(pa.float64()).to_numpy() for name in ("correct", "score", "finished", "num_tokens")
        }
        greedily = dict[str, float]()
        if filters.get("decoding") == ["sampled"]:
            greedy = cls.of(completions, {**filters, "decoding": ["greedy"]})
            greedily = dict(zip(greedy.problems, greedy.means["accuracy"].tolist(), strict=True))
        reasons = np.array(chosen["reason"].cast(pa.string()).to_pylist(), object)
        values: dict[str, np.ndarray] = {
            "accuracy": np.nan_to_num(numbers["correct"]),
            "mean score": numbers["score"],
            "greedy accuracy": np.array([greedily.get(name, np.nan) for name in chosen["problem"].to_pylist()], float),
            "cut off": 1 - numbers["finished"],
            "tokens": numbers["num_tokens"],
            **{reason: (reasons == reason).astype(float) for reason in REASONS},
        }
        found = {name: mean(column) for name, column in values.items()}
        return cls([names[code] for code in codes[order].tolist()], places[first[order]], found)
