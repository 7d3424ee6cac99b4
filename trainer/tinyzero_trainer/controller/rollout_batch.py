"""A collected batch, and its JSON: in a checkpoint, so that a resumed run trains on the same completions."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from tinyzero_trainer.checkpoint.store import damage_in_one_line
from tinyzero_trainer.controller.length_control import LengthControlState
from tinyzero_trainer.data.prompts import StreamState
from tinyzero_trainer.types import Prompt, Rollout

BATCH_FILE = "next_batch.json"


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """The completions of a step, and the state of streams and length limit after sampling them."""

    step: int  # 1-based
    version: int  # steps completed by the oldest weights that sampled any of it
    rollouts: list[Rollout]
    kept: list[Rollout]  # those trained on: whole groups
    greedy_rewards: list[float] | None
    """Score of each kept prompt's greedy completion; None unless the advantages need it."""

    max_tokens: int  # limit of a completion's length
    length_control: LengthControlState
    progress: dict[str, StreamState]  # position of each task's training stream
    curriculum_metrics: dict[str, float]
    seconds: dict[str, float]  # wall-clock time of each phase
    in_flight: int = 0  # groups that were in flight when it was collected, its own left out


_BATCH, _PROMPTS, _ROLLOUTS = TypeAdapter(RolloutBatch), TypeAdapter(list[Prompt]), TypeAdapter(list[Rollout])


def to_json(batch: RolloutBatch) -> bytes:
    values = _BATCH.dump_python(batch, exclude={"rollouts", "kept"})
    places = {id(rollout): place for place, rollout in enumerate(batch.rollouts)}
    values |= _columns(batch.rollouts) | {"kept": [places[id(rollout)] for rollout in batch.kept]}
    return _dumped(values)


def from_json(text: bytes) -> RolloutBatch:
    """What `to_json` wrote."""
    values = json.loads(text)
    batch = _BATCH.validate_python({**values, "rollouts": _rollouts(values), "kept": []})
    return replace(batch, kept=[batch.rollouts[place] for place in values["kept"]])


def rollouts_to_json(rollouts: Sequence[Rollout]) -> bytes:
    return _dumped(_columns(rollouts))


def rollouts_from_json(text: bytes) -> list[Rollout]:
    """What `rollouts_to_json` wrote."""
    return _ROLLOUTS.validate_python(_rollouts(json.loads(text)))


def _columns(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Each prompt once, however many completions it has, and floats to the last bit."""
    prompts = {id(rollout.prompt): rollout.prompt for rollout in rollouts}
    places = {key: place for place, key in enumerate(prompts)}
    dumped = _ROLLOUTS.dump_python(list(rollouts), exclude={"__all__": {"prompt", "advantage", "entropies"}})
    for rollout, values in zip(rollouts, dumped, strict=True):
        values["prompt"] = places[id(rollout.prompt)]
    return {"prompts": _PROMPTS.dump_python(list(prompts.values())), "rollouts": dumped}


def _rollouts(values: dict[str, Any]) -> list[dict[str, Any]]:
    prompts = _PROMPTS.validate_python(values.pop("prompts"))
    return [{**rollout, "prompt": prompts[rollout["prompt"]]} for rollout in values.pop("rollouts")]


def _dumped(values: dict[str, Any]) -> bytes:
    # Not dump_json, which refuses a text with half a surrogate pair and turns NaN into null.
    return json.dumps(values, default=list).encode()  # arrays, from another process


def load_batch(file: Path) -> RolloutBatch | None:
    """The batch in a file; None if there is no file, a DamagedCheckpointError if it holds no batch."""
    with damage_in_one_line(file):
        return from_json(file.read_bytes()) if file.exists() else None
