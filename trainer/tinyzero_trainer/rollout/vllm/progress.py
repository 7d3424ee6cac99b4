"""Progress of a batch that may be stopped, or begin once more with another engine."""

from collections.abc import Callable
from threading import Event
from time import monotonic

from tinyzero_trainer.rollout.vllm.call_timeout import POLL, Cancelled


class Progress:
    """Completions finished, counted in the thread of the engine and shown in that of the loop; none of them twice."""

    def __init__(self, on_progress: Callable[[int], None] | None) -> None:
        self._on_progress = on_progress
        self._counted = self._shown = 0
        self._cancelled = Event()
        self._last = monotonic()
        self.raised: BaseException | None = None

    def begin(self) -> None:
        """A batch begins, perhaps once more."""
        self._counted = 0

    def count(self, finished: int) -> None:
        """Raises: Cancelled: nobody wants the rest."""
        self._counted += finished
        if self._cancelled.is_set():
            raise Cancelled

    def cancel(self) -> None:
        """Let `count` end the batch."""
        self._cancelled.set()

    def show(self) -> None:
        """Pass on what was counted; may raise, as `on_progress` may."""
        new, self._shown = max(0, self._counted - self._shown), max(self._counted, self._shown)
        if self._on_progress is not None:
            self._on_progress(new)

    def count_and_show(self, finished: int) -> None:
        """Both, in one thread, and not at every step; what `on_progress` raises is kept in `raised`."""
        self.count(finished)
        if monotonic() - self._last < POLL:
            return
        self._last = monotonic()
        try:
            self.show()
        except BaseException as error:
            self.raised = error
            raise Cancelled from None
