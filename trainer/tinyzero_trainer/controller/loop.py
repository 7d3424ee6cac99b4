"""The training loop: the order of a run's phases.

A step is in step.py, its batch in collector.py, evaluation in heldout_eval.py, saving and resuming in checkpointer.py.
Line k of `metrics.jsonl` is written before checkpoint k, so a run resumed from it cuts exactly what lies past it.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from time import monotonic, sleep
from typing import Any, Protocol, TypeVar

from tinyzero_sdk import Task
from tinyzero_sdk.console import plural
from tinyzero_sdk.errors import BrokenTaskError, DataError, TinyZeroError
from tinyzero_sdk.settings import to_mapping
from tinyzero_trainer.advisor.auto import left_open, resolve_auto
from tinyzero_trainer.advisor.engine_choice import resolve_engine
from tinyzero_trainer.checkpoint import store
from tinyzero_trainer.checkpoint.run_directory import RunDirectory, RunDirectoryError
from tinyzero_trainer.config import SftConfig, TrainConfig
from tinyzero_trainer.config.resume import resume_command
from tinyzero_trainer.config.tasks import load_tasks
from tinyzero_trainer.controller.checkpointer import Checkpointer, SavedRun, newest_checkpoint
from tinyzero_trainer.controller.heldout_eval import HeldOutEvaluation
from tinyzero_trainer.controller.in_flight import InFlight
from tinyzero_trainer.controller.rollout_batch import RolloutBatch, SkippedUpdates
from tinyzero_trainer.controller.signal_monitor import SignalMonitor
from tinyzero_trainer.controller.state import TrainerState
from tinyzero_trainer.controller.step import TrainingStep
from tinyzero_trainer.errors import VllmError, WorkerDiedError
from tinyzero_trainer.executors.base import Workers
from tinyzero_trainer.executors.build import build_workers, gpu_elsewhere
from tinyzero_trainer.executors.tasks import RunTask, run_tasks
from tinyzero_trainer.models.loading import ModelError
from tinyzero_trainer.monitoring.completion_log import CompletionLog
from tinyzero_trainer.monitoring.metrics_log import (
    HELD_OUT_LOSS,
    MetricsError,
    MetricsLog,
    held_out_accuracies,
    read_metrics,
)
from tinyzero_trainer.monitoring.plot import plot_curve
from tinyzero_trainer.monitoring.progress import Progress, outcome_line
from tinyzero_trainer.monitoring.trackers import Trackers
from tinyzero_trainer.rewards.audit import Audit, AuditAlarm
from tinyzero_trainer.training.optimizer import UpdateError
from tinyzero_trainer.types import Rollout
from tinyzero_trainer.utils.signals import Interrupted, StopFlag, Stopped, StopRequested, catch_signals

C = TypeVar("C", bound=TrainConfig | SftConfig)

LAST_SAVE_SECONDS, RETRY_SECONDS = 300.0, 5.0
"""How long and how often the checkpoint of the last step is tried again."""

FAULTS_OF_OTHERS = (BrokenTaskError, DataError, ModelError)
"""Of a task, a data file or a chat template, in the trainer's own process: the ranks have nothing to do with them."""


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


class Step(Protocol):
    """What the loop repeats: a step of reinforcement learning (step.py), or of supervised fine-tuning."""

    last: int
    """Number of the run's last step."""

    policy_intact: bool
    """Whether the policy is as the last completed step left it."""

    skipped: SkippedUpdates

    @property
    def prefetched(self) -> RolloutBatch | None:
        """The next step's batch, if it has been collected."""

    @property
    def in_flight(self) -> InFlight | None:
        """The groups that are being sampled for later steps."""

    @property
    def failure(self) -> TinyZeroError | None:
        """What ends the run after this step, if anything."""

    def take(self, step: int) -> tuple[list[Rollout], dict[str, float]]:
        """Take a step (1-based): the completions trained on or sampled, and metrics."""

    def give(self, batch: RolloutBatch) -> None:
        """Let the next step train on this batch."""


@dataclass
class Session:
    """A run since its start, or since it was resumed."""

    config: TrainConfig
    """Of the workers."""

    recorded: TrainConfig | SftConfig
    """What the run directory keeps, and a resumed run must repeat."""

    run: RunDirectory
    workers: Workers
    evaluated: Mapping[str, RunTask]
    """The tasks of the workers, and those of `eval.tasks`."""

    state: TrainerState
    saved: SavedRun | None
    """The checkpoint that it was resumed from."""

    stop: StopFlag
    checkpointer: Checkpointer
    log: MetricsLog
    completions: CompletionLog
    trackers: Trackers
    audit: Audit | None = None
    """Of reinforcement learning."""

    unsaved: int | None = None
    """The step of a checkpoint that could not be saved, until one can."""

    def train(self, training_step: Step, evaluation: HeldOutEvaluation) -> TrainResult:
        """Take all steps to the last, and report; a signal or a dead worker ends them earlier, with a checkpoint."""
        state, progress = self.state, self.workers.display
        checkpoint = self.recorded.checkpoint
        self.checkpointer.report_disk_use()
        with self._saving_at_the_end(training_step):
            if state.pending_metrics is not None:  # of step 0, or of the last one before the run was stopped
                self._evaluate_and_log(training_step, evaluation)
            progress.train(training_step.last, done=state.step)
            while state.step < training_step.last:
                step = state.step + 1
                rollouts, metrics = training_step.take(step)
                if self.audit is not None:
                    metrics |= self.audit.step(step, rollouts)
                metrics |= state.add_totals(rollouts, metrics["timing_s/step"]) | self.checkpointer.timing()
                state.step, state.pending_metrics = step, metrics
                self.completions.train(step, rollouts)
                if training_step.failure is not None:
                    raise training_step.failure
                self._evaluate_and_log(training_step, evaluation)
                if self.audit is not None and self.audit.alarm is not None:
                    raise self.audit.alarm
                if self.stop.requested:
                    raise StopRequested
                if checkpoint.every and (step % checkpoint.every == 0 or self.unsaved is not None):
                    self._save_or_wait(training_step, is_due=step % checkpoint.every == 0)
        return self._report(evaluation, last=training_step.last)

    @contextmanager
    def _saving_at_the_end(self, step: Step) -> Iterator[None]:
        """Save when the block ends, also where a signal or a fault ends it with an intact policy."""
        with self._saying_how_to_resume():
            try:
                yield
            except (StopRequested, AuditAlarm):
                self._save(step)
                raise
            except (WorkerDiedError, VllmError) as error:
                if error.policy_intact if isinstance(error, WorkerDiedError) else step.policy_intact:
                    self._save(step)
                raise
            except FAULTS_OF_OTHERS:
                if step.policy_intact and self.state.step:
                    self._save(step)
                raise
            self._save_at_last(step)

    @contextmanager
    def _saying_how_to_resume(self) -> Iterator[None]:
        """Add to what ends the run how to resume it; if a signal asked for the end, it keeps the signal's exit code."""
        command = resume_command(self.recorded)
        try:
            yield
        except StopRequested:
            assert self.stop.signal is not None
            raise Interrupted(self.stop.signal, self.state.step, command) from None
        except AuditAlarm as alarm:
            raise AuditAlarm(f"{alarm}; step {self.state.step:,} is saved; resume with: {command}") from None
        except WorkerDiedError as died:
            raise self._with_resume_hint(died, command) from None
        except UpdateError as error:
            saved = ""
            if (newest := store.latest(self.run.checkpoints)) is not None:
                saved = f"step {newest.step:,} is saved; resume with: {command}; if that fails, "
            raise UpdateError(f"{error}; {saved}start again with a lower optimizer.learning_rate") from None
        except (VllmError, *FAULTS_OF_OTHERS) as error:
            kind = VllmError if isinstance(error, VllmError) else type(error)
            if (newest := store.latest(self.run.checkpoints)) is not None:
                error = kind(f"{error}; step {newest.step:,} is saved; resume with: {command}")
            raise self._as_ended(error) from None
        except (MetricsError, store.CheckpointError) as error:
            resume = f"resume with: {command}" if any(store.sealed(self.run.checkpoints)) else "start again"
            raise self._as_ended(type(error)(f"{error}; once it can be written, {resume}")) from error
        except TinyZeroError:
            raise
        except Exception as error:
            try:
                self.workers.check()
            except WorkerDiedError as died:
                raise self._with_resume_hint(died, command) from error
            raise

    def _with_resume_hint(self, died: WorkerDiedError, command: str) -> TinyZeroError:
        newest = store.latest(self.run.checkpoints)
        return self._as_ended(died.with_resume_hint(None if newest is None else newest.step, command))

    def _as_ended(self, error: TinyZeroError) -> TinyZeroError:
        """The error, with the exit code of the signal that asked the run to stop before it, if one has."""
        return error if self.stop.signal is None else Stopped(self.stop.signal, f"with an error: {error}")

    def _save(self, step: Step) -> None:
        """Save a checkpoint, and before it the completions up to it and what the audit says of them."""
        if self.audit is not None:
            self.audit.drain()
        self.completions.write()
        self.log.flush()
        if not self.run.config.exists():  # another program has deleted it, and nothing could resume the run
            with suppress(RunDirectoryError):
                self.run.save_config(self.recorded, _task_versions(self.workers))
        self.checkpointer.save(self.state, step.prefetched, step.in_flight)

    def _save_or_wait(self, step: Step, *, is_due: bool) -> None:
        """Save, or try again after each step until the next checkpoint is due, as when the disk is full for a while."""
        try:
            self._save(step)
            self.unsaved = None
        except (MetricsError, store.CheckpointError) as error:
            if is_due and self.unsaved is not None:
                raise
            if self.unsaved is None:
                every = plural(self.recorded.checkpoint.every, "step")
                self.workers.display.warn(f"{error}; trying again after each step, for {every} at most")
                self.unsaved = self.state.step

    def _save_at_last(self, step: Step) -> None:
        """Save after the last step, again and again for a while where that fails: no later checkpoint would hold it."""
        deadline, told = monotonic() + LAST_SAVE_SECONDS, False
        while True:
            try:
                return self._save(step)
            except (MetricsError, store.CheckpointError) as error:
                if self.stop.requested or monotonic() > deadline or not self.run.path.is_dir():
                    raise
                if not told:
                    self.workers.display.warn(f"{error}; trying again for {LAST_SAVE_SECONDS:g} s at most")
                told = True
            sleep(RETRY_SECONDS)

    def _evaluate_and_log(self, training_step: Step, evaluation: HeldOutEvaluation) -> None:
        """Evaluate if it is due, then write the step's line; a stop meanwhile leaves both to the resumed run."""
        step, metrics, progress = self.state.step, self.state.pending_metrics, self.workers.display
        assert metrics is not None
        if step:
            progress.step(step, metrics)
        if evaluation.is_due(step, last=training_step.last):
            metrics = metrics | evaluation.run(step, last=training_step.last)
            for decoding, rollouts in evaluation.rollouts:
                self.completions.held_out(step, decoding, rollouts)
        if not step:
            progress.record_startup("evaluation")
            metrics = metrics | progress.ready()
        self.log.append(step, metrics)
        self.trackers.log(step, metrics)
        self.state.pending_metrics = None

    def _report(self, evaluation: HeldOutEvaluation, *, last: int) -> TrainResult:
        """Draw the curve and print what was reached."""
        run, workers, temperature = self.run, self.workers, self.recorded.eval.temperature
        lines = dict[int, dict[str, Any]]()
        with suppress(DataError):  # which drawing the curve reports
            lines = {int(line["step"]): line for line in read_metrics(run.metrics)}
        before, after = lines.get(0, {}), lines.get(last, {})  # another program may have cut the file
        first, reached = held_out_accuracies(before), held_out_accuracies(after)
        accuracy = {name: Change(first.get(name), reached[name]) for name in evaluation.prompts if name in reached}
        outcomes = [
            outcome_line(
                name if len(accuracy) > 1 else None,
                change.before,
                change.after,
                len(evaluation.prompts[name]),
                temperature,
            )
            for name, change in accuracy.items()
        ]
        if HELD_OUT_LOSS in before and HELD_OUT_LOSS in after:
            outcomes.insert(0, f"held-out loss: {before[HELD_OUT_LOSS]:.4f} -> {after[HELD_OUT_LOSS]:.4f}")
        try:
            plot_curve(run.metrics, run.curve, tasks=list(workers.tasks), model=workers.language_model.name)
            curve = f"curve: {run.curve}"
        except TinyZeroError as error:  # a picture must not cost the result
            curve = f"no curve: {error}"
        model = f"model: {run.checkpoints / f'step_{last}'}"
        audited = [] if self.audit is None else self.audit.summary()
        look = f"look: tinyzero report {quote(str(run.path))}"
        workers.display.done(*outcomes, *audited, curve, *self.completions.summary(), model, look)
        return TrainResult(run.path, accuracy)


@contextmanager
def open_session(
    config: TrainConfig | SftConfig, progress: Progress, *, resume: bool, tasks: Mapping[str, Task] | None
) -> Iterator[Session]:
    """A run with its workers, at its start or at its newest checkpoint; arguments and errors as of `train`."""
    train_config, engine = resolve_engine(config.as_train_config())
    target = gpu_elsewhere(train_config) if left_open(train_config) else None
    train_config, chosen = resolve_auto(train_config, target=target)
    recorded = train_config if isinstance(config, TrainConfig) else config.with_resolved(train_config)
    for line in filter(None, (engine, chosen)):
        progress.log(line)
    unsafe = config.reward.allow_unsafe
    other_tasks = load_tasks(config.eval.task_specs, allow_unsafe_scorers=unsafe, table="eval.tasks")
    with (
        RunDirectory.open(recorded.run.output, resume=resume) as run,
        catch_signals(progress.log) as stop,
        _ended_at_once(stop, recorded, run),
        _restored(train_config, recorded, run, progress, resume, tasks) as (checkpointer, state, saved),
        MetricsLog(run.metrics, progress.warn) as log,
        Trackers(recorded.log, to_mapping(recorded), run.path, progress.log) as trackers,
        run_tasks(train_config, other_tasks, checkpointer.workers.language_model.tokenizer) as others,
    ):
        workers, recorded = checkpointer.workers, checkpointer.config
        log.cut_after(state.step if state.pending_metrics is None else state.step - 1)
        evaluated = {**workers.tasks, **others}
        named = {name: task.task for name, task in evaluated.items()}
        model = workers.language_model
        completions = CompletionLog(run.completions, recorded.log, named, model.tokenizer, progress.warn)
        completions.cut_after(state.step)
        progress.log(workers.language_model.trained)
        made = (state, saved, stop, checkpointer, log, completions, trackers)
        yield Session(train_config, recorded, run, workers, evaluated, *made)


@contextmanager
def _ended_at_once(stop: StopFlag, config: TrainConfig | SftConfig, run: RunDirectory) -> Iterator[None]:
    """Say how to resume a run that a second signal ends, whose exit code would be another one within a call of Ray."""
    try:
        yield
    except (SystemExit, KeyboardInterrupt):
        if stop.ended_by is None:
            raise
        saved = any(store.sealed(run.checkpoints))
        resume = f"resume with: {resume_command(config)}" if saved else "nothing has been saved yet"
        raise Stopped(stop.ended_by, f"at once; {resume}") from None


@contextmanager
def _restored(
    config: TrainConfig,
    recorded: TrainConfig | SftConfig,
    run: RunDirectory,
    progress: Progress,
    resume: bool,
    tasks: Mapping[str, Task] | None,
) -> Iterator[tuple[Checkpointer, TrainerState, SavedRun | None]]:
    """The workers of a run and their state at its start, or at the newest checkpoint that can be loaded."""
    for model in config.models_to_resume:
        store.keep_for(run.path, Path(model).expanduser())
    unusable: dict[Path, str] = {}
    while True:
        saved = newest_checkpoint(recorded, run, unusable) if resume else None
        path = None if saved is None else saved.checkpoint.path
        with ExitStack() as stack:
            built = build_workers(config, display=progress, training=True, checkpoint=path, tasks=tasks)
            try:
                workers = stack.enter_context(built)
                fitting = _as_it_fits(recorded, workers)
                run.save_config(fitting, _task_versions(workers))  # also when resumed: run.steps may have been raised
                checkpointer = Checkpointer(fitting, run, workers)
                state = checkpointer.restore(saved)
            except store.DamagedCheckpointError as error:
                assert path is not None
                unusable[path] = str(error)
                continue
            yield checkpointer, state, saved
            return


def train(
    config: TrainConfig,
    *,
    resume: bool = False,
    tasks: Mapping[str, Task] | None = None,
    progress: Progress | None = None,
) -> TrainResult:
    """Train a model on a task, or several, by reinforcement learning.

    Args:
        config: with `tasks` and `run.output`.
        resume: continue from the newest intact checkpoint in `run.output`.
        tasks: of the run, if they are loaded already.
        progress: shows the phases.

    Raises:
        Interrupted: a signal ended the run; a checkpoint was saved.
        TinyZeroError: anything else a user can cause.
    """
    with open_training(config, resume=resume, tasks=tasks, progress=progress) as (session, step, evaluation):
        audited = {name: task.task for name, task in session.workers.tasks.items()}
        warn = session.workers.display.warn
        with Audit(session.config, audited, session.state.audit, session.run.audit, warn) as session.audit:
            result = session.train(step, evaluation)
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
    with progress or Progress() as display, open_session(config, display, resume=resume, tasks=tasks) as session:
        config, workers, stop = session.config, session.workers, session.stop
        if config.rollout.bias:
            display.log(config.rollout.bias)
        signal = SignalMonitor(config, workers)
        evaluation = HeldOutEvaluation(config, workers, session.evaluated, stop, signal)
        saved = session.saved
        ahead = (None, None) if saved is None else (saved.prefetched, saved.in_flight)
        yield session, TrainingStep(config, workers, session.state, stop, *ahead, signal), evaluation


def _task_versions(workers: Workers) -> dict[str, str]:
    return {running.task.name: running.task.version for running in workers.tasks.values()}


def _as_it_fits(config: C, workers: Workers) -> C:
    """With the micro-batch that memory had room for, which a resumed run starts with."""
    assert workers.policy is not None
    tokens = workers.policy.micro_batch_tokens
    if tokens == config.optimizer.token_budget:
        return config
    optimizer: Any = replace(config.optimizer, micro_batch_tokens=tokens)
    return replace(config, optimizer=optimizer)
