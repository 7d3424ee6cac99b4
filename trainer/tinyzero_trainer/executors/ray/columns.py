"""Completions on their way to the training ranks: a few columns, not millions of Python numbers one by one."""

from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from typing import Any, cast

import numpy as np

from tinyzero_sdk import Item, Score
from tinyzero_trainer.types import Generation, Prompt, Rollout

Column = tuple[np.ndarray, np.ndarray]
"""Token ids of one sequence after another, and where each ends."""


class SentRollouts(list[Rollout]):
    """Rollouts for the passes of the ranks.

    What arrives is a list with the completions' token ids as read-only int32 arrays, texts, and whether a rollout is
    masked; ground truths, scores and log-probabilities stay here: the ranks get the latter as columns of the batch.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        prompts = list({id(rollout.prompt): rollout.prompt for rollout in self}.values())
        places = {id(prompt): place for place, prompt in enumerate(prompts)}
        return _received_rollouts, (
            _column(prompt.token_ids for prompt in prompts),
            _joined([prompt.text for prompt in prompts]),
            [places[id(rollout.prompt)] for rollout in self],
            _column(rollout.generation.token_ids for rollout in self),
            _joined([rollout.text for rollout in self]),
            [(rollout.generation.finished, rollout.score.masked) for rollout in self],
        )


def _received_rollouts(
    prompt_ids: Column,
    prompt_texts: tuple[str, np.ndarray],
    places: list[int],
    ids: Column,
    texts: tuple[str, np.ndarray],
    flags: list[tuple[bool, bool]],
) -> list[Rollout]:
    prompts = [
        Prompt(Item(None), text, tokens.tolist())  # a list, since micro-batches look completions up by their prompt
        for text, tokens in zip(_parts(*prompt_texts), _parts(*prompt_ids), strict=True)
    ]
    scores = {masked: Score(0.0, False, masked=masked) for masked in (False, True)}
    return [
        Rollout(prompts[place], Generation(cast(Any, tokens), None, finished=finished), text, scores[masked])
        for place, tokens, text, (finished, masked) in zip(places, _parts(*ids), _parts(*texts), flags, strict=True)
    ]


def _column(sequences: Iterable[Sequence[int]]) -> Column:
    pieces = list(sequences)
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    return np.fromiter(chain.from_iterable(pieces), np.int32, int(ends[-1]) if pieces else 0), ends


def _joined(texts: Sequence[str]) -> tuple[str, np.ndarray]:
    return "".join(texts), np.cumsum([len(text) for text in texts], dtype=np.int64)


def _parts(whole: Any, ends: np.ndarray) -> list[Any]:
    return [whole[start:end] for start, end in pairwise([0, *ends.tolist()])]
