"""Several tasks in one run: which one's problem comes next, so that any part of the run has them in proportion."""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Self

from tinyzero_trainer.data.prompts import PromptStream, StreamState
from tinyzero_trainer.types import Prompt, Rollout


def next_share(weights: Sequence[float], counts: Sequence[int]) -> int:
    """The index of the one that comes next.

    Of those that may come without exceeding their share, the one that is due first; the first of equals. After n calls
    each has come n · weight / sum of weights times, within less than 1; taking the one furthest behind breaks that
    bound from seven on (R. Tijdeman, The chairman assignment problem, Discrete Mathematics 32, 1980).

    Example:
        >>> counts = [0, 0]
        >>> for _ in range(6):
        ...     counts[next_share([2, 1], counts)] += 1
        >>> counts
        [4, 2]
    """
    total, place = sum(map(Fraction, weights)), sum(counts) + 1
    shares = [Fraction(weight) / total for weight in weights]  # exact: sums of floats drift
    possible = [index for index, share in enumerate(shares) if counts[index] < share * place]
    return min(possible, key=lambda index: (counts[index] + 1) / shares[index])


class Mixture(Iterator[Prompt]):
    """The training streams of all tasks as one."""

    def __init__(self, streams: Mapping[str, PromptStream], weights: Sequence[float]) -> None:
        assert len(streams) == len(weights)
        self._streams, self._weights = dict(streams), weights

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Prompt:
        streams = list(self._streams.values())
        return next(streams[next_share(self._weights, [stream.progress.taken for stream in streams])])

    def progress(self) -> dict[str, StreamState]:
        """Position of each task's stream, for a checkpoint."""
        return {name: stream.progress for name, stream in self._streams.items()}

    def close_step(self, samples: Sequence[Rollout]) -> dict[str, float]:
        """Update the curricula with all completions of a step; their metrics."""
        metrics: dict[str, float] = {}
        for name, stream in self._streams.items():
            of_task = [sample for sample in samples if sample.prompt.task == name]
            prefix = "curriculum" if len(self._streams) == 1 else f"curriculum/{name}"
            metrics |= {f"{prefix}/{key}": value for key, value in stream.close_step(of_task).items()}
        return metrics
