"""A collected batch, and its JSON in a checkpoint: a resumed run trains on the same completions."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from tinyzero_trainer.algorithms.length_control import LengthControlState
from tinyzero_trainer.checkpoint.store import damage_in_one_line
from tinyzero_trainer.data.prompts import StreamState
from tinyzero_trainer.types import Prompt, Rollout

BATCH_FILE = "next_batch.json"


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """The completions of a step, and the state of streams and length limit after sampling them.

    The aliases are the names in a checkpoint.
    """

    step: int
    """Training step (1-based)."""

    version: int
    """Steps completed by the weights that sampled it."""

    rollouts: list[Rollout]
    """All completions."""

    kept: list[Rollout]
    """Those trained on: whole groups."""

    greedy_rewards: list[float] | None
    """Of the greedy completion of each kept prompt; None unless `algorithm.advantage_estimator=remax`."""

    max_tokens: Annotated[int, Field(alias="window")]
    """Limit of a completion's length."""

    length_control: Annotated[LengthControlState, Field(alias="window_after")]

    progress: dict[str, StreamState]
    """Position of each task's training stream."""

    curriculum_metrics: Annotated[dict[str, float], Field(alias="chosen")]

    seconds: dict[str, float]
    """Wall-clock time of each phase."""


_BATCH, _PROMPTS = TypeAdapter(RolloutBatch), TypeAdapter(list[Prompt])


def to_json(batch: RolloutBatch) -> bytes:
    """A batch as JSON: each prompt once, however many completions it has, and floats to the last bit."""
    values = _BATCH.dump_python(batch, by_alias=True, exclude={"kept"})
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
    return json.dumps(values).encode()


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


def load_batch(directory: Path) -> RolloutBatch | None:
    """The batch of a checkpoint's state directory; None if it has none, a DamagedCheckpointError if it is no batch."""
    file = directory / BATCH_FILE
    with damage_in_one_line(file):
        return from_json(file.read_bytes()) if file.exists() else None
