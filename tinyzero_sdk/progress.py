"""Progress of a long command: live bars in a terminal, now and then a line in a pipe, a log file or CI."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, ProgressColumn, Task
from rich.progress import Progress as RichProgress
from rich.spinner import Spinner
from rich.table import Column
from rich.text import Text

from tinyzero_sdk.console import percent

PHASE_SECONDS = 5.0
"""Plain output: shortest time between two lines about a phase."""

QUIET_SECONDS = 30.0
"""Plain output of a command whose result says it all: time before its first line about progress."""

LONGEST_INTERVAL = 60.0
"""Plain output: a command that has run for long prints more rarely, but at least so often, if anything moves."""


class Progress:
    """Progress of a command. `log`, `advance` and `activity` may be used in any thread, the rest in one.

    Example:
        >>> with Progress() as progress:
        ...     progress.phase("evaluating", total=1024, unit="problems")
        ...     progress.advance(512)
        ...     progress.end_phase()
    """

    def __init__(
        self, console: Console | None = None, *, clock: Callable[[], float] = time.monotonic, announce: bool = True
    ) -> None:
        """`console` is None for stderr; without `announce`, plain output begins after `QUIET_SECONDS`."""
        self._console = console or Console(stderr=True, highlight=False, emoji=False)
        self._clock, self._announce = clock, announce
        self._started = clock()
        self._logged = float("-inf")  # when the last plain line about progress was printed
        self._phase: Task | None = None
        # FORCE_COLOR makes a console a terminal also in CI, whose logs cannot move the cursor.
        self._live = self._console.is_interactive and self._console.file.isatty()
        self._bars = self._make_bars()

    def _make_bars(self) -> "Bars":
        return Bars(self._console, self._clock, live=self._live)

    def phase(self, name: str, total: float | None = None, unit: str = "", done: float = 0) -> None:
        """Begin a phase, such as "loading the model", and end the one before.

        Args:
            name: what is going on, in a word that ends in -ing.
            total: of what is counted, if anything is.
            unit: of the total, such as "problems"; "%" shows the fraction.
            done: part of the total that an earlier session has done.
        """
        self.end_phase()
        self._phase = self._bars.add(name, total, done, unit=unit)
        self._log_phase(self._phase, 0.0)

    def advance(self, count: float = 1) -> None:
        """Count more of the phase as done; does nothing outside a phase."""
        if (phase := self._phase) is not None:
            self.update(phase.completed + count)

    def update(self, done: float, name: str | None = None) -> None:
        """Set what is done of the phase, and its name if that has changed; does nothing outside a phase."""
        if (phase := self._phase) is not None:
            with suppress(KeyError):  # another thread has ended it meanwhile
                self._bars.update(phase.id, completed=done, description=name, updated=self._clock())
            self._log_phase(phase, PHASE_SECONDS)

    def end_phase(self) -> None:
        phase, self._phase = self._phase, None
        if phase is not None:
            self._bars.remove_task(phase.id)

    @contextmanager
    def activity(self, name: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """What goes on during the block, too short to have a line in plain output.

        The block gets a function to call with the number of what has been done since its last call.
        """
        task = self._bars.add(name, total, brief=True)

        def advance(count: int) -> None:
            if count:
                self._bars.update(task.id, advance=count, updated=self._clock())

        try:
            yield advance
        finally:
            self._bars.remove_task(task.id)

    def log(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, soft_wrap=True, markup=False)

    def warn(self, text: str) -> None:
        """Print a warning that stays."""
        self._console.print(Text(f"warning: {text}", "yellow"), soft_wrap=True)

    def start(self) -> None:
        """Show bars from now on."""
        self._bars.start()

    def close(self) -> None:
        self.end_phase()
        self._bars.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _log_phase(self, phase: Task, seconds: float) -> None:
        counted, unit = "" if phase.total is None else f": {count(phase)}", phase.fields.get("unit", "%")
        if not phase.completed and counted and unit not in ("", "%"):  # "0/16 problems" reads like a result
            counted = f": {int(phase.total or 0):,} {unit}"
        self._log_after(seconds, phase.description + counted)

    def _log_after(self, seconds: float, text: str) -> None:
        """Print a plain line, unless the last one is younger than this, or much younger than the command."""
        now = self._clock()
        if seconds:
            seconds = max(seconds, min(LONGEST_INTERVAL, (now - self._started) / 50))
        is_quiet = not self._announce and now - self._started < QUIET_SECONDS
        if not self._live and not is_quiet and now - self._logged >= seconds:
            self._logged = now
            self.log(text)


class Bars(RichProgress):
    """A line with a spinner for each phase and activity, and a bar where something is counted."""

    def __init__(self, console: Console, clock: Callable[[], float], *, live: bool) -> None:
        self._spinner, self._now = Spinner("dots"), clock
        columns = (BarColumn(None, table_column=Column(ratio=1)), _CountColumn())
        super().__init__(*columns, console=console, get_time=clock, refresh_per_second=4, expand=True, disable=not live)

    def add(self, name: str, total: float | None, done: float = 0, **fields: Any) -> Task:
        """Add a task of which an earlier session has done some; fields: `unit`, `prefix`, `brief`, `overall`."""
        now = self._now()
        number = self.add_task(name, total=total, completed=done, first=done, updated=now, **fields)  # type: ignore[arg-type]  # floats are fine
        return next(task for task in self.tasks if task.id == number)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from chain.from_iterable(map(self.lines, self.tasks))

    def lines(self, task: Task) -> Iterator[RenderableType]:
        """What is shown of a task."""
        elapsed, brief = task.elapsed or 0.0, "brief" in task.fields
        if brief and elapsed < 1:  # or fast steps flicker
            return
        counted = f"  {count(task)}" if brief and task.total is not None else ""
        spinner = self._spinner.render(self._now())
        assert isinstance(spinner, Text)
        yield Text.assemble(
            spinner, f" {task.description}  {duration(elapsed)}{counted}", overflow="ellipsis", no_wrap=True
        )
        if task.total is not None and not brief:
            yield self.make_tasks_table([task])


class _CountColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(count(task))


def count(task: Task) -> str:
    """What is done of a task, and the time left, from the mean speed of this session.

    It runs down until more is done; when that is overdue, it is what is left if the next one came now. Rich's own
    estimate stands still meanwhile, and uses only the latest seconds.
    """
    done, total, first = task.completed, task.total or 0, task.fields["first"]
    prefix, unit = task.fields.get("prefix", ""), task.fields.get("unit", "")
    text = percent(done / total) if unit == "%" else f"{prefix}{int(done):,}/{int(total):,} {unit}".rstrip()
    now, updated, started = task.get_time(), task.fields["updated"], task.start_time or 0.0
    if not first < done < total or updated - started < 1:
        return text
    on_time = (updated - started) / (done - first) * (total - done) - (now - updated)
    overdue = (now - started) / (done - first + 1) * (total - done - 1)
    if unit == "%" or "overall" in task.fields:  # not counted by ones; a pause between two may be an evaluation
        overdue = 0.0
    return f"{text}  {duration(max(0.0, on_time, overdue))} left"


def duration(seconds: float) -> str:
    """As minutes and seconds, with hours if there are any.

    Example:
        >>> duration(59.6), duration(3600)
        ('1:00', '1:00:00')
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
