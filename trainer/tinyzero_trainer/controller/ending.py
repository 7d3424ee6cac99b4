"""The end of a run: where a signal or an error stops it, a checkpoint of an intact policy; otherwise its results."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.config.resume import resume_command
from tinyzero_trainer.controller.checkpointer import how_to_resume
from tinyzero_trainer.controller.heldout_eval import HeldOutEvaluation
from tinyzero_trainer.controller.session import Session, Stepper
from tinyzero_trainer.monitoring.metrics_log import HELD_OUT_LOSS, held_out_accuracies, read_metrics
from tinyzero_trainer.monitoring.plot import plot_curve
from tinyzero_trainer.monitoring.progress import outcome_line
from tinyzero_trainer.utils.oom import OutOfMemoryError
from tinyzero_trainer.utils.signals import Interrupted, Stopped, StopRequested


@dataclass(frozen=True, slots=True)
class Change:
    """Held-out accuracy on one task before and after training: sampled, on the same problems both times."""

    before: float | None  # none = not measured, of a new model
    after: float


@dataclass(frozen=True, slots=True)
class TrainResult:
    """A finished run's directory, and its accuracy on each task, by the task's name in the run."""

    output: Path
    accuracy: Mapping[str, Change]


@contextmanager
def ending(session: Session, stepper: Stepper) -> Iterator[None]:
    """Save where a signal or an error ends the block and has left the policy intact.

    An error says in addition how to resume. Once a signal has asked the run to stop, it ends with the signal's exit
    code: as `Interrupted`, or as `Stopped` by an error.
    """
    stop = session.stop
    try:
        try:
            yield
        except StopRequested:
            session.save(stepper)
            raise
        except Exception as error:  # of any type: a whole step may not be saved yet
            if getattr(error, "policy_intact", True) and stepper.policy_intact and session.state.step:
                _save_after(error, session, stepper)
            raise
    except StopRequested:
        assert stop.signal is not None
        raise Interrupted(stop.signal, session.state.step, resume_command(session.saved_config)) from None
    except OutOfMemoryError:  # its advice says with which settings to resume
        raise
    except TinyZeroError as error:
        error.args = (f"{error}; {how_to_resume(session.run, session.saved_config)}",)
        if stop.signal is None:
            raise
        raise Stopped(stop.signal, f"with an error: {error}") from error
    except Exception:
        session.workers.display.warn(f"an error ends the run; {how_to_resume(session.run, session.saved_config)}")
        raise


def _save_after(error: Exception, session: Session, stepper: Stepper) -> None:
    """Save a run that an error ends; what else fails meanwhile is a warning."""
    try:
        session.save(stepper)
    except Exception as another:  # of any type, as the first may have broken anything
        if str(another) != str(error):
            session.workers.display.warn(f"while the run was saved: {another}")


def report(session: Session, evaluation: HeldOutEvaluation, *, last: int) -> TrainResult:
    """Draw the curve of a run and print what it reached by step `last`."""
    run, workers = session.run, session.workers
    rows = {int(row["step"]): row for row in read_metrics(run.metrics)}
    start, end = rows.get(0, {}), rows.get(last, {})
    before, after = held_out_accuracies(start), held_out_accuracies(end)
    accuracy = {name: Change(before.get(name), after[name]) for name in evaluation.prompts if name in after}
    outcomes = []
    if HELD_OUT_LOSS in start and HELD_OUT_LOSS in end:
        outcomes.append(f"held-out loss: {start[HELD_OUT_LOSS]:.4f} -> {end[HELD_OUT_LOSS]:.4f}")
    for name, change in accuracy.items():
        title, count = name if len(accuracy) > 1 else None, len(evaluation.prompts[name])
        outcomes.append(outcome_line(title, change.before, change.after, count, session.saved_config.eval.temperature))
    try:
        plot_curve(run.metrics, run.curve, tasks=list(workers.tasks), model=workers.language_model.name)
        curve = f"curve: {run.curve}"
    except TinyZeroError as error:  # a picture must not cost the result
        curve = f"no curve: {error}"
    audited = [] if session.audit is None else session.audit.summary()
    model = f"model: {run.checkpoints / f'step_{last}'}"
    command = f"report: tinyzero report {quote(str(run.path))}"
    workers.display.done(*outcomes, *audited, curve, *session.completions.summary(), model, command)
    return TrainResult(run.path, accuracy)
