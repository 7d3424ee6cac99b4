"""64-bit hashes of whole columns, equal within this process for equal values.

For counting and grouping only; `seeds.py` has hashes that are stable across processes.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tinyzero_sdk.data.arrow import as_text, is_text, to_list
from tinyzero_sdk.records import Json

_HASH_OF_MINUS_ONE = -2  # Python's, and that of -2 too
_ODD = np.uint64(0x9E3779B97F4A7C15)


def hash_array(array: pa.Array) -> np.ndarray:
    """[n] uint64: equal for equal values of an Arrow array."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return hash_array(array.dictionary_decode())
    if pa.types.is_struct(kind) and kind.num_fields:
        total = np.zeros(len(array), np.uint64)
        for child in array.flatten():
            total = _mix(total * _ODD + hash_array(child))
        return _without_nulls(array, total)
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and len(array):
        return _without_nulls(array, _hash_lists(array))
    if isinstance(kind, pa.JsonType) or is_text(kind):  # a prompt has many completions
        distinct = getattr(array, "storage", array).dictionary_encode("encode")
        return hash_values(to_list(distinct.dictionary.cast(kind)))[distinct.indices.to_numpy()]
    return hash_values(to_list(array))


def _hash_lists(array: pa.Array) -> np.ndarray:
    offsets = np.asarray(array.offsets).astype(np.int64)
    first = int(offsets[0])
    values = hash_array(array.values[first : int(offsets[-1])])
    sizes = np.diff(offsets)
    places = (np.arange(len(values)) - np.repeat(offsets[:-1] - first, sizes)).astype(np.uint64)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(_mix(values + places * _ODD), dtype=np.uint64)])
    return _mix(sums[offsets[1:] - first] - sums[offsets[:-1] - first] + sizes.astype(np.uint64) * _ODD)


def _without_nulls(array: pa.Array, hashes: np.ndarray) -> np.ndarray:
    """The hashes, with that of None where the array has no value: an empty list is not the same as none."""
    return np.where(np.asarray(array.is_valid()), hashes, hash_values([None])) if array.null_count else hashes


def hash_values(values: Sequence[Json]) -> np.ndarray:
    """[n] uint64: equal for equal values of plain JSON (within one column, a number and its text are two)."""
    hashes = np.fromiter(map(_hash, values), np.int64, len(values))
    for place in np.flatnonzero(hashes == _HASH_OF_MINUS_ONE).tolist():
        if values[place] == -1:
            hashes[place] = 0x5EED
    return hash_numbers(hashes)


def hash_numbers(numbers: np.ndarray) -> np.ndarray:
    """[n] uint64: different ones for different integers."""
    return _mix(numbers.astype(np.uint64))


def _hash(value: Json) -> int:
    return hash(as_text(value) if isinstance(value, list | dict) else value)


def _mix(numbers: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64: every bit of the input reaches every bit of the output."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
