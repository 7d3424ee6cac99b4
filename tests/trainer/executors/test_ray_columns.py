"""Completions as they reach another process."""

import pickle
from dataclasses import replace
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.samples import make_rollout, masked
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.executors.ray.columns import SentGroups, SentRollouts
from tinyzero_trainer.training.micro_batches import micro_batches
from tinyzero_trainer.types import Generation, Rollout

IDS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5)
CPU = torch.device("cpu")


@given(
    st.lists(st.tuples(IDS, st.text(max_size=3)), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), IDS, st.text(max_size=5), st.booleans(), st.booleans()), max_size=8),
)
def test_ranks_get_ids_texts_and_masks(prompts: list, completions: list) -> None:
    asked = [replace(make_rollout(ids, []).prompt, text=text) for ids, text in prompts]
    rollouts: list[Rollout] = []
    for place, ids, text, finished, is_masked in completions:
        one = make_rollout([0], ids, [-1.0] * len(ids))
        one = replace(one, prompt=asked[place % len(asked)], text=text)
        one = replace(one, generation=replace(one.generation, finished=finished))
        rollouts.append(masked(one) if is_masked else one)
    received = pickle.loads(pickle.dumps(SentRollouts(rollouts)))
    assert [_seen(one) for one in received] == [_seen(one) for one in rollouts]
    assert len({id(one.prompt) for one in received}) == len({id(one.prompt) for one in rollouts})


@given(
    st.booleans(),
    st.lists(
        st.lists(
            st.tuples(
                st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats()), min_size=1, max_size=5), st.booleans()
            )
        )
    ),
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=2),
)
def test_the_trainer_gets_the_completions_of_an_engine(with_logprobs: bool, groups: list, versions: list) -> None:
    sent = [
        [
            Generation([i for i, _ in tokens], [p for _, p in tokens] if with_logprobs else None, end, tuple(versions))
            for tokens, end in group
        ]
        for group in groups
    ]
    received = pickle.loads(pickle.dumps(SentGroups(sent)))
    assert repr([list(map(_plain, group)) for group in received]) == repr(sent)  # NaN is not equal to itself


def _plain(completion: Generation) -> Generation:
    """With lists for arrays."""
    logprobs = completion.logprobs and list(completion.logprobs)
    return replace(completion, token_ids=list(completion.token_ids), logprobs=logprobs)


def _seen(rollout: Rollout) -> Any:
    prompt, generation = rollout.prompt, rollout.generation
    ids = list(map(int, prompt.token_ids)), list(map(int, generation.token_ids))
    return ids, prompt.text, rollout.text, generation.finished, rollout.score.masked


def test_they_make_the_same_micro_batches() -> None:
    rollouts = [make_rollout([1, 2, 3][: 1 + place % 3], list(range(1 + place))) for place in range(6)] * 2
    rollouts[3] = masked(rollouts[3])
    batch = TrainingBatch.of(rollouts, 2, advantages=torch.arange(sum(len(r.generation.token_ids) for r in rollouts)))
    received = pickle.loads(pickle.dumps(replace(batch, rollouts=SentRollouts(rollouts))))
    parts = [list(each.mini_batches(2, 1)) for each in (batch, received)]
    for one, other in zip(*parts, strict=True):
        assert one.indices == other.indices
        for layout, share in (("padded", False), ("packed", False), ("packed", True)):
            made = [
                list(
                    micro_batches(
                        part.rollouts, token_budget=12, pad_id=0, device=CPU, layout=layout, share_prompts=share
                    )
                )
                for part in (one, other)
            ]
            for mine, theirs in zip(*made, strict=True):
                assert mine.indices == theirs.indices
                assert torch.equal(mine.tokens, theirs.tokens)
                assert torch.equal(mine.targets, theirs.targets)
                assert torch.equal(mine.predicts, theirs.predicts)
