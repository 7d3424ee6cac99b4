"""Saving a run and resuming it: weights, optimizers, the trainer's state and a prefetched batch in one checkpoint."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import tomli_w
import torch
from rich.filesize import decimal

from tinyzero_sdk.console import plural
from tinyzero_trainer.algorithms.user_functions import version_of
from tinyzero_trainer.checkpoint import store
from tinyzero_trainer.checkpoint.run_directory import RunDirectory
from tinyzero_trainer.config import SftConfig, TrainConfig
from tinyzero_trainer.config.model_defaults import PRESET_FILE
from tinyzero_trainer.config.resume import check_fingerprint, fingerprint, resume_command
from tinyzero_trainer.controller.in_flight import IN_FLIGHT_FILE, InFlight, load_in_flight
from tinyzero_trainer.controller.rollout_batch import BATCH_FILE, RolloutBatch, load_batch
from tinyzero_trainer.controller.state import TrainerState
from tinyzero_trainer.executors.base import Workers
from tinyzero_trainer.utils.oom import catch_out_of_memory

STATE_DIRECTORY = "training_state"


@dataclass(frozen=True)
class SavedRun:
    """A checkpoint, as far as it is read before the workers are built."""

    checkpoint: store.Checkpoint
    state: TrainerState
    prefetched: RolloutBatch | None
    in_flight: InFlight | None = None


def newest_checkpoint(config: TrainConfig | SftConfig, run: RunDirectory) -> SavedRun | None:
    """The newest intact checkpoint of a run, None if it has not saved one; refuses that of another configuration."""
    checkpoint = store.latest(run.checkpoints)
    if checkpoint is None:
        return None
    check_fingerprint(config, str(checkpoint.meta["config"]))
    directory = checkpoint.path / STATE_DIRECTORY
    return SavedRun(
        checkpoint,
        TrainerState.load(directory),
        load_batch(directory / BATCH_FILE),
        load_in_flight(directory / IN_FLIGHT_FILE),
    )


def restore(saved: SavedRun | None, workers: Workers) -> TrainerState:
    """The state of a checkpoint or of a new run; loads the optimizers' states into workers built with its weights."""
    if saved is None:
        model = workers.language_model
        sizes = {"parameters": model.parameters, "trained_parameters": model.trained_parameters}
        return TrainerState(pending_metrics={f"model/{name}": float(size) for name, size in sizes.items()})
    assert workers.policy is not None
    directory = saved.checkpoint.path / STATE_DIRECTORY
    with catch_out_of_memory("the checkpoint was loaded"):
        workers.policy.load(directory)
        if workers.critic is not None:
            workers.critic.load(directory)
    for line in saved.checkpoint.skipped:
        workers.display.warn(line)
    workers.display.log(f"resuming from step {saved.state.step:,}")
    return saved.state


def how_to_resume(run: RunDirectory, config: TrainConfig | SftConfig) -> str:
    """What of a run is saved, and the command that resumes it, as a part of a message."""
    place = run.place
    newest = max((step for step, _ in store.sealed(RunDirectory(place).checkpoints)), default=None)
    if newest is None:
        return "nothing has been saved yet: start again"
    return f"step {newest:,} is saved; resume with: {resume_command(config, None if place == run.path else place)}"


class Checkpointer:
    """Writes the checkpoints of a run."""

    def __init__(
        self, config: TrainConfig | SftConfig, run: RunDirectory, workers: Workers, saved: SavedRun | None = None
    ) -> None:
        """`saved` is the newest checkpoint, from which the run was resumed; warns of functions that changed since."""
        assert workers.policy is not None
        self.config, self.run, self.workers, self.policy = config, run, workers, workers.policy
        self._saved_step, self._timing = None if saved is None else saved.state.step, dict[str, float]()
        of_run = None if isinstance(config, SftConfig) else config.algorithm
        names = () if of_run is None else (of_run.advantage_estimator, of_run.policy_loss)
        self._functions = {name: version_of(name) for name in names if ":" in name}
        meta: Any = {} if saved is None else saved.checkpoint.meta
        for name, version in self._functions.items():
            if meta.get("functions", {}).get(name, version) != version:
                workers.display.warn(f"the file of {name} has changed since step {self._saved_step:,} was saved")
        now = torch.get_num_threads()
        if (threads := meta.get("threads", now)) != now and not self.policy.gpu_memory():
            workers.display.warn(
                f"step {self._saved_step:,} was computed by {plural(threads, 'thread')}, the next by {now}, which "
                f"rounds differently; OMP_NUM_THREADS={threads} gives the same bits"
            )

    def save(self, state: TrainerState, save_ahead: Callable[[Path], None]) -> None:
        """Save a checkpoint of the present step, unless there is one; `save_ahead` writes what later steps have."""
        if self._saved_step == state.step:
            return
        workers, started = self.workers, perf_counter()

        def fill(directory: Path) -> None:
            state_directory = directory / STATE_DIRECTORY
            with catch_out_of_memory("a checkpoint was saved"):
                self.policy.export(directory)
                if isinstance(self.config, SftConfig):
                    (directory / PRESET_FILE).write_text(tomli_w.dumps(self.config.recorded()), encoding="utf-8")
                state_directory.mkdir()
                self.policy.save(state_directory)
                if workers.critic is not None:
                    workers.critic.save(state_directory)
            state.save(state_directory)
            save_ahead(state_directory)
            if self.run.place != self.run.path:  # what libraries have made anew goes
                shutil.rmtree(directory)
                with suppress(OSError):  # it is another's
                    self.run.checkpoints.rmdir()
                    self.run.path.rmdir()
            self.run.require_in_place()

        meta = {
            "config": fingerprint(self.config),
            "tasks": {name: task.task.version for name, task in workers.tasks.items()},
            "torch": torch.__version__,
            "world_size": self.policy.world_size,
            "threads": torch.get_num_threads(),
            **({"functions": self._functions} if self._functions else {}),
        }
        root, keep = self.run.checkpoints, self.config.checkpoint.keep
        with workers.display.activity("saving a checkpoint"):
            store.save(root, state.step, fill, meta=meta, keep=keep)
        self._saved_step = state.step
        self._timing = {"timing_s/save_checkpoint": perf_counter() - started}

    def warn_of_full_disk(self) -> None:
        """Warn if the disk has too little space for the checkpoints that the run will keep."""
        model, critic = self.workers.language_model, self.workers.critic
        # Weights and AdamW's two moments in float32; a critic is as large as the model and trained as a whole.
        size = 4 * (model.parameters + 2 * model.trained_parameters) + (0 if critic is None else 12 * model.parameters)
        keep, present = max(self.config.checkpoint.keep, store.MIN_KEEP), len(list(store.sealed(self.run.checkpoints)))
        need, free = size * max(1, keep + 1 - present), shutil.disk_usage(self.run.checkpoints).free
        if need > free:
            self.workers.display.warn(
                f"{keep} checkpoints and the next take {decimal(need)} more of the disk, which has {decimal(free)} "
                "free; make room, choose another --output, or keep fewer (checkpoint.keep=2)"
            )

    def timing(self) -> dict[str, float]:
        """Seconds of the last save, once: its own step's line is written before it, so the next one reports it."""
        timing, self._timing = self._timing, {}
        return timing
