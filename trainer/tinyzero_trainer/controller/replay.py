"""A step of a run taken again: what it did, and whether its metrics are those recorded; for `tinyzero replay`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tinyzero_trainer.checkpoint.run_directory import RunDirectory
from tinyzero_trainer.controller.session import Session, Stepper
from tinyzero_trainer.monitoring.metrics_log import plain_number
from tinyzero_trainer.training.diagnosis import Diagnosis
from tinyzero_trainer.training.optimizer import UpdateError
from tinyzero_trainer.utils.signals import left_at_once

NOT_OF_THE_STEP = ("timing_", "perf/", "time/", "val-", "val/", "audit/")
"""Metrics that depend on the clock, or are measured between steps."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """A step taken again."""

    run: Path
    step: int
    start: int  # step of the checkpoint before it, or 0
    kept_batch: bool  # whether it trained on the batch that was kept, as an update of the step was skipped
    error: str | None  # why it ended early: too many updates in a row were skipped
    models: Mapping[str, Diagnosis]  # policy and critic
    metrics: Mapping[str, float | None]  # all but those that depend on the clock; empty if it ended early
    recorded: Mapping[str, Any] | None
    """The metrics that the run wrote; None if it wrote no line for the step."""

    @property
    def differing(self) -> list[str]:
        """Names of the metrics that are not equal to those recorded, to the last bit."""
        if self.recorded is None or self.error is not None:
            return []
        names = sorted(self.metrics.keys() | self.recorded.keys())
        return [name for name in names if self.metrics.get(name, ...) != self.recorded.get(name, ...)]


def replay(run: Path, step: int, session: Session, training_step: Stepper, rows: list[dict[str, Any]]) -> Replayed:
    """Take the steps of a session, of a copy of `run` with the metrics `rows`, up to `step`, which is diagnosed."""
    state, workers = session.state, session.workers
    kept, start, error = RunDirectory(run).skipped_batch(step), state.step, None
    learners: dict[str, Any] = {"policy": workers.policy, "critic": workers.critic}
    learners = {name: learner for name, learner in learners.items() if learner is not None}
    unwatched: Any = SimpleNamespace(watch=lambda step, update, batch: update())  # leaves batches and the display alone
    training_step.skipped = unwatched
    metrics: dict[str, float | None] = {}
    with left_at_once(f"while step {step:,} was taken again"):
        workers.display.train(step, done=start)
        while state.step < step and error is None:
            if state.step == step - 1:
                for learner in learners.values():
                    learner.diagnose()
                if kept.exists():
                    training_step.repeat(kept)
            try:
                rollouts, row = training_step.take(state.step + 1)
            except UpdateError as skipped:
                if state.step < step - 1:
                    raise
                error = str(skipped)
            else:
                state.step += 1
                row |= state.add_totals(rollouts, row["timing_s/step"])
                workers.display.step(state.step, row)
                metrics = _of_step(row)
                if training_step.failure is not None:
                    raise training_step.failure
        models = {name: learner.diagnosis() for name, learner in learners.items()}
    recorded = next((_of_step(row) for row in rows if row["step"] == step), None)
    return Replayed(run, step, start, kept.exists(), error, models, {} if error else metrics, recorded)


def _of_step(row: Mapping[str, Any]) -> dict[str, float | None]:
    named = {name: value for name, value in row.items() if name != "step" and not name.startswith(NOT_OF_THE_STEP)}
    return {name: None if value is None else plain_number(value) for name, value in named.items()}
