"""What a person sees of a run: live bars in a terminal, plain lines in a log file or CI.

It observes and never decides: a number that is missing is left out, and nothing here reaches `metrics.jsonl`.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tinyzero_trainer.monitoring.metrics_log import ACCURACY, LENGTH, REWARD, THROUGHPUT, task_accuracy_key

STEP_SECONDS = 2.0
"""Plain output: least time between two lines about steps."""

PHASE_SECONDS = 5.0
"""Plain output: least time between two lines about a phase."""

LINE_WIDTH = 80
"""Plain output: most columns of a line about a step."""

ACCURACY_OF_TASK = re.compile(re.escape(task_accuracy_key("NAME")).replace("NAME", "(.+)"))
SPARKLINE_WIDTH = 40
_BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass
class _Phase:
    """Something that takes a while."""

    name: str
    total: int | None
    unit: str
    started: float
    done: int = 0

    def count(self) -> str:
        return f"{self.done:,}/{self.total:,} {self.unit}".rstrip()

    def __str__(self) -> str:
        return self.name if self.total is None else f"{self.name}: {self.count()}"


@dataclass
class _Training:
    """The steps of this sitting."""

    steps: int
    first: int
    started: float
    done: int
    last_step: float
    metrics: Mapping[str, Any] = field(default_factory=dict)
    rewards: list[float] = field(default_factory=list)

    def count(self, now: float) -> str:
        """How far it is, and the time left by the mean of this sitting's steps, evaluations between them included."""
        text = f"step {self.done:,}/{self.steps:,}"
        if not self.first < self.done < self.steps:
            return text
        mean = (self.last_step - self.started) / (self.done - self.first)
        return f"{text}  {_duration(max(0.0, mean * (self.steps - self.done) - (now - self.last_step)))} left"


class Progress:
    """Progress of a run. `note` and `advance` may be called from any thread, the rest from one.

    Example:
        >>> with Display() as display:
        ...     display.phase("evaluating", total=1024, unit="problems")
        ...     display.advance(512)
        ...     display.end_phase()
    """

    def __init__(self, console: Console | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            console: where progress goes; stderr if None, so that stdout holds results only.
            clock: seconds, for the time left and for how often plain lines come.
        """
        self._console = console or Console(stderr=True, highlight=False, emoji=False)
        self._results = console or Console(highlight=False, emoji=False)
        self._clock = clock
        self._phase: _Phase | None = None
        self._training: _Training | None = None
        self._spoken = float("-inf")
        self._spinner = Spinner("dots")
        self._live: Live | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=4)

    def phase(self, name: str, total: int | None = None, unit: str = "") -> None:
        """Begin something that takes a while, in place of what was going on.

        Args:
            name: what is done, such as "loading the model".
            total: how many there are to do, or None where that is not known.
            unit: of what, such as "problems".
        """
        self._phase = _Phase(name, total, unit, self._clock())
        if not self._live:
            self._say(str(self._phase))

    def advance(self, count: int = 1) -> None:
        """So many more of the phase are done; nothing happens where there is no phase."""
        phase = self._phase  # which another thread may end meanwhile
        if phase is None:
            return
        phase.done += count
        if not self._live and self._clock() - self._spoken >= PHASE_SECONDS:
            self._say(str(phase))

    def end_phase(self) -> None:
        """The phase is over."""
        self._phase = None

    def train(self, steps: int, done: int = 0) -> None:
        """Begin training.

        Args:
            steps: of the whole run.
            done: steps that earlier sittings did.
        """
        self.end_phase()
        now = self._clock()
        self._training = _Training(steps, done, now, done, now)
        if not self._live:
            self._say(f"training: {steps - done:,} steps")

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """A step is done.

        Args:
            step: its number, from 1.
            metrics: by the names in metrics_log.py.
        """
        training = self._training
        if training is None:
            return
        now = self._clock()
        training.done, training.metrics, training.last_step = step, metrics, now
        if (reward := metrics.get(REWARD)) is not None:
            training.rewards.append(reward)
        due = now - self._spoken >= STEP_SECONDS or step in (training.first + 1, training.steps)
        if not self._live and due:
            self._say(_step_line(training.count(now), metrics))

    def held_out(self, step: int, accuracies: Mapping[str, float]) -> None:
        """Held-out accuracy on each task after a step; 0 = before training."""
        when = f"after step {step:,}" if step else "before training"
        parts = [_percent(accuracy) for accuracy in accuracies.values()]
        if len(accuracies) > 1:
            parts = [f"{name} {part}" for name, part in zip(accuracies, parts, strict=True)]
        self.note(f"held-out accuracy {when}: {', '.join(parts)}")

    def note(self, text: str) -> None:
        """One line that stays."""
        self._console.print(text, soft_wrap=True, markup=False)

    def done(self, *lines: str) -> None:
        """End the bars and print the results, to stdout."""
        self.close()
        for line in lines:
            self._results.print(line, soft_wrap=True, markup=False)

    def close(self) -> None:
        """End the bars."""
        self.end_phase()
        if self._live:
            self._live.stop()

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _say(self, text: str) -> None:
        self._spoken = self._clock()
        self.note(text)

    def _render(self) -> RenderableType:
        """The live part: the steps, their numbers, the reward so far, and below them the phase."""
        parts: list[RenderableType] = []
        now, training, phase = self._clock(), self._training, self._phase
        if training is not None:
            parts.append(_bar(training.done, training.steps, training.count(now)))
            if training.metrics:
                parts.append(Text(_summary(training.metrics)))
                if by_task := _by_task(training.metrics):
                    parts.append(Text(by_task))
            if len(training.rewards) > 1:
                parts.append(Text(f"reward so far  {sparkline(training.rewards)}", style="dim"))
        if phase is not None:
            self._spinner.update(text=Text(f"{phase.name}  {_duration(now - phase.started)}"))
            parts.append(self._spinner)
            if phase.total is not None:
                parts.append(_bar(phase.done, phase.total, phase.count()))
        return Group(*parts)


def outcome_line(before: float, after: float, *, problems: int, temperature: float, task: str | None = None) -> str:
    """What a run achieved, in one line; `task` says on which, where there are several.

    Example:
        >>> outcome_line(0.231, 0.49, problems=1024, temperature=1.0)
        'held-out accuracy: 23.1 % -> 49.0 % (+25.9 points; 1,024 problems at T=1)'
    """
    gain = f"{100 * (after - before):+.1f} points; {problems:,} problems at T={temperature:g}"
    return f"{task or 'held-out accuracy'}: {_percent(before)} -> {_percent(after)} ({gain})"


def _bar(done: int, total: int, text: str) -> Table:
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True)
    grid.add_row(ProgressBar(total, done), text)
    return grid


def sparkline(values: Sequence[float], width: int = SPARKLINE_WIDTH) -> str:
    """Values from lowest to highest as blocks; more than `width` of them are averaged in equal runs.

    Example:
        >>> sparkline([0, 1, 2, 3])
        '▁▃▆█'
    """
    count = min(width, len(values))
    edges = [len(values) * place // count for place in range(count + 1)] if count else [0]
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
    low, high = min(means, default=0.0), max(means, default=0.0)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((mean - low) * scale)] for mean in means)


def _summary(metrics: Mapping[str, Any]) -> str:
    """The numbers of a step that a person watches; those that are missing are left out."""
    shown = {
        REWARD: lambda value: f"reward {value:.3f}",
        ACCURACY: lambda value: f"accuracy {_percent(value)}",
        LENGTH: lambda value: f"length {value:,.0f}",
        THROUGHPUT: lambda value: f"{value:,.0f} tokens/s",
    }
    return "  ".join(form(metrics[name]) for name, form in shown.items() if metrics.get(name) is not None)


def _step_line(count: str, metrics: Mapping[str, Any]) -> str:
    """One line for a step: with several tasks the accuracy of each in place of the mean, as far as there is room."""
    by_task = _by_task(metrics)
    reward = f"reward {metrics[REWARD]:.3f}  " if metrics.get(REWARD) is not None else ""
    line = f"{count}  {reward}{by_task}"
    return line if by_task and len(line) <= LINE_WIDTH else f"{count}  {_summary(metrics)}".rstrip()


def _by_task(metrics: Mapping[str, Any]) -> str:
    """Accuracy in training on each task; empty where there is one task only."""
    found = ((ACCURACY_OF_TASK.fullmatch(name), value) for name, value in metrics.items())
    return "  ".join(f"{match[1]} {_percent(value)}" for match, value in found if match and value is not None)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
