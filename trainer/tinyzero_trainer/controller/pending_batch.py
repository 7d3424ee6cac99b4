"""A collected batch, and its JSON in a checkpoint: a resumed run trains on the same completions."""

import dataclasses
import json
from pathlib import Path

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from tinyzero_sdk import Score
from tinyzero_trainer.algorithms.adaptive_length import WindowState
from tinyzero_trainer.data.prompts import StreamState
from tinyzero_trainer.types import Generation, Prompt, Rollout

BATCH_FILE = "next_batch.json"


@dataclasses.dataclass(frozen=True, slots=True)
class RolloutBatch:
    """The completions of a step, and the state of streams and length limit after sampling them."""

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

    window: int
    """Length limit in tokens."""

    window_after: WindowState

    progress: dict[str, StreamState]
    """Position of each task's training stream."""

    chosen: dict[str, float]
    """Metrics of how the problems were chosen."""

    seconds: dict[str, float]
    """Wall-clock seconds of each phase."""


@dataclass(frozen=True)
class _Saved:
    """Each prompt once, however many completions it has."""

    step: int
    version: int
    prompts: list[Prompt]
    asked: list[int]  # of each completion, which of the prompts
    rollouts: list[Generation]
    texts: list[str]
    scores: list[Score]
    kept: list[int]  # which of the completions are trained on
    greedy_rewards: list[float] | None
    window: int
    window_after: WindowState
    progress: dict[str, StreamState]
    chosen: dict[str, float]
    seconds: dict[str, float]


_SAVED = TypeAdapter(_Saved)


def to_json(batch: RolloutBatch) -> bytes:
    """A batch as JSON; floats to the last bit."""
    prompts = list({id(sample.prompt): sample.prompt for sample in batch.rollouts}.values())
    prompt_indices = {id(prompt): index for index, prompt in enumerate(prompts)}
    rollout_indices = {id(sample): index for index, sample in enumerate(batch.rollouts)}
    saved = _Saved(
        step=batch.step,
        version=batch.version,
        prompts=prompts,
        asked=[prompt_indices[id(sample.prompt)] for sample in batch.rollouts],
        rollouts=[sample.generation for sample in batch.rollouts],
        texts=[sample.text for sample in batch.rollouts],
        scores=[sample.score for sample in batch.rollouts],
        kept=[rollout_indices[id(sample)] for sample in batch.kept],
        greedy_rewards=batch.greedy_rewards,
        window=batch.window,
        window_after=batch.window_after,
        progress=batch.progress,
        chosen=batch.chosen,
        seconds=batch.seconds,
    )
    # Not dump_json, to which a text with half a surrogate pair is an error, and a number that is none is null.
    return json.dumps(_SAVED.dump_python(saved)).encode()


def from_json(text: bytes) -> RolloutBatch:
    """What `to_json` wrote."""
    saved = _SAVED.validate_python(json.loads(text))
    asked = [saved.prompts[index] for index in saved.asked]
    samples = [*map(Rollout, asked, saved.rollouts, saved.texts, saved.scores)]
    return RolloutBatch(
        step=saved.step,
        version=saved.version,
        rollouts=samples,
        kept=[samples[index] for index in saved.kept],
        greedy_rewards=saved.greedy_rewards,
        window=saved.window,
        window_after=saved.window_after,
        progress=saved.progress,
        chosen=saved.chosen,
        seconds=saved.seconds,
    )


def save_batch(batch: RolloutBatch, directory: Path) -> None:
    """Write a batch to a checkpoint's state directory."""
    (directory / BATCH_FILE).write_bytes(to_json(batch))


def load_batch(directory: Path) -> RolloutBatch | None:
    """The batch of a checkpoint's state directory; None if it has none."""
    file = directory / BATCH_FILE
    return from_json(file.read_bytes()) if file.exists() else None
