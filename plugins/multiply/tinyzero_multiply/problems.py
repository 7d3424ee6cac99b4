"""Problems by the hundred thousand, and how hard they are.

    difficulty = digits of both factors + carried / (digits of the first × digits of the second)

`carried` is the sum of all that is carried from one column into the next, however the work is laid out: each carry
takes 10 from a column and gives 1 to the next, so that the digit sum S shrinks by 9 for each 1 carried, and

    carried = (S(num1) · S(num2) - S(num1 · num2)) / 9

The quotient is what a product of two digits costs on the mean, from 0 (100 × 999) to below 9 (999 × 999: 78 / 9).
"""

from typing import TYPE_CHECKING

from tinyzero_sdk import ItemColumns
from tinyzero_sdk.seeds import derive_seed, integers_from_bits, random_bits

if TYPE_CHECKING:
    import numpy as np

# numpy and pyarrow are imported where problems are made: who only scores answers does not wait for them.


def generate(split: str, size: int, seed: int, start: int, digits: tuple[int, int]) -> ItemColumns:
    """Candidates start … start + size - 1; each factor is uniform over the numbers of its length."""
    import numpy as np
    import pyarrow as pa

    words = random_bits(derive_seed("multiply", split, seed), np.arange(start, start + size), 2)  # [size, 2]
    low, high = np.array([(10 ** (count - 1), 10**count - 1) for count in digits]).T
    num1, num2 = map(pa.array, integers_from_bits(words, low, high).T)
    product = pa.array(num1.to_numpy() * num2.to_numpy())  # [size]; below 10**18, so within 64 bits
    return ItemColumns(
        ground_truth=pa.StructArray.from_arrays([num1, num2, product], ["num1", "num2", "product"]),
        data=pa.StructArray.from_arrays([num1, num2], ["num1", "num2"]),
    )


def difficulty_of(num1: int, num2: int) -> float:
    """The difficulty of one problem.

    Example:
        >>> difficulty_of(100, 999), difficulty_of(12, 12), difficulty_of(25, 25)
        (6.0, 4.0, 5.0)
    """
    digits1, digits2, product = map(str, (num1, num2, num1 * num2))
    carried = (_digit_sum(digits1) * _digit_sum(digits2) - _digit_sum(product)) // 9
    return len(digits1) + len(digits2) + carried / (len(digits1) * len(digits2))


def _digit_sum(digits: str) -> int:
    return sum(map(int, digits))


def column_difficulties(items: ItemColumns) -> "np.ndarray":
    """The difficulty of each item: [n] floats."""
    num1, num2, product = (items.ground_truth.field(name).to_numpy() for name in ("num1", "num2", "product"))
    (sum1, count1), (sum2, count2), (total, _) = map(_sums_and_counts, (num1, num2, product))
    return count1 + count2 + (sum1 * sum2 - total) // 9 / (count1 * count2)


def _sums_and_counts(numbers: "np.ndarray") -> "tuple[np.ndarray, np.ndarray]":
    """The digit sums of n numbers, and how many digits they have (0 has one): [n] each."""
    import numpy as np

    sums, counts = np.zeros_like(numbers), np.zeros_like(numbers)
    while numbers.any():
        sums, counts = sums + numbers % 10, counts + (numbers > 0)
        numbers = numbers // 10
    return sums, np.maximum(counts, 1)
