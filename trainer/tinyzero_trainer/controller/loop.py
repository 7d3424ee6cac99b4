"""The training loop: the order of a run's phases.

Line k of `metrics.jsonl` is written before checkpoint k, so resuming from it removes exactly the later lines.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tinyzero_sdk import Task
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.controller.ending import TrainResult, ending, report
from tinyzero_trainer.controller.heldout_eval import HeldOutEvaluation
from tinyzero_trainer.controller.session import Session, Stepper, open_session
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
    """As `tinyzero_trainer.train`, with a resolved configuration; what is still `auto` takes a default for the CPU."""
    opened = open_training(config, resume=resume, tasks=tasks, progress=progress)
    with opened as (session, training_step, evaluation):
        audited = {name: task.task for name, task in session.workers.tasks.items()}
        policy, warn = session.workers.policy, session.workers.display.warn
        waits = policy is not None and not policy.gpu_memory()  # on the CPU, where runs can be repeated to the bit
        with Audit(session.config, audited, session.state.audit, session.run.audit, warn, waits=waits) as audit:
            session.audit = audit
            return take_steps(session, training_step, evaluation)


@contextmanager
def open_training(
    config: TrainConfig,
    *,
    resume: bool = False,
    tasks: Mapping[str, Task] | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[Session, TrainingStep, HeldOutEvaluation]]:
    """A session of reinforcement learning, with its training step and its held-out evaluation."""
    with (
        progress or Progress() as display,
        open_session(config, config, display, resume=resume, tasks=tasks) as session,
    ):
        workers, saved = session.workers, session.saved
        if config.rollout.bias:
            display.log(config.rollout.bias)
        signal = SignalMonitor(config, workers)
        evaluation = HeldOutEvaluation(config, workers, session.eval_tasks, session.stop, signal)
        training_step = TrainingStep(config, workers, session.state, session.stop, saved, signal)
        yield session, training_step, evaluation


def take_steps(session: Session, training_step: Stepper, evaluation: HeldOutEvaluation) -> TrainResult:
    """Take all remaining steps, and report; a signal or an error ends the run earlier, with a checkpoint."""
    state, progress, audit = session.state, session.workers.display, session.audit
    session.checkpointer.warn_of_full_disk()
    with ending(session, training_step):
        if state.pending_metrics is not None:  # of step 0, or of a step that was taken but not logged before a stop
            _evaluate_and_log(session, training_step, evaluation)
        progress.train(training_step.last, done=state.step)
        while state.step < training_step.last:  # which a step of fine-tuning may change
            step = state.step + 1
            rollouts, metrics = training_step.take(step)
            if audit is not None:
                metrics |= audit.step(step, rollouts)
            metrics |= state.add_totals(rollouts, metrics["timing_s/step"]) | session.checkpointer.timing()
            state.step, state.pending_metrics = step, metrics
            session.completions.train(step, rollouts)
            if training_step.failure is not None:  # this step is complete; the next batch could not be collected
                raise training_step.failure
            _evaluate_and_log(session, training_step, evaluation)
            if session.stop.requested:
                raise StopRequested
            session.save_if_due(training_step)
        session.save(training_step)
    return report(session, evaluation, last=training_step.last)


def _evaluate_and_log(session: Session, training_step: Stepper, evaluation: HeldOutEvaluation) -> None:
    """Evaluate if it is due, then write the step's metrics; after a stop in between, the resumed run does both."""
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
