"""Several tasks in one run: whose problem comes next, so that every stretch of the run has the tasks in proportion."""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Self

from tinyzero_trainer.data.prompts import PromptStream, StreamState
from tinyzero_trainer.types import Prompt, Rollout


def next_share(weights: Sequence[float], counts: Sequence[int]) -> int:
    """Which of several comes next.

    Of those whose share has room for another, the one that must come soonest to keep its share; the first of equals.
    Starting from nothing, after n calls each has come n · weight / sum of weights times, give or take less than 1,
    which taking the one furthest behind does not keep to from seven on (R. Tijdeman, The chairman assignment problem,
    Discrete Mathematics 32, 1980).

    Args:
        weights: above 0.
        counts: how often each has come so far.

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


def some_of_each(samples: Sequence[Rollout], tasks: int, count: int) -> list[Rollout]:
    """The first `count` samples, or where there are several tasks the first of each, as many of one as of another.

    Args:
        samples: of a step.
        tasks: how many there are.
        count: how many samples are wanted, at most.
    """
    taken: dict[str, int] = {}
    chosen = []
    for sample in samples:
        taken[sample.prompt.task] = taken.get(sample.prompt.task, 0) + 1
        if taken[sample.prompt.task] <= max(1, count // tasks):
            chosen.append(sample)
    return chosen[:count]


class Mixture(Iterator[Prompt]):
    """The training streams of all tasks as one, prompt after prompt."""

    def __init__(self, streams: Mapping[str, PromptStream], weights: Sequence[float]) -> None:
        """
        Args:
            streams: by the task's name; where each goes on decides where the mixture does.
            weights: of each.
        """
        assert len(streams) == len(weights)
        self._streams, self._weights = dict(streams), weights

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Prompt:
        streams = list(self._streams.values())
        return next(streams[next_share(self._weights, [stream.progress.taken for stream in streams])])

    def progress(self) -> dict[str, StreamState]:
        """How far each task has come, for a checkpoint."""
        return {name: stream.progress for name, stream in self._streams.items()}

    def close_step(self, samples: Sequence[Rollout]) -> dict[str, float]:
        """Let the curricula learn from all completions of a step; their metrics, those of the step included."""
        metrics: dict[str, float] = {}
        for name, stream in self._streams.items():
            own = [sample for sample in samples if sample.prompt.task == name]
            prefix = "curriculum" if len(self._streams) == 1 else f"curriculum/{name}"
            metrics |= {f"{prefix}/{key}": value for key, value in stream.close_step(own).items()}
        return metrics
