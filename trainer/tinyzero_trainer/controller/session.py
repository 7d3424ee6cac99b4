"""A session of a run: its directory, workers and records, at its start or restored from a checkpoint."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from tinyzero_sdk import Task
from tinyzero_sdk.console import plural
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.settings import to_mapping
from tinyzero_trainer.checkpoint import store
from tinyzero_trainer.checkpoint.run_directory import RunDirectory
from tinyzero_trainer.config import SftConfig, TrainConfig
from tinyzero_trainer.config.tasks import load_tasks
from tinyzero_trainer.controller.checkpointer import Checkpointer, SavedRun, how_to_resume, newest_checkpoint, restore
from tinyzero_trainer.controller.skipped_updates import SkippedUpdates
from tinyzero_trainer.controller.state import TrainerState
from tinyzero_trainer.executors.base import Workers
from tinyzero_trainer.executors.build import build_workers
from tinyzero_trainer.executors.tasks import RunTask, run_tasks
from tinyzero_trainer.monitoring.completion_log import CompletionLog
from tinyzero_trainer.monitoring.metrics_log import MetricsError, MetricsLog
from tinyzero_trainer.monitoring.progress import Progress
from tinyzero_trainer.monitoring.trackers import Trackers
from tinyzero_trainer.rewards.audit import Audit
from tinyzero_trainer.types import Rollout
from tinyzero_trainer.utils.signals import StopFlag, catch_signals


class Stepper(Protocol):
    """Takes the steps of a run: of reinforcement learning (step.py), or of supervised fine-tuning (sft/step.py)."""

    last: int  # the run's last step; fine-tuning for a given time sets it once it knows how long a step takes
    policy_intact: bool  # whether the policy is as the last completed step left it
    skipped: SkippedUpdates

    @property
    def failure(self) -> TinyZeroError | None:
        """What ends the run after this step, if anything."""

    def take(self, step: int) -> tuple[list[Rollout], dict[str, float]]:
        """Take a step (1-based): the completions trained on or sampled, and metrics."""

    def save(self, directory: Path) -> None:
        """Write the batch that is collected ahead into a checkpoint, if there is one."""

    def repeat(self, file: Path) -> None:
        """Let the next step, the last one, train on the batch that an update was skipped with."""


@dataclass(kw_only=True)
class Session:
    """A run since its start, or since it was resumed."""

    config: TrainConfig  # the workers' configuration
    saved_config: TrainConfig | SftConfig  # what the run directory keeps, and a resumed run must repeat
    run: RunDirectory
    workers: Workers
    eval_tasks: Mapping[str, RunTask]  # the tasks of the workers, and those of `eval.tasks`
    state: TrainerState
    saved: SavedRun | None  # the checkpoint that it was resumed from
    stop: StopFlag
    checkpointer: Checkpointer
    log: MetricsLog
    completions: CompletionLog
    trackers: Trackers
    audit: Audit | None = None  # of reinforcement learning
    is_overdue: bool = False  # a checkpoint was due and could not be saved

    def save(self, stepper: Stepper) -> None:
        """Save a checkpoint, after the completions and metrics up to it; raises the audit's alarm, if there is one."""
        self.run.require_in_place()
        if self.audit is not None:
            self.audit.drain()
        self.completions.write()
        self.log.flush()
        self.checkpointer.save(self.state, stepper.save)
        if self.audit is not None and self.audit.alarm is not None:
            raise self.audit.alarm

    def save_if_due(self, stepper: Stepper) -> None:
        """Save if it is due or an alarm ends the run; where that fails, try after each step until the next one is due.

        A full disk, or a network file system for a moment, costs no step.
        """
        self.run.require_in_place()
        every, alarm = self.saved_config.checkpoint.every, self.audit is not None and self.audit.alarm is not None
        is_due = bool(every) and self.state.step % every == 0
        if not (is_due or alarm or self.is_overdue):
            return
        try:
            self.save(stepper)
            self.is_overdue = False
        except (MetricsError, store.CheckpointError) as error:
            if is_due and self.is_overdue:
                raise
            if not self.is_overdue:
                self.workers.display.warn(f"{error}; trying again after each step, for {plural(every, 'step')} at most")
            self.is_overdue = True


@contextmanager
def open_session(
    config: TrainConfig,
    saved_config: TrainConfig | SftConfig,
    progress: Progress,
    *,
    resume: bool,
    tasks: Mapping[str, Task] | None,
) -> Iterator[Session]:
    """A run with its workers, at its start or at its newest intact checkpoint.

    `config` is the workers', `saved_config` what the run directory keeps: the same unless the run is supervised.
    """
    unsafe = config.reward.allow_unsafe
    other_tasks = load_tasks(config.eval.task_specs, allow_unsafe_scorers=unsafe, table="eval.tasks")
    with ExitStack() as stack:
        run = stack.enter_context(RunDirectory.open(saved_config.run.output, resume=resume))
        stop = stack.enter_context(catch_signals(progress.log, lambda: how_to_resume(run, saved_config)))
        for model in config.models_to_resume:
            store.keep_for(run.path, Path(model).expanduser())
        saved = newest_checkpoint(saved_config, run) if resume else None
        path = None if saved is None else saved.checkpoint.path
        workers = stack.enter_context(
            build_workers(config, display=progress, training=True, checkpoint=path, tasks=tasks)
        )
        assert workers.policy is not None
        tokens = workers.policy.micro_batch_tokens
        if tokens != saved_config.optimizer.token_budget:  # memory has room for less; a resumed run starts with it
            optimizer: Any = replace(saved_config.optimizer, micro_batch_tokens=tokens)
            saved_config = replace(saved_config, optimizer=optimizer)
        versions = {running.task.name: running.task.version for running in workers.tasks.values()}
        run.save_config(saved_config, versions)  # also when resumed: run.steps may have been raised
        state = restore(saved, workers)
        log = stack.enter_context(MetricsLog(run.metrics, progress.warn))
        log.cut_after(state.step if state.pending_metrics is None else state.step - 1)
        trackers = stack.enter_context(Trackers(saved_config.log, to_mapping(saved_config), run.path, progress.log))
        language_model = workers.language_model
        others = stack.enter_context(run_tasks(config, other_tasks, language_model.tokenizer))
        eval_tasks = {**workers.tasks, **others}
        named = {name: task.task for name, task in eval_tasks.items()}
        completions = CompletionLog(run.completions, saved_config.log, named, language_model.tokenizer, progress.warn)
        completions.cut_after(state.step)
        progress.log(language_model.trained)
        yield Session(
            config=config,
            saved_config=saved_config,
            run=run,
            workers=workers,
            eval_tasks=eval_tasks,
            state=state,
            saved=saved,
            stop=stop,
            checkpointer=Checkpointer(saved_config, run, workers, saved),
            log=log,
            completions=completions,
            trackers=trackers,
        )
