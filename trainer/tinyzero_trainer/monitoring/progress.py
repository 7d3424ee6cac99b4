"""Progress of a run for the user: live bars in a terminal, plain lines in a log file or CI.

A missing metric is left out, and nothing here reaches `metrics.jsonl`.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import Task
from rich.text import Text

from tinyzero_sdk import progress
from tinyzero_sdk.console import percent, plural
from tinyzero_trainer.monitoring.metrics_log import (
    ACCURACY,
    FALSE_POSITIVES,
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

LINE_WIDTH = 80
"""Plain output: largest width of a line about a step."""

ACCURACY_OF_TASK = re.compile(task_key("(.+)", "acc"))


class Progress(progress.Progress):
    """Progress of a run: phases, then steps with their metrics."""

    def __init__(self, console: Console | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`console` is where progress and results go; None = stderr for progress, so that stdout has results only."""
        super().__init__(console, clock=clock)
        self._results = console or Console(highlight=False, emoji=False)
        self._training: Task | None = None
        self._recorded = self._started
        self._startup: dict[str, float] = {}  # seconds of its parts

    def _make_bars(self) -> "_Bars":
        return _Bars(self._console, self._clock, live=self._live)

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
        self._training = self._bars.add("training", steps, done, overall=True, prefix="step ", metrics={})
        self._log_after(0.0, f"training: {plural(steps - done, 'step')}")

    def extend(self, steps: int) -> None:
        """Set the number of the run's steps, where it was not known before."""
        if self._training is not None:
            self._bars.update(self._training.id, total=steps)

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Show a finished step (1-based) and its metrics, by the names in metrics_log.py."""
        if (training := self._training) is None:
            return
        self._bars.update(training.id, completed=step, metrics=metrics, updated=self._clock())
        ends = step in (training.fields["first"] + 1, training.total)
        self._log_after(0.0 if ends else STEP_SECONDS, _step_line(progress.count(training), metrics))

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

    def done(self, *lines: str) -> None:
        """End the bars and print the results to stdout."""
        self.close()
        for line in lines:
            self._results.print(line, soft_wrap=True, markup=False)


class _Bars(progress.Bars):
    """With the steps' bar and the metrics of the last step."""

    def lines(self, task: Task) -> Iterator[RenderableType]:
        if "metrics" not in task.fields:
            yield from super().lines(task)
            return
        yield self.make_tasks_table([task])
        metrics = task.fields["metrics"]
        yield from (Text(line) for line in (_summary(metrics), _signal(metrics), _accuracy_by_task(metrics)) if line)


def outcome_line(task: str | None, before: float | None, after: float, problems: int, temperature: float) -> str:
    """The result of a run on its only task (None) or on one of several, in one line; `before` of a new model is None.

    Example:
        >>> outcome_line(None, before=0.231, after=0.49, problems=1024, temperature=1.0)
        'held-out accuracy: 23.1% -> 49.0% (+25.9 points; 1,024 problems at T=1)'
    """
    name, measured = task or "held-out accuracy", f"{plural(problems, 'problem')} at T={temperature:g}"
    if before is None:
        return f"{name}: {percent(after)} ({measured})"
    return f"{name}: {percent(before)} -> {percent(after)} ({100 * (after - before):+.1f} points; {measured})"


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
    """The fractions of completions and groups from which nothing can be learnt, or nothing good."""
    shown = {NO_ANSWER: "no answer", TRUNCATED: "cut off", ZERO_STD: "zero-variance groups"}
    if metrics.get(FALSE_POSITIVES):
        shown[FALSE_POSITIVES] = "false rewards"
    values = ((name, metrics.get(key)) for key, name in shown.items())
    return "  ".join(f"{name} {percent(value)}" for name, value in values if value is not None)


def _accuracy_by_task(metrics: Mapping[str, Any]) -> str:
    """Training accuracy on each task; empty where there is only one."""
    matches = ((ACCURACY_OF_TASK.fullmatch(name), value) for name, value in metrics.items())
    return "  ".join(f"{match[1]} {percent(value)}" for match, value in matches if match and value is not None)
