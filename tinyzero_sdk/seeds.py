"""Seeds by hashing, and random bits that depend only on an item's index.

Adding a seed to an index makes seed 1 and seed 2 share nearly all their items; hashing does not.
"""

import hashlib
from typing import TYPE_CHECKING

from tinyzero_sdk.records import Split

if TYPE_CHECKING:
    import numpy as np

_MASK = (1 << 64) - 1


def derive_seed(*parts: str | int) -> int:
    """A 64-bit seed from names and numbers; different parts give unrelated seeds.

    Example:
        >>> derive_seed("countdown", "train", 0) == derive_seed("countdown", "train", 1)
        False
    """
    # The length before each part keeps ("ab", "c") and ("a", "bc") apart; the type keeps 1 and "1" apart.
    text = "".join(f"{type(part).__name__}{len(str(part))}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def split_of_key(key: str, test_fraction: float = 1 / 16) -> Split:
    """The split a problem belongs to, by the hash of its canonical key.

    Seed and index do not enter, so the same problem is on the same side in every dataset.
    """
    return "test" if key_hash(key) < test_fraction * 2.0**64 else "train"


def key_hash(key: str) -> int:
    """64 bits of a problem's canonical key; those of the least hashes are held out."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8, person=b"tz-split").digest(), "little")


def random_bits(seed: int, indices: "np.ndarray", draws: int) -> "np.ndarray":
    """Random 64-bit words for many items at once: a counter-based generator (splitmix64 finaliser).

    Args:
        seed: from `derive_seed`.
        indices: [n] non-negative integers.
        draws: number of words for each item.

    Returns:
        [n, draws] uint64; row i depends on `seed` and `indices[i]` only.
    """
    import numpy as np

    words = np.asarray(indices, dtype=np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15)
    words = mix(words ^ np.uint64(seed & _MASK))
    steps = np.arange(1, draws + 1, dtype=np.uint64)[None, :] * np.uint64(0xD1342543DE82EF95)
    return mix(words + steps)  # [n, draws]


def mix(words: "np.ndarray") -> "np.ndarray":
    """The finaliser of splitmix64: every bit of a 64-bit word reaches every bit of the result."""
    import numpy as np

    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def integers_from_bits(words: "np.ndarray", low: "int | np.ndarray", high: "int | np.ndarray") -> "np.ndarray":
    """Map random words to integers in low … high, both inclusive (spans below 2**32).

    The bias of the multiply-and-shift method is below span / 2**32.
    """
    import numpy as np

    span = (np.asarray(high) - np.asarray(low) + 1).astype(np.uint64)
    return (((words >> np.uint64(32)) * span) >> np.uint64(32)).astype(np.int64) + low
