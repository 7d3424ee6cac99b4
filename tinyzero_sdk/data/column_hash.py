"""64-bit hashes of whole columns, equal within this process for equal values.

For counting and grouping only; `seeds.py` has hashes that are stable across processes.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tinyzero_sdk.data.arrow import as_text, is_text, to_list
from tinyzero_sdk.records import Json
from tinyzero_sdk.seeds import mix

_HASH_OF_MINUS_ONE = -2  # Python's, and that of -2 too


def hash_array(array: pa.Array) -> np.ndarray:
    """[n] uint64: equal for equal values of an Arrow array."""
    kind = array.type
    if isinstance(kind, pa.JsonType) or is_text(kind):  # a prompt has many completions
        distinct = getattr(array, "storage", array).dictionary_encode("encode")
        return hash_values(to_list(distinct.dictionary.cast(kind)))[distinct.indices.to_numpy()]
    return hash_values(to_list(array))


def hash_values(values: Sequence[Json]) -> np.ndarray:
    """[n] uint64: equal for equal values of plain JSON (within one column, a number and its text are two)."""
    hashes = np.fromiter(map(_hash, values), np.int64, len(values))
    for place in np.flatnonzero(hashes == _HASH_OF_MINUS_ONE).tolist():
        if values[place] == -1:
            hashes[place] = 0x5EED
    return hash_numbers(hashes)


def hash_numbers(numbers: np.ndarray) -> np.ndarray:
    """[n] uint64: different ones for different integers."""
    return mix(numbers.astype(np.uint64))


def _hash(value: Json) -> int:
    return hash(as_text(value) if isinstance(value, list | dict) else value)
