"""The training loop: the order of a run's phases, and what is saved when.

Steps are in step.py, batches in collector.py, evaluations in heldout_eval.py.
Line k of `metrics.jsonl` is written before checkpoint k, so a run resumed from it cuts exactly what lies past it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch

from tinyzero_sdk import Task
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.records import Json
from tinyzero_sdk.settings import to_mapping
from tinyzero_trainer.algorithms import importance_sampling as mismatch
from tinyzero_trainer.checkpoint import store as checkpoints
from tinyzero_trainer.checkpoint.run_directory import RunDirectory
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.resume import check_fingerprint, fingerprint
from tinyzero_trainer.controller.heldout_eval import HeldOutEvaluation, write_samples
from tinyzero_trainer.controller.pending_batch import RolloutBatch, load_batch
from tinyzero_trainer.controller.state import TrainerState
from tinyzero_trainer.controller.step import TrainingStep
from tinyzero_trainer.data.mixture import some_of_each
from tinyzero_trainer.errors import VllmError, WorkerDiedError
from tinyzero_trainer.executors.base import Workers
from tinyzero_trainer.executors.build import build_workers
from tinyzero_trainer.monitoring.metrics_log import MetricsLog, held_out_key, read_metrics
from tinyzero_trainer.monitoring.plot import plot_curve
from tinyzero_trainer.monitoring.progress import Progress, outcome_line
from tinyzero_trainer.monitoring.trackers import Trackers
from tinyzero_trainer.types import Rollout
from tinyzero_trainer.utils.oom import catch_out_of_memory
from tinyzero_trainer.utils.signals import Interrupted, StopFlag, StopRequested, catch_signals

STATE_DIRECTORY = "training_state"


@dataclass(frozen=True, slots=True)
class Change:
    """Held-out accuracy on one task, sampled, on the same problems both times."""

    before: float
    """Before training."""

    after: float
    """After training."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a finished run leaves behind."""

    output: Path
    """The run directory."""

    accuracy: Mapping[str, Change]
    """What training changed, by the task's name."""


def train(config: TrainConfig, *, resume: bool = False, tasks: Mapping[str, Task] | None = None) -> TrainResult:
    """Train a model on a task, or several.

    Args:
        config: the whole configuration; `tasks` and `run.output` are required.
        resume: go on from the newest sound checkpoint in `run.output`.
        tasks: of the run, if they are loaded already.

    Raises:
        Interrupted: a signal ended the run; a checkpoint was saved.
        TinyZeroError: anything else a user can cause.
    """
    with (
        Progress() as display,
        RunDirectory.open(config.run.output, resume=resume) as run,
        catch_signals() as stop,
    ):
        found = checkpoints.latest(run.checkpoints) if resume else None
        if found is not None:
            check_fingerprint(config, str(found.meta["config"]))
            for line in found.skipped:
                display.log(line)
        with (
            build_workers(
                config, display=display, training=True, checkpoint=found.path if found else None, tasks=tasks
            ) as workers,
            MetricsLog(run.metrics) as log,
            _trackers(config, run, display) as trackers,
        ):
            return _Run(config, run, workers, log, trackers, stop).execute(found)


class _Run:
    """A run, from its start or a checkpoint to its end or an interruption."""

    def __init__(
        self,
        config: TrainConfig,
        run: RunDirectory,
        workers: Workers,
        log: MetricsLog,
        trackers: Trackers,
        stop: StopFlag,
    ) -> None:
        assert workers.policy is not None
        self.config, self.run, self.workers = config, run, workers
        self.log, self.trackers, self.stop = log, trackers, stop
        self.policy, self.display = workers.policy, workers.display
        self.state = TrainerState()
        self.training: TrainingStep | None = None  # once it has begun
        self.prefetched: RolloutBatch | None = None  # the next step's batch, if the checkpoint holds it
        self.saved_step: int | None = None  # step of the newest checkpoint
        self.saving: dict[str, float] = {}  # seconds of a save that is not yet in a metrics line

    def execute(self, found: checkpoints.Checkpoint | None) -> TrainResult:
        """Train until `run.steps`, or until a signal."""
        config, state = self.config, self.restore(found)
        self.display.log(self.workers.language_model.trained)
        for line in mismatch.notes(config):
            self.display.log(line)
        self.evaluation = HeldOutEvaluation(config, self.workers, self.stop)
        step = TrainingStep(config, self.workers, state, self.stop, self.run.rollouts, self.prefetched)
        with self.saving_at_the_end(step):
            if state.pending is not None:
                self.close_step(state.pending)
            self.display.train(config.run.steps, done=state.step)
            while state.step < config.run.steps:
                rollouts, metrics = step.take(state.step + 1)
                metrics |= state.add_totals(rollouts, metrics["timing_s/step"]) | self.saving
                self.saving = {}
                self.log_rollouts(rollouts, state.step + 1)
                state.step, state.pending = state.step + 1, metrics
                if step.collector.failure is not None:
                    raise step.collector.failure
                self.close_step(metrics)
                if self.stop.requested:
                    raise StopRequested
                if config.checkpoint.every and state.step % config.checkpoint.every == 0:
                    self.save()
        return self.finish()

    @contextmanager
    def saving_at_the_end(self, step: TrainingStep) -> Iterator[None]:
        """Save a checkpoint when the block ends, also where a signal or a dead worker ends it with an intact policy."""
        self.training, self.prefetched = step, None
        try:
            yield
            self.save()
        except StopRequested:
            self.save()
            assert self.stop.signal is not None
            raise Interrupted(self.stop.signal, self.state.step, self.config.run.output) from None
        except WorkerDiedError as died:
            if died.policy_intact:
                self.save()
            newest = checkpoints.latest(self.run.checkpoints)
            raise died.with_resume_hint(None if newest is None else newest.step, self.config.run.output) from None
        except VllmError:
            if step.policy_intact:
                self.save()
            raise

    def close_step(self, metrics: dict[str, float]) -> None:
        """Evaluate if it is due, then write the line of the present step.

        A stop during the evaluation leaves `state.pending` for the checkpoint; the resumed run comes back here.
        """
        step = self.state.step
        if self.evaluation.is_due(step):
            metrics = metrics | self.evaluation.run(step)
        self.log.append(step, metrics)
        self.trackers.log(step, metrics)
        if step:
            self.display.step(step, metrics)
        self.state.pending = None

    def log_rollouts(self, rollouts: list[Rollout], step: int) -> None:
        """Write some completions of every `log.rollouts_every`-th step."""
        config = self.config.log
        if config.rollouts_every and step % config.rollouts_every == 0:
            shown = some_of_each(rollouts, len(self.workers.tasks), config.rollouts_count)
            write_samples(self.run.rollouts_file(step), shown)

    def restore(self, found: checkpoints.Checkpoint | None) -> TrainerState:
        """Take over a checkpoint's state, or begin; cut the metrics that lie past it."""
        self.run.save_config(self.config)  # also when resumed: run.steps may have been raised
        if found is None:
            model = self.workers.language_model
            self.state.pending = {
                "model/parameters": float(model.parameters),
                "model/trained_parameters": float(model.trained_parameters),
            }
            self.log.cut_after(-1)
            return self.state
        directory = found.path / STATE_DIRECTORY
        with catch_out_of_memory("the checkpoint was loaded"):
            self.policy.load(directory)
            if self.workers.critic is not None:
                self.workers.critic.load(directory)
        self.state, self.prefetched = TrainerState.load(directory), load_batch(directory)
        self.saved_step = self.state.step
        # A step whose line is still owed has none to keep.
        self.log.cut_after(self.state.step if self.state.pending is None else self.state.step - 1)
        self.display.log(f"going on from step {self.state.step}")
        return self.state

    def save(self) -> None:
        """Save a checkpoint of the present step, unless there is one."""
        if self.saved_step == self.state.step:
            return
        language_model, started = self.workers.language_model, perf_counter()
        assert self.training is not None
        collector = self.training.collector

        def fill(directory: Path) -> None:
            state_directory = directory / STATE_DIRECTORY
            with catch_out_of_memory("a checkpoint was saved"):
                self.policy.export(directory)
                state_directory.mkdir()
                self.policy.save(state_directory)
                if self.workers.critic is not None:
                    self.workers.critic.save(state_directory)
            self.state.save(state_directory)
            collector.save(state_directory)

        weights, trained = language_model.parameters * 4, language_model.trained_parameters * 4  # float32
        checkpoints.save(
            self.run.checkpoints,
            self.state.step,
            fill,
            meta=self.checkpoint_meta(),
            keep=self.config.checkpoint.keep,
            # And AdamW's two moments; a critic is as large as the model and trained as a whole.
            expected_bytes=weights + 2 * trained + (0 if self.workers.critic is None else 3 * weights),
        )
        self.saved_step = self.state.step
        # The line of this step is written already, since it must be there before its checkpoint is.
        self.saving = {"timing_s/save_checkpoint": perf_counter() - started}

    def checkpoint_meta(self) -> dict[str, Json]:
        """What a checkpoint's manifest says of the run."""
        return {
            "config": fingerprint(self.config),
            "tasks": {name: role.task.version for name, role in self.workers.tasks.items()},
            "torch": torch.__version__,
            "world_size": self.policy.ranks,
        }

    def finish(self) -> TrainResult:
        """Draw the curve and say what was reached."""
        lines = {int(line["step"]): line for line in read_metrics(self.run.metrics)}
        first, last = lines[0], lines[self.config.run.steps]
        accuracy = {
            name: Change(first[held_out_key(name)], last[held_out_key(name)]) for name in self.evaluation.prompts
        }
        outcomes = [
            outcome_line(
                change.before,
                change.after,
                problems=len(self.evaluation.prompts[name]),
                temperature=self.config.eval.temperature,
                task=name if len(accuracy) > 1 else None,
            )
            for name, change in accuracy.items()
        ]
        try:
            plot_curve(self.run.metrics, self.run.curve, tasks=list(accuracy), model=self.workers.language_model.name)
            picture = f"curve: {self.run.curve}"
        except TinyZeroError as error:  # a picture must not cost the result
            picture = f"no curve: {error}"
        self.display.done(*outcomes, picture, f"model: {self.run.checkpoints / f'step_{self.state.step}'}")
        return TrainResult(self.run.path, accuracy)


def _trackers(config: TrainConfig, run: RunDirectory, display: Progress) -> Trackers:
    return Trackers(
        config.log.trackers,
        directory=run.path,
        project=config.log.project,
        name=run.path.name,
        config=to_mapping(config),
        report=display.log,
    )
