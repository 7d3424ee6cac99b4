"""Which sequences of a batch each rank takes, so that none waits long for another. Pure functions; no torch in here."""

from collections.abc import Sequence
from heapq import heapreplace
from itertools import pairwise


def balance(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Rows for each rank, of about as many tokens: the longest first, each to the rank that has fewest so far.

    None has more than another by more than the longest sequence, and the fullest at most 4/3 of what the best division
    gives it (R. L. Graham, Bounds on multiprocessing timing anomalies, SIAM Journal on Applied Mathematics 17, 1969).
    Rows keep their order, and every process that asks is told the same.

    Args:
        lengths: tokens of each sequence.
        ranks: how many there are; those behind the last sequence get none.

    Example:
        >>> balance([5, 1, 4, 2, 6], ranks=2)
        [[1, 3, 4], [0, 2]]
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [(0, rank) for rank in range(ranks)]  # a heap
    for row in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        tokens, rank = loads[0]
        shares[rank].append(row)
        heapreplace(loads, (tokens + lengths[row], rank))
    return [sorted(share) for share in shares]


def share_metrics(lengths: Sequence[int], ranks: int) -> dict[str, float]:
    """`global_seqlen/*`: tokens of a batch on each rank if each took as many sequences in order, and once balanced.

    Args:
        lengths: tokens of each sequence.
        ranks: how many there are.

    Example:
        >>> found = share_metrics([5, 1, 4, 2], ranks=2)
        >>> [found[f"global_seqlen/{name}"] for name in ("min", "max", "balanced_min", "balanced_max")]
        [6.0, 6.0, 6.0, 6.0]
    """
    bounds = [rank * len(lengths) // ranks for rank in range(ranks + 1)]
    in_order = [sum(lengths[start:end]) for start, end in pairwise(bounds)]
    balanced = [sum(lengths[row] for row in share) for share in balance(lengths, ranks)]
    found = {
        "min": min(in_order),
        "max": max(in_order),
        "minmax_diff": max(in_order) - min(in_order),
        "mean": sum(lengths) / ranks,
        "balanced_min": min(balanced),
        "balanced_max": max(balanced),
    }
    return {f"global_seqlen/{name}": float(value) for name, value in found.items()}
