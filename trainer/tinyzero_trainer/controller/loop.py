"""The training loop: the order of a run's phases.

A step is in step.py, its batch in collector.py, evaluation in heldout_eval.py, saving and resuming in checkpointer.py.
Line k of `metrics.jsonl` is written before checkpoint k, so a run resumed from it cuts exactly what lies past it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tinyzero_sdk import Task
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.algorithms import rollout_correction
from tinyzero_trainer.checkpoint.run_directory import RunDirectory
from tinyzero_trainer.config import SftConfig, TrainConfig
from tinyzero_trainer.controller.checkpointer import Checkpointer, newest_checkpoint
from tinyzero_trainer.controller.heldout_eval import HeldOutEvaluation, write_samples
from tinyzero_trainer.controller.rollout_batch import RolloutBatch
from tinyzero_trainer.controller.signal_monitor import SignalMonitor
from tinyzero_trainer.controller.state import TrainerState
from tinyzero_trainer.controller.step import TrainingStep
from tinyzero_trainer.data.mixture import some_of_each
from tinyzero_trainer.executors.base import Workers
from tinyzero_trainer.executors.build import build_workers, gpu_elsewhere
from tinyzero_trainer.monitoring.metrics_log import HELD_OUT_LOSS, MetricsLog, held_out_key, read_metrics
from tinyzero_trainer.monitoring.plot import plot_curve
from tinyzero_trainer.monitoring.progress import Progress, outcome_line
from tinyzero_trainer.monitoring.trackers import Trackers
from tinyzero_trainer.plan.auto import left_open, resolve_auto
from tinyzero_trainer.types import Rollout
from tinyzero_trainer.utils.signals import StopFlag, StopRequested, catch_signals

C = TypeVar("C", bound=TrainConfig | SftConfig)


@dataclass(frozen=True, slots=True)
class Change:
    """Held-out accuracy on one task before and after training: sampled, on the same problems both times."""

    before: float
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

    @property
    def prefetched(self) -> RolloutBatch | None:
        """The next step's batch, if it has been collected."""

    @property
    def failure(self) -> TinyZeroError | None:
        """What ends the run after this step, if anything."""

    def take(self, step: int) -> tuple[list[Rollout], dict[str, float]]:
        """Take a step (1-based): the completions trained on or sampled, and metrics."""


Start = Callable[
    [RunDirectory, Workers, TrainerState, RolloutBatch | None, StopFlag],
    AbstractContextManager[tuple[Step, HeldOutEvaluation]],
]
"""Makes what takes the steps, and what measures the policy between them; the batch is the checkpoint's next one."""


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
    config, chosen = resolve_auto(config, target=gpu_elsewhere(config) if left_open(config) else None)

    @contextmanager
    def start(
        run: RunDirectory,
        workers: Workers,
        state: TrainerState,
        prefetched: RolloutBatch | None,
        stop: StopFlag,
    ) -> Iterator[tuple[Step, HeldOutEvaluation]]:
        for line in rollout_correction.notes(config):
            workers.display.log(line)
        signal = SignalMonitor(config, workers)
        evaluation = HeldOutEvaluation(config, workers, stop, signal)
        yield TrainingStep(config, workers, state, stop, run.rollouts, prefetched, signal), evaluation

    with progress or Progress() as display:
        if chosen:
            display.log(chosen)
        return run_training(config, config, start, display, resume=resume, tasks=tasks)


def run_training(
    config: TrainConfig,
    recorded: TrainConfig | SftConfig,
    start: Start,
    progress: Progress,
    *,
    resume: bool,
    tasks: Mapping[str, Task] | None,
) -> TrainResult:
    """Run a training from its start or its newest checkpoint to the last step; arguments and errors as of `train`.

    Args:
        config: of the workers.
        recorded: what the run directory keeps, and a resumed run must repeat.
        start: see `Start`.
    """
    with RunDirectory.open(recorded.run.output, resume=resume) as run, catch_signals() as stop:
        checkpoint = newest_checkpoint(recorded, run, progress.log) if resume else None
        path = None if checkpoint is None else checkpoint.path
        with (
            build_workers(config, display=progress, training=True, checkpoint=path, tasks=tasks) as workers,
            MetricsLog(run.metrics) as log,
            Trackers(recorded, run.path, progress.log) as trackers,
        ):
            recorded = _as_it_fits(recorded, workers)
            run.save_config(recorded)  # also when resumed: run.steps may have been raised
            checkpointer = Checkpointer(recorded, run, workers)
            state, prefetched = checkpointer.restore(checkpoint)
            log.cut_after(state.step if state.pending_metrics is None else state.step - 1)
            progress.log(workers.language_model.trained)
            with start(run, workers, state, prefetched, stop) as (training_step, evaluation):
                _take_steps(recorded, run, state, training_step, evaluation, checkpointer, log, trackers, stop)
                held_out = {name: len(prompts) for name, prompts in evaluation.prompts.items()}
                return _report(config, run, workers, held_out, last=training_step.last)


def _take_steps(
    config: TrainConfig | SftConfig,
    run: RunDirectory,
    state: TrainerState,
    training_step: Step,
    evaluation: HeldOutEvaluation,
    checkpointer: Checkpointer,
    log: MetricsLog,
    trackers: Trackers,
    stop: StopFlag,
) -> None:
    """All steps to the last; a signal or a dead worker ends them earlier, with a checkpoint."""
    workers = evaluation.workers
    progress = workers.display

    def evaluate_and_log() -> None:
        """Evaluate if it is due, then write the step's line; a stop meanwhile leaves both to the resumed run."""
        assert state.pending_metrics is not None
        is_due = evaluation.is_due(state.step, last=training_step.last)
        metrics = state.pending_metrics
        if is_due:
            metrics = metrics | evaluation.run(state.step, last=training_step.last)
        if not state.step:
            progress.record_startup("evaluation")
            metrics = metrics | progress.ready()
        log.append(state.step, metrics)
        trackers.log(state.step, metrics)
        if state.step:
            progress.step(state.step, metrics)
        state.pending_metrics = None

    with checkpointer.saving_at_the_end(state, training_step, stop):
        if state.pending_metrics is not None:  # of step 0, or of the last one before the run was stopped
            evaluate_and_log()
        progress.train(training_step.last, done=state.step)
        while state.step < training_step.last:
            step = state.step + 1
            rollouts, metrics = training_step.take(step)
            if (fitting := _as_it_fits(config, workers)) != config:
                config = fitting
                run.save_config(config)
            metrics |= state.add_totals(rollouts, metrics["timing_s/step"]) | checkpointer.timing()
            state.step, state.pending_metrics = step, metrics
            if config.log.rollouts_every and step % config.log.rollouts_every == 0:
                chosen = some_of_each(rollouts, len(workers.tasks), config.log.rollouts_count)
                write_samples(run.rollouts_file(step), chosen)
            if training_step.failure is not None:
                raise training_step.failure
            evaluate_and_log()
            if stop.requested:
                raise StopRequested
            if config.checkpoint.every and step % config.checkpoint.every == 0:
                checkpointer.save(state, training_step.prefetched)


def _as_it_fits(config: C, workers: Workers) -> C:
    """With the micro-batch that memory had room for, which a resumed run starts with."""
    assert workers.policy is not None
    tokens = workers.policy.micro_batch_tokens
    if tokens == config.optimizer.token_budget:
        return config
    optimizer: Any = replace(config.optimizer, micro_batch_tokens=tokens)
    return replace(config, optimizer=optimizer)


def _report(
    config: TrainConfig, run: RunDirectory, workers: Workers, held_out: Mapping[str, int], *, last: int
) -> TrainResult:
    """Draw the curve and print what was reached; `held_out` has the number of each task's held-out problems."""
    lines = {int(line["step"]): line for line in read_metrics(run.metrics)}
    before, after = lines[0], lines[last]
    accuracy = {name: Change(before[held_out_key(name)], after[held_out_key(name)]) for name in held_out}
    several, temperature = len(accuracy) > 1, config.eval.temperature
    outcomes = [
        outcome_line(name if several else None, change.before, change.after, held_out[name], temperature)
        for name, change in accuracy.items()
    ]
    if HELD_OUT_LOSS in after:
        outcomes.insert(0, f"held-out loss: {before[HELD_OUT_LOSS]:.4f} -> {after[HELD_OUT_LOSS]:.4f}")
    try:
        plot_curve(run.metrics, run.curve, tasks=list(accuracy), model=workers.language_model.name)
        curve = f"curve: {run.curve}"
    except TinyZeroError as error:  # a picture must not cost the result
        curve = f"no curve: {error}"
    workers.display.done(*outcomes, curve, f"model: {run.checkpoints / f'step_{last}'}")
    return TrainResult(run.path, accuracy)
