"""A collected batch, and its JSON: in a checkpoint, so that a resumed run trains on the same completions.

A batch with which an update was skipped is kept in the run's directory.
"""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from pydantic import TypeAdapter

from tinyzero_sdk.console import plural
from tinyzero_sdk.data.files import replacing
from tinyzero_sdk.errors import DataError
from tinyzero_trainer.checkpoint.run_directory import RunDirectory
from tinyzero_trainer.checkpoint.store import damage_in_one_line
from tinyzero_trainer.controller.length_control import LengthControlState
from tinyzero_trainer.data.prompts import StreamState
from tinyzero_trainer.training.optimizer import UpdateError
from tinyzero_trainer.types import Prompt, Rollout

BATCH_FILE = "next_batch.json"
MOST_SKIPPED = 10
"""Batches kept of skipped updates."""

_SKIPPED = re.compile(r"step_(\d+)\.json")


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """The completions of a step, and the state of streams and length limit after sampling them."""

    step: int
    """Training step (1-based)."""

    version: int
    """Steps completed by the oldest weights that sampled any of it."""

    rollouts: list[Rollout]
    """All completions."""

    kept: list[Rollout]
    """Those trained on: whole groups."""

    greedy_rewards: list[float] | None
    """Score of each kept prompt's greedy completion; None unless the advantages need it, as `remax` does."""

    max_tokens: int
    """Limit of a completion's length."""

    length_control: LengthControlState

    progress: dict[str, StreamState]
    """Position of each task's training stream."""

    curriculum_metrics: dict[str, float]

    seconds: dict[str, float]
    """Wall-clock time of each phase."""

    in_flight: int = 0
    """Groups that were in flight when it was collected, its own left out."""


_BATCH, _PROMPTS = TypeAdapter(RolloutBatch), TypeAdapter(list[Prompt])


def to_json(batch: RolloutBatch) -> bytes:
    """A batch as JSON: each prompt once, however many completions it has, and floats to the last bit."""
    values = _BATCH.dump_python(batch, exclude={"kept"})
    rollouts: list[dict[str, Any]] = values["rollouts"]
    prompts = {id(rollout.prompt): saved["prompt"] for rollout, saved in zip(batch.rollouts, rollouts, strict=True)}
    prompt_indices = {key: index for index, key in enumerate(prompts)}
    rollout_indices = {id(rollout): index for index, rollout in enumerate(batch.rollouts)}
    values |= {
        "prompts": list(prompts.values()),
        "asked": [prompt_indices[id(rollout.prompt)] for rollout in batch.rollouts],
        "rollouts": [rollout["generation"] for rollout in rollouts],
        "texts": [rollout["text"] for rollout in rollouts],
        "scores": [rollout["score"] for rollout in rollouts],
        "kept": [rollout_indices[id(rollout)] for rollout in batch.kept],
    }
    # Not dump_json, which refuses a text with half a surrogate pair and turns NaN into null.
    return json.dumps(values, default=list).encode()  # arrays, from another process


def from_json(text: bytes) -> RolloutBatch:
    """What `to_json` wrote."""
    values = json.loads(text)
    prompts = _PROMPTS.validate_python(values.pop("prompts"))
    columns = (values.pop(name) for name in ("asked", "rollouts", "texts", "scores"))
    rollouts = [
        {"prompt": prompts[index], "generation": generation, "text": text, "score": score}
        for index, generation, text, score in zip(*columns, strict=True)
    ]
    batch = _BATCH.validate_python({**values, "rollouts": rollouts, "kept": []})
    return replace(batch, kept=[batch.rollouts[index] for index in values["kept"]])


def save_batch(batch: RolloutBatch, directory: Path) -> None:
    """Write a batch to a checkpoint's state directory."""
    (directory / BATCH_FILE).write_bytes(to_json(batch))


def load_batch(file: Path) -> RolloutBatch | None:
    """The batch in a file; None if there is no file, a DamagedCheckpointError if it holds no batch."""
    with damage_in_one_line(file):
        return from_json(file.read_bytes()) if file.exists() else None


class SkippedUpdates:
    """Reports updates that were skipped, and keeps the newest of their batches in the run's directory."""

    def __init__(self, run: RunDirectory, warn: Callable[[str], None]) -> None:
        self.run, self._warn = run, warn

    def watch(self, batch: RolloutBatch, update: Callable[[], dict[str, float]]) -> dict[str, float]:
        """The metrics of `update`, which trains on the batch.

        Raises:
            UpdateError: too many updates in a row were skipped; the message says how to look at this one.
        """
        try:
            metrics = update()
        except UpdateError as error:
            raise UpdateError(f"{error}, the last in step {batch.step:,}; {self._keep(batch)}") from error
        if count := sum(metrics.get(f"{model}/skipped_updates", 0) for model in ("actor", "critic")):
            skipped = f"skipped {plural(int(count), 'update')}, whose loss or gradient is not finite"
            self._warn(f"step {batch.step:,}: {skipped}; {self._keep(batch)}")
        else:
            with suppress(OSError):  # that of an earlier session, from whose checkpoint the run was resumed
                self.run.skipped_batch(batch.step).unlink(missing_ok=True)
        return metrics

    def _keep(self, batch: RolloutBatch) -> str:
        """Write a batch; what to do with it, or why it cannot be written."""
        file = self.run.skipped_batch(batch.step)
        try:
            with replacing(file) as temporary:
                temporary.write_bytes(to_json(batch))
            matches = [(_SKIPPED.fullmatch(path.name), path) for path in file.parent.glob("step_*.json")]
            by_step = sorted((int(match[1]), path) for match, path in matches if match)
            for _, old in by_step[:-MOST_SKIPPED]:
                old.unlink()
        except (DataError, OSError) as error:
            return f"its batch is not kept: {error}"
        return f"to see where: tinyzero replay {quote(str(self.run.path))} {batch.step}"
