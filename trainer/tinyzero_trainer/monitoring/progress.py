"""Progress of a run for the user: live bars in a terminal, plain lines in a log file or CI.

A missing metric is left out, and nothing here reaches `metrics.jsonl`.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, ProgressColumn, Task
from rich.progress import Progress as Bars
from rich.spinner import Spinner
from rich.table import Column
from rich.text import Text

from tinyzero_sdk.console import percent, plural
from tinyzero_trainer.monitoring.metrics_log import (
    ACCURACY,
    LENGTH,
    LOSS,
    NO_ANSWER,
    REWARD,
    THROUGHPUT,
    TRUNCATED,
    ZERO_STD,
    task_key,
)

STEP_SECONDS = 2.0
"""Plain output: shortest time between two lines about steps."""

PHASE_SECONDS = 5.0
"""Plain output: shortest time between two lines about a phase."""

LINE_WIDTH = 80
"""Plain output: largest width of a line about a step."""

ACCURACY_OF_TASK = re.compile(task_key("(.+)", "acc"))
_BLOCKS = "▁▂▃▄▅▆▇█"


class Progress:
    """Progress of a run. `log` and `advance` may be called from any thread, the rest from one.

    Example:
        >>> with Progress() as progress:
        ...     progress.phase("evaluating", total=1024, unit="problems")
        ...     progress.advance(512)
        ...     progress.end_phase()
    """

    def __init__(self, console: Console | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`console` is where progress and results go; None = stderr for progress, so that stdout has results only."""
        self._console = console or Console(stderr=True, highlight=False, emoji=False)
        self._results = console or Console(highlight=False, emoji=False)
        self._clock = clock
        self._phase: Task | None = None
        self._training: Task | None = None
        self._started = self._recorded = clock()
        self._startup: dict[str, float] = {}  # seconds of its parts
        self._logged = float("-inf")  # when the last plain line about a step or phase was printed
        self._live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._bars = _Bars(self._console, clock, live=self._live)

    def phase(self, name: str, total: int | None = None, unit: str = "") -> None:
        """Begin a phase, such as "loading the model", and end the one before; `unit` of the total: "problems"."""
        self.end_phase()
        self._phase = self._bars.add(name, total, unit=unit)
        self._log_phase(self._phase, 0.0)

    def advance(self, count: int = 1) -> None:
        """Count more of the phase as done; does nothing outside a phase."""
        if (phase := self._phase) is not None:
            with suppress(KeyError):  # another thread has ended it meanwhile
                self._bars.advance(phase.id, count)
            self._log_phase(phase, PHASE_SECONDS)

    def end_phase(self) -> None:
        phase, self._phase = self._phase, None
        if phase is not None:
            self._bars.remove_task(phase.id)

    def record_startup(self, part: str) -> None:
        """Charge the time since the last record to this part of the start-up."""
        now = self._clock()
        self._startup[part], self._recorded = self._startup.get(part, 0.0) + now - self._recorded, now

    def ready(self) -> dict[str, float]:
        """End the start-up: print its seconds by part, and return them as the metrics `timing_s/startup/*`."""
        shown = (f"{part.replace('_', ' ')} {took:.1f}" for part, took in self._startup.items() if took >= 0.05)
        self.log(f"ready in {self._recorded - self._started:.1f} s: {', '.join(shown)}")
        return {f"timing_s/startup/{part}": seconds for part, seconds in self._startup.items()}

    def train(self, steps: int, done: int = 0) -> None:
        """Begin training; `steps` are the whole run's, `done` those of earlier sessions."""
        self.end_phase()
        self._training = self._bars.add("training", steps, first=done, updated=self._clock(), metrics={}, rewards=[])
        self._bars.update(self._training.id, completed=done)
        self._log_after(0.0, f"training: {plural(steps - done, 'step')}")

    def extend(self, steps: int) -> None:
        """Set the number of the run's steps, where it was not known before."""
        if self._training is not None:
            self._bars.update(self._training.id, total=steps)

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Show a finished step (1-based) and its metrics, by the names in metrics_log.py."""
        if (training := self._training) is None:
            return
        if (reward := metrics.get(REWARD)) is not None:
            training.fields["rewards"].append(reward)
        self._bars.update(training.id, completed=step, metrics=metrics, updated=self._clock())
        ends = step in (training.fields["first"] + 1, training.total)
        self._log_after(0.0 if ends else STEP_SECONDS, _step_line(_count(training), metrics))

    def held_out(
        self, step: int, accuracies: Mapping[str, float], loss: float | None = None, of: str = "accuracy"
    ) -> None:
        """Held-out accuracy, or what `of` names, by task after a step, and the loss; 0 = before training."""
        when = f"after step {step:,}" if step else "before training"
        several = len(accuracies) > 1
        if loss is not None:
            self.log(f"held-out loss {when}: {loss:.4f}")
        shown = [f"{name} " * several + percent(accuracy) for name, accuracy in accuracies.items()]
        if shown:
            self.log(f"held-out {of} {when}: {', '.join(shown)}")

    def log(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, soft_wrap=True, markup=False)

    def warn(self, text: str) -> None:
        """Print a warning that stays."""
        self._console.print(Text(f"warning: {text}", "yellow"), soft_wrap=True)

    def done(self, *lines: str) -> None:
        """End the bars and print the results to stdout."""
        self.close()
        for line in lines:
            self._results.print(line, soft_wrap=True, markup=False)

    def close(self) -> None:
        self.end_phase()
        self._bars.stop()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _log_phase(self, phase: Task, seconds: float) -> None:
        count = "" if phase.total is None else f": {_count(phase)}"
        self._log_after(seconds, f"{phase.description}{count}")

    def _log_after(self, seconds: float, text: str) -> None:
        """Print a plain line, unless the last one is younger than this or bars are shown."""
        if not self._live and self._clock() - self._logged >= seconds:
            self._logged = self._clock()
            self.log(text)


class _Bars(Bars):
    """Bars of the steps and of the phase, with the step's metrics and the phase's name on separate lines."""

    def __init__(self, console: Console, clock: Callable[[], float], *, live: bool) -> None:
        self._spinner = Spinner("dots")
        columns = (BarColumn(None, table_column=Column(ratio=1)), _CountColumn())
        super().__init__(*columns, console=console, get_time=clock, refresh_per_second=4, expand=True, disable=not live)

    def add(self, name: str, total: int | None, **fields: Any) -> Task:
        number = self.add_task(name, total=total, **fields)
        return next(task for task in self.tasks if task.id == number)

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.tasks:
            if "metrics" not in task.fields:
                self._spinner.update(text=Text(f"{task.description}  {_duration(task.elapsed or 0.0)}"))
                yield self._spinner
            if task.total is not None:
                yield self.make_tasks_table([task])
            if metrics := task.fields.get("metrics"):
                lines = (_summary(metrics), _signal(metrics), _accuracy_by_task(metrics))
                yield from (Text(line) for line in lines if line)
            if len(rewards := task.fields.get("rewards", [])) > 1:
                yield Text(f"reward so far  {sparkline(rewards)}", style="dim")


class _CountColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(_count(task))


def _count(task: Task) -> str:
    """Completed units of a task; for training also the time left, from the mean step (with evaluation) of this session.

    Rich's own estimate stands still during a step and uses only the latest steps.
    """
    total = int(task.total or 0)
    if "metrics" not in task.fields:
        return f"{int(task.completed):,}/{total:,} {task.fields['unit']}".rstrip()
    done, first, updated = int(task.completed), task.fields["first"], task.fields["updated"]
    text = f"step {done:,}/{total:,}"
    if not first < done < total:
        return text
    mean = (updated - (task.start_time or 0.0)) / (done - first)
    return f"{text}  {_duration(max(0.0, mean * (total - done) - (task.get_time() - updated)))} left"


def outcome_line(task: str | None, before: float, after: float, problems: int, temperature: float) -> str:
    """The result of a run on its only task (None) or on one of several, in one line.

    Example:
        >>> outcome_line(None, before=0.231, after=0.49, problems=1024, temperature=1.0)
        'held-out accuracy: 23.1% -> 49.0% (+25.9 points; 1,024 problems at T=1)'
    """
    gain = f"{100 * (after - before):+.1f} points; {plural(problems, 'problem')} at T={temperature:g}"
    return f"{task or 'held-out accuracy'}: {percent(before)} -> {percent(after)} ({gain})"


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Values as blocks from lowest to highest; more than `width` of them are averaged in equal intervals.

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
    shown = {
        LOSS: lambda value: f"loss {value:.4f}",
        REWARD: lambda value: f"reward {value:.3f}",
        ACCURACY: lambda value: f"accuracy {percent(value)}",
        LENGTH: lambda value: f"length {value:,.0f}",
        THROUGHPUT: lambda value: f"{value:,.0f} tokens/s",
    }
    return "  ".join(form(metrics[name]) for name, form in shown.items() if metrics.get(name) is not None)


def _step_line(count: str, metrics: Mapping[str, Any]) -> str:
    """The lines for a step: with several tasks the accuracy of each instead of the mean, if it fits."""
    by_task, signal = _accuracy_by_task(metrics), _signal(metrics)
    reward = f"reward {metrics[REWARD]:.3f}  " if metrics.get(REWARD) is not None else ""
    line = f"{count}  {reward}{by_task}"
    if not by_task or len(line) > LINE_WIDTH:
        line = f"{count}  {_summary(metrics)}".rstrip()
    return f"{line}\n  {signal}" if signal else line


def _signal(metrics: Mapping[str, Any]) -> str:
    """The fractions of completions and groups from which nothing can be learnt."""
    shown = {NO_ANSWER: "no answer", TRUNCATED: "cut off", ZERO_STD: "zero-variance groups"}
    found = ((name, metrics.get(key)) for key, name in shown.items())
    return "  ".join(f"{name} {percent(value)}" for name, value in found if value is not None)


def _accuracy_by_task(metrics: Mapping[str, Any]) -> str:
    """Training accuracy on each task; empty where there is only one."""
    found = ((ACCURACY_OF_TASK.fullmatch(name), value) for name, value in metrics.items())
    return "  ".join(f"{match[1]} {percent(value)}" for match, value in found if match and value is not None)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
