"""The training loop: the order of a run's phases.

A step is in step.py, its batch in collector.py, evaluation in heldout_eval.py, saving and resuming in checkpointer.py.
Line k of `metrics.jsonl` is written before checkpoint k, so a run resumed from it cuts exactly what lies past it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tinyzero_sdk import Task
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.algorithms import rollout_correction
from tinyzero_trainer.checkpoint.run_directory import RunDirectory
from tinyzero_trainer.checkpoint.store import Checkpoint
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.controller.checkpointer import Checkpointer, newest_checkpoint
from tinyzero_trainer.controller.heldout_eval import HeldOutEvaluation, write_samples
from tinyzero_trainer.controller.signal_monitor import SignalMonitor
from tinyzero_trainer.controller.step import TrainingStep
from tinyzero_trainer.data.mixture import some_of_each
from tinyzero_trainer.executors.base import Workers
from tinyzero_trainer.executors.build import build_workers, gpu_elsewhere
from tinyzero_trainer.monitoring.metrics_log import MetricsLog, held_out_key, read_metrics
from tinyzero_trainer.monitoring.plot import plot_curve
from tinyzero_trainer.monitoring.progress import Progress, outcome_line
from tinyzero_trainer.monitoring.trackers import Trackers
from tinyzero_trainer.plan.auto import left_open, resolve_auto
from tinyzero_trainer.utils.signals import StopFlag, StopRequested, catch_signals


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


def train(config: TrainConfig, *, resume: bool = False, tasks: Mapping[str, Task] | None = None) -> TrainResult:
    """Train a model on a task, or several.

    Args:
        config: with `tasks` and `run.output`.
        resume: continue from the newest intact checkpoint in `run.output`.
        tasks: of the run, if they are loaded already.

    Raises:
        Interrupted: a signal ended the run; a checkpoint was saved.
        TinyZeroError: anything else a user can cause.
    """
    config, chosen = resolve_auto(config, target=gpu_elsewhere(config) if left_open(config) else None)
    with (
        Progress() as progress,
        RunDirectory.open(config.run.output, resume=resume) as run,
        catch_signals() as stop,
    ):
        if chosen:
            progress.log(chosen)
        checkpoint = newest_checkpoint(config, run, progress.log) if resume else None
        path = None if checkpoint is None else checkpoint.path
        with (
            build_workers(config, display=progress, training=True, checkpoint=path, tasks=tasks) as workers,
            MetricsLog(run.metrics) as log,
            Trackers(config, run.path, progress.log) as trackers,
        ):
            return _train(config, run, workers, log, trackers, stop, checkpoint)


def _train(
    config: TrainConfig,
    run: RunDirectory,
    workers: Workers,
    log: MetricsLog,
    trackers: Trackers,
    stop: StopFlag,
    checkpoint: Checkpoint | None,
) -> TrainResult:
    """From the start or a checkpoint to the last step; a signal or a dead worker ends it earlier, with a checkpoint."""
    progress = workers.display
    config = _as_it_fits(config, workers)
    run.save_config(config)  # also when resumed: run.steps may have been raised
    checkpointer = Checkpointer(config, run, workers)
    state, prefetched = checkpointer.restore(checkpoint)
    log.cut_after(state.step if state.pending_metrics is None else state.step - 1)
    for line in (workers.language_model.trained, *rollout_correction.notes(config)):
        progress.log(line)
    signal = SignalMonitor(config, workers)
    evaluation = HeldOutEvaluation(config, workers, stop, signal)
    training_step = TrainingStep(config, workers, state, stop, run.rollouts, prefetched, signal)

    def evaluate_and_log() -> None:
        """Evaluate if it is due, then write the step's line; a stop meanwhile leaves both to the resumed run."""
        assert state.pending_metrics is not None
        metrics = state.pending_metrics | (evaluation.run(state.step) if evaluation.is_due(state.step) else {})
        log.append(state.step, metrics)
        trackers.log(state.step, metrics)
        if state.step:
            progress.step(state.step, metrics)
        state.pending_metrics = None

    with checkpointer.saving_at_the_end(state, training_step, stop):
        if state.pending_metrics is not None:  # of step 0, or of the last one before the run was stopped
            evaluate_and_log()
        progress.train(config.run.steps, done=state.step)
        for step in range(state.step + 1, config.run.steps + 1):
            rollouts, metrics = training_step.take(step)
            if (fitting := _as_it_fits(config, workers)) != config:
                config = fitting
                run.save_config(config)
            metrics |= state.add_totals(rollouts, metrics["timing_s/step"]) | checkpointer.timing()
            state.step, state.pending_metrics = step, metrics
            if config.log.rollouts_every and step % config.log.rollouts_every == 0:
                chosen = some_of_each(rollouts, len(workers.tasks), config.log.rollouts_count)
                write_samples(run.rollouts_file(step), chosen)
            if training_step.collector.failure is not None:
                raise training_step.collector.failure
            evaluate_and_log()
            if stop.requested:
                raise StopRequested
            if config.checkpoint.every and step % config.checkpoint.every == 0:
                checkpointer.save(state, training_step.collector)
    return _report(config, run, workers, {name: len(prompts) for name, prompts in evaluation.prompts.items()})


def _as_it_fits(config: TrainConfig, workers: Workers) -> TrainConfig:
    """With the micro-batch that memory had room for, which a resumed run starts with."""
    assert workers.policy is not None
    tokens = workers.policy.micro_batch_tokens
    if tokens == config.optimizer.token_budget:
        return config
    return replace(config, optimizer=replace(config.optimizer, micro_batch_tokens=tokens))


def _report(config: TrainConfig, run: RunDirectory, workers: Workers, held_out: Mapping[str, int]) -> TrainResult:
    """Draw the curve and print what was reached; `held_out` has the number of each task's held-out problems."""
    lines = {int(line["step"]): line for line in read_metrics(run.metrics)}
    first, last = lines[0], lines[config.run.steps]
    accuracy = {name: Change(first[held_out_key(name)], last[held_out_key(name)]) for name in held_out}
    several, temperature = len(accuracy) > 1, config.eval.temperature
    outcomes = [
        outcome_line(name if several else None, change.before, change.after, held_out[name], temperature)
        for name, change in accuracy.items()
    ]
    try:
        plot_curve(run.metrics, run.curve, tasks=list(accuracy), model=workers.language_model.name)
        curve = f"curve: {run.curve}"
    except TinyZeroError as error:  # a picture must not cost the result
        curve = f"no curve: {error}"
    workers.display.done(*outcomes, curve, f"model: {run.checkpoints / f'step_{config.run.steps}'}")
    return TrainResult(run.path, accuracy)
