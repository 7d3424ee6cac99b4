"""Divides the sequences of a batch among the ranks, so that none waits long for another. Pure functions, no torch."""

from collections.abc import Sequence
from heapq import heapreplace
from itertools import pairwise


def balance(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Indices for each rank, in order: the longest sequence first, each to the rank with the fewest tokens so far.

    The fullest rank has at most 4/3 of what the best division gives it (R. L. Graham, Bounds on multiprocessing timing
    anomalies, SIAM Journal on Applied Mathematics 17, 1969).

    Example:
        >>> balance([5, 1, 4, 2, 6], ranks=2)
        [[1, 3, 4], [0, 2]]
    """
    shards: list[list[int]] = [[] for _ in range(ranks)]
    loads = [(0, rank) for rank in range(ranks)]  # a heap
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        tokens, rank = loads[0]
        shards[rank].append(index)
        heapreplace(loads, (tokens + lengths[index], rank))
    return [sorted(shard) for shard in shards]


def seqlen_metrics(lengths: Sequence[int], ranks: int) -> dict[str, float]:
    """`global_seqlen/*`: tokens of a batch on each rank if each took as many sequences in order, and once balanced.

    Example:
        >>> metrics = seqlen_metrics([5, 1, 4, 2], ranks=2)
        >>> [metrics[f"global_seqlen/{name}"] for name in ("min", "max", "balanced_min", "balanced_max")]
        [6.0, 6.0, 6.0, 6.0]
    """
    bounds = [rank * len(lengths) // ranks for rank in range(ranks + 1)]
    in_order = [sum(lengths[start:end]) for start, end in pairwise(bounds)]
    balanced = [sum(lengths[index] for index in shard) for shard in balance(lengths, ranks)]
    metrics = {
        "min": min(in_order),
        "max": max(in_order),
        "minmax_diff": max(in_order) - min(in_order),
        "mean": sum(lengths) / ranks,
        "balanced_min": min(balanced),
        "balanced_max": max(balanced),
    }
    return {f"global_seqlen/{name}": float(value) for name, value in metrics.items()}
