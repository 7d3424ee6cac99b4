"""A stopwatch for the parts of a step; each thread that works on one has its own."""

from time import perf_counter

import torch


class StepTimer:
    """Wall-clock seconds of the parts of a step."""

    def __init__(self) -> None:
        self._started = self._last = perf_counter()
        self._seconds: dict[str, float] = {}

    @property
    def seconds(self) -> dict[str, float]:
        """Of all parts so far."""
        return dict(self._seconds)

    def record(self, name: str) -> None:
        """Charge the time since the last record to `name`."""
        last = self._last
        self.skip()
        self._seconds[name] = self._seconds.get(name, 0.0) + self._last - last

    def skip(self) -> None:
        """Charge the time since the last record to nothing: another timer measures it."""
        if torch.cuda.is_initialized():  # it is not where actors of Ray have the GPUs, whose calls are waited for
            torch.cuda.synchronize()
        self._last = perf_counter()

    def stop(self) -> dict[str, float]:
        """All parts, and the whole as `step`."""
        return {**self._seconds, "step": perf_counter() - self._started}
