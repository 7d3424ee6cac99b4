"""The training loop: the order of a run's phases.

A step is in step.py, its batch in collector.py, evaluation in heldout_eval.py, saving and resuming in checkpointer.py,
and every way to end in ending.py. Line k of `metrics.jsonl` is written before checkpoint k, so a run resumed from it
cuts exactly what lies past it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tinyzero_sdk import Task
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.controller.ending import ending
from tinyzero_trainer.controller.heldout_eval import HeldOutEvaluation
from tinyzero_trainer.controller.result import TrainResult, report
from tinyzero_trainer.controller.session import Session, Step, open_session
from tinyzero_trainer.controller.signal_monitor import SignalMonitor
from tinyzero_trainer.controller.step import TrainingStep
from tinyzero_trainer.monitoring.progress import Progress
from tinyzero_trainer.rewards.audit import Audit
from tinyzero_trainer.utils.signals import StopRequested


def train(
    config: TrainConfig,
    *,
    resume: bool = False,
    tasks: Mapping[str, Task] | None = None,
    progress: Progress | None = None,
) -> TrainResult:
    """Train by a resolved configuration; arguments and errors are those of `tinyzero_trainer.train`, which resolves it.

    What is still `auto` in it takes a default that suits the CPU.
    """
    with open_training(config, resume=resume, tasks=tasks, progress=progress) as (session, step, evaluation):
        audited = {name: task.task for name, task in session.workers.tasks.items()}
        warn = session.workers.display.warn
        with Audit(session.config, audited, session.state.audit, session.run.audit, warn) as session.audit:
            result = take_steps(session, step, evaluation)
            if session.audit.alarm is not None:  # of the last step
                raise session.audit.alarm
            return result


@contextmanager
def open_training(
    config: TrainConfig,
    *,
    resume: bool = False,
    tasks: Mapping[str, Task] | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[Session, TrainingStep, HeldOutEvaluation]]:
    """The session of `train`, and what it repeats."""
    with (
        progress or Progress() as display,
        open_session(config, config, display, resume=resume, tasks=tasks) as session,
    ):
        workers, stop, saved = session.workers, session.stop, session.saved
        if config.rollout.bias:
            display.log(config.rollout.bias)
        signal = SignalMonitor(config, workers)
        evaluation = HeldOutEvaluation(config, workers, session.evaluated, stop, signal)
        ahead = (None, None) if saved is None else (saved.prefetched, saved.in_flight)
        yield session, TrainingStep(config, workers, session.state, stop, *ahead, signal), evaluation


def take_steps(session: Session, training_step: Step, evaluation: HeldOutEvaluation) -> TrainResult:
    """Take all steps to the last, and report; a signal or an error ends them earlier, with a checkpoint."""
    state, progress, audit, last = session.state, session.workers.display, session.audit, training_step.last
    session.checkpointer.report_disk_use()
    with ending(session, training_step):
        if state.pending_metrics is not None:  # of step 0, or of the last one before the run was stopped
            _evaluate_and_log(session, training_step, evaluation)
        progress.train(last, done=state.step)
        while state.step < training_step.last:
            step = state.step + 1
            rollouts, metrics = training_step.take(step)
            if audit is not None:
                metrics |= audit.step(step, rollouts)
            metrics |= state.add_totals(rollouts, metrics["timing_s/step"]) | session.checkpointer.timing()
            state.step, state.pending_metrics = step, metrics
            session.completions.train(step, rollouts)
            if training_step.failure is not None:
                raise training_step.failure
            _evaluate_and_log(session, training_step, evaluation)
            if audit is not None and audit.alarm is not None:
                raise audit.alarm
            if session.stop.requested:
                raise StopRequested
            session.save_or_wait(training_step)
    return report(session, evaluation, last=training_step.last)


def _evaluate_and_log(session: Session, training_step: Step, evaluation: HeldOutEvaluation) -> None:
    """Evaluate if it is due, then write the step's line; a stop meanwhile leaves both to the resumed run."""
    state, progress, last = session.state, session.workers.display, training_step.last
    step, metrics = state.step, state.pending_metrics
    assert metrics is not None
    if step:
        progress.step(step, metrics)
    if evaluation.is_due(step, last=last):
        metrics = metrics | evaluation.run(step, last=last)
        for decoding, rollouts in evaluation.rollouts:
            session.completions.held_out(step, decoding, rollouts)
    if not step:
        progress.record_startup("evaluation")
        metrics = metrics | progress.ready()
    session.log.append(step, metrics)
    session.trackers.log(step, metrics)
    state.pending_metrics = None
