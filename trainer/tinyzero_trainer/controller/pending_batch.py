"""A collected batch as JSON, for a checkpoint: a run that goes on trains on the very same completions."""

import json

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from tinyzero_sdk import Score
from tinyzero_trainer.algorithms.adaptive_length import WindowState
from tinyzero_trainer.controller.collector import RolloutBatch
from tinyzero_trainer.data.prompts import StreamState
from tinyzero_trainer.types import Generation, Prompt, Rollout


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
    prompts = list({id(sample.prompt): sample.prompt for sample in batch.samples}.values())
    prompt_places = {id(prompt): place for place, prompt in enumerate(prompts)}
    sample_places = {id(sample): place for place, sample in enumerate(batch.samples)}
    saved = _Saved(
        step=batch.step,
        version=batch.version,
        prompts=prompts,
        asked=[prompt_places[id(sample.prompt)] for sample in batch.samples],
        rollouts=[sample.generation for sample in batch.samples],
        texts=[sample.text for sample in batch.samples],
        scores=[sample.score for sample in batch.samples],
        kept=[sample_places[id(sample)] for sample in batch.kept],
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
    asked = [saved.prompts[place] for place in saved.asked]
    samples = [*map(Rollout, asked, saved.rollouts, saved.texts, saved.scores)]
    return RolloutBatch(
        step=saved.step,
        version=saved.version,
        samples=samples,
        kept=[samples[place] for place in saved.kept],
        greedy_rewards=saved.greedy_rewards,
        window=saved.window,
        window_after=saved.window_after,
        progress=saved.progress,
        chosen=saved.chosen,
        seconds=saved.seconds,
    )
