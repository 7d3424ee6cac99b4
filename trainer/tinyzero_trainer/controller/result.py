"""What a finished run has reached: the accuracy before and after it, printed and drawn."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from tinyzero_sdk.errors import DataError, TinyZeroError
from tinyzero_trainer.controller.heldout_eval import HeldOutEvaluation
from tinyzero_trainer.controller.session import Session
from tinyzero_trainer.monitoring.metrics_log import HELD_OUT_LOSS, held_out_accuracies, read_metrics
from tinyzero_trainer.monitoring.plot import plot_curve
from tinyzero_trainer.monitoring.progress import outcome_line


@dataclass(frozen=True, slots=True)
class Change:
    """Held-out accuracy on one task before and after training: sampled, on the same problems both times."""

    before: float | None
    """None = not measured, of a new model."""

    after: float


@dataclass(frozen=True, slots=True)
class TrainResult:
    """A finished run's directory, and its accuracy on each task, by the task's name in the run."""

    output: Path
    accuracy: Mapping[str, Change]


def report(session: Session, evaluation: HeldOutEvaluation, *, last: int) -> TrainResult:
    """Draw the curve of a run and print what it reached by step `last`."""
    run, workers = session.run, session.workers
    lines = dict[int, dict[str, Any]]()
    with suppress(DataError):  # which drawing the curve reports
        lines = {int(line["step"]): line for line in read_metrics(run.metrics)}
    start, end = lines.get(0, {}), lines.get(last, {})  # another program may have cut the file
    before, after = held_out_accuracies(start), held_out_accuracies(end)
    accuracy = {name: Change(before.get(name), after[name]) for name in evaluation.prompts if name in after}
    outcomes = []
    if HELD_OUT_LOSS in start and HELD_OUT_LOSS in end:
        outcomes.append(f"held-out loss: {start[HELD_OUT_LOSS]:.4f} -> {end[HELD_OUT_LOSS]:.4f}")
    for name, change in accuracy.items():
        title, count = name if len(accuracy) > 1 else None, len(evaluation.prompts[name])
        outcomes.append(outcome_line(title, change.before, change.after, count, session.recorded.eval.temperature))
    try:
        plot_curve(run.metrics, run.curve, tasks=list(workers.tasks), model=workers.language_model.name)
        curve = f"curve: {run.curve}"
    except TinyZeroError as error:  # a picture must not cost the result
        curve = f"no curve: {error}"
    audited = [] if session.audit is None else session.audit.summary()
    model = f"model: {run.checkpoints / f'step_{last}'}"
    look = f"look: tinyzero report {quote(str(run.path))}"
    workers.display.done(*outcomes, *audited, curve, *session.completions.summary(), model, look)
    return TrainResult(run.path, accuracy)
