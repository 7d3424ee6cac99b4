"""Completions on their way between processes: a few columns, not millions of Python numbers one by one."""

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, cast

import numpy as np

from tinyzero_sdk import Item, Score
from tinyzero_trainer.types import Generation, Prompt, Rollout

Column = tuple[np.ndarray, np.ndarray]
"""Numbers of one sequence after another, and where each ends."""


class SentGroups(list[list[Generation]]):
    """Completions on their way from an engine, which arrive with token ids and log-probabilities as arrays."""

    def __reduce__(self) -> tuple[Any, ...]:
        completions = [*chain.from_iterable(self)]
        logprobs = [completion.logprobs for completion in completions if completion.logprobs is not None]
        assert len(logprobs) in (0, len(completions)), "an engine returns them for all completions of a batch or none"
        return _received_groups, (
            [0, *accumulate(map(len, self))],
            _column((completion.token_ids for completion in completions), np.int32),
            _column(logprobs, np.float64) if logprobs else None,
            [(completion.finished, completion.versions) for completion in completions],
        )


def _received_groups(
    bounds: list[int], ids: Column, logprobs: Column | None, others: list[tuple[bool, Any]]
) -> list[list[Generation]]:
    """As arrays that make no object of a number before it is used: of two million, it would take the driver 60 ms."""
    columns = [array("d", part.tobytes()) for part in _parts(*logprobs)] if logprobs else [None] * len(others)
    completions = [
        Generation(array("i", part.tobytes()), column, finished, versions)
        for part, column, (finished, versions) in zip(_parts(*ids), columns, others, strict=True)
    ]
    return [completions[start:end] for start, end in pairwise(bounds)]


class SentRollouts(list[Rollout]):
    """Rollouts for the passes of the ranks.

    What arrives is a list with the completions' token ids as read-only int32 arrays, texts, and whether a rollout is
    masked; ground truths, scores and log-probabilities stay here: the ranks get the latter as columns of the batch.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        prompts = list({id(rollout.prompt): rollout.prompt for rollout in self}.values())
        places = {id(prompt): place for place, prompt in enumerate(prompts)}
        return _received_rollouts, (
            _column((prompt.token_ids for prompt in prompts), np.int32),
            _joined([prompt.text for prompt in prompts]),
            [places[id(rollout.prompt)] for rollout in self],
            _column((rollout.generation.token_ids for rollout in self), np.int32),
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


def _column(sequences: Iterable[Sequence[float]], dtype: type[np.number]) -> Column:
    pieces = [np.asarray(sequence, dtype) for sequence in sequences]
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    return np.concatenate(pieces) if pieces else np.empty(0, dtype), ends


def _joined(texts: Sequence[str]) -> tuple[str, np.ndarray]:
    return "".join(texts), np.cumsum([len(text) for text in texts], dtype=np.int64)


def _parts(whole: Any, ends: np.ndarray) -> list[Any]:
    return [whole[start:end] for start, end in pairwise([0, *ends.tolist()])]
