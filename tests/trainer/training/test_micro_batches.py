"""A mini-batch cut into micro-batches, padded or packed."""

from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from tests.trainer.samples import make_rollout, make_sample
from tinyzero_trainer.algorithms.batch import mini_batch_indices
from tinyzero_trainer.distributed.groups import DataParallelGroup, SequenceParallelGroup
from tinyzero_trainer.training.micro_batches import PIECES, Layout, fill_budget, micro_batches

CPU = torch.device("cpu")


@given(st.integers(1, 40), st.integers(1, 5), st.data())
def test_mini_batches_cover_every_row_once_in_whole_groups(prompts: int, samples: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, prompts))
    ranges = mini_batch_indices(prompts, samples, count)
    assert [row for rows in ranges for row in rows] == list(range(prompts * samples))
    assert len(ranges) == count
    sizes = [len(rows) // samples for rows in ranges]
    assert all(len(rows) % samples == 0 for rows in ranges)
    assert max(sizes) - min(sizes) <= 1


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 30)), min_size=1, max_size=20),
    st.integers(1, 120),
    st.sampled_from(["padded", "packed"]),
)
def test_micro_batches_hold_every_token_once_within_the_budget(
    shapes: list[tuple[int, int]], budget: int, layout: Layout
) -> None:
    samples = [make_sample(prompt, completion) for prompt, completion in shapes]
    batches = list(micro_batches(samples, token_budget=budget, pad_id=0, device=CPU, layout=layout))
    assert sorted(row for batch in batches for row in batch.indices) == list(range(len(samples)))
    for batch in batches:
        targets = [token for row in batch.indices for token in samples[row].generation.token_ids]
        assert batch.targets.tolist() == targets
        assert batch.lengths.tolist() == [len(samples[row].generation.token_ids) for row in batch.indices]
    assert all(batch.tokens.numel() <= budget or len(batch.indices) == 1 for batch in batches)
    if layout == "packed":
        assert sum(batch.tokens.numel() for batch in batches) == sum(map(sum, shapes))  # nothing is filled up
        for batch, following in pairwise(batches):  # none was closed too early
            assert batch.tokens.numel() + sum(shapes[following.indices[0]]) > budget


@pytest.mark.slow
@given(st.integers(2, 5000), st.integers(1, 2000), st.integers(2, 3000))
def test_the_warm_up_batch_fills_the_budget(budget: int, most: int, context: int) -> None:
    samples = fill_budget(budget, most, context=context)
    (batch,) = micro_batches(samples, token_budget=budget, pad_id=0, device=CPU, layout="packed")
    assert budget - 1 <= batch.tokens.numel() <= budget
    assert batch.longest <= min(most + 1, context)


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_each_position_that_counts_predicts_its_target(layout: Layout) -> None:
    samples = [make_sample(3, 2), make_sample(1, 5)]
    (batch,) = micro_batches(samples, token_budget=1000, pad_id=0, device=CPU, layout=layout)
    following = torch.roll(batch.tokens, -1, dims=1)
    assert torch.equal(following.flatten()[batch.predicts], batch.targets)
    assert (batch.tokens.numel() if batch.mask is None else batch.mask.sum().item()) == 3 + 2 + 1 + 5


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 30)), min_size=1, max_size=20),
    st.integers(1, 120),
    st.booleans(),
)
def test_a_row_that_ranks_divide_is_filled_up_with_a_sequence_of_its_own(
    shapes: list[tuple[int, int]], budget: int, share: bool
) -> None:
    samples = [make_sample(prompt, completion) for prompt, completion in shapes]
    options = {"pad_id": 7, "device": CPU, "layout": "packed", "share_prompts": share}
    groups = [DataParallelGroup(sequence_group=SequenceParallelGroup(16, rank)) for rank in range(16)]
    slices = [micro_batches(samples, token_budget=budget, ranks=ranks, **options) for ranks in groups]
    for plain, *parts in zip(micro_batches(samples, token_budget=16 * budget, **options), *slices, strict=True):
        count, more = plain.tokens.numel(), -plain.tokens.numel() % 16
        tokens, positions = (torch.cat([getattr(part, name)[0] for part in parts]) for name in ("tokens", "positions"))
        assert plain.positions is not None
        assert tokens.tolist() == plain.tokens[0].tolist() + [7] * more
        assert positions.tolist() == plain.positions[0].tolist() + list(range(more))
        assert torch.cat([part.targets for part in parts]).equal(plain.targets)
        size = len(tokens) // 16
        predicts = torch.cat([part.predicts + place * size for place, part in enumerate(parts)])
        assert predicts.equal(plain.predicts)
        for filled in parts:
            assert plain.boundaries is not None
            assert filled.boundaries is not None
            assert filled.boundaries.tolist() == plain.boundaries.tolist() + [count + more] * (more > 0)
            if share:
                assert filled.key_indices.tolist() == plain.key_indices.tolist() + list(range(count, count + more))
                lengths = plain.key_boundaries.diff().tolist() + [more] * (more > 0)
                assert filled.key_boundaries.diff().tolist() == lengths
            assert filled.longest == max(plain.longest, more)
            assert filled.lengths.equal(plain.lengths)
            assert filled.indices == plain.indices
            assert filled.counts == tuple(len(part.predicts) for part in parts)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), min_size=1, max_size=20), st.integers(1, 120))
def test_completions_in_a_row_share_their_prompt_and_each_sees_its_own_tokens(shapes: list, budget: int) -> None:
    samples = [make_sample((1, 2, 7)[kind], completion) for kind, completion in shapes]
    options = {"token_budget": budget, "pad_id": 0, "device": CPU, "layout": "packed"}
    batches = list(micro_batches(samples, **options, share_prompts=True))
    assert sorted(row for batch in batches for row in batch.indices) == list(range(len(samples)))
    for batch in batches:
        rows = [samples[row] for row in batch.indices]
        seen = [batch.key_indices[start:end] for start, end in pairwise(batch.key_boundaries.tolist())]
        own = [list(range(start, end)) for start, end in pairwise(batch.boundaries.tolist())]
        assert [keys.tolist()[len(keys) - len(places) :] for keys, places in zip(seen, own, strict=True)] == own
        assert batch.longest == max(map(len, seen))
        assert all(torch.equal(batch.positions[0, keys], torch.arange(len(keys))) for keys in seen)
        tokens = [batch.tokens[0, keys].tolist() for keys in seen]
        wholes = [row.prompt.token_ids + row.generation.token_ids for row in rows]
        prompts = [row.prompt.token_ids for row in rows]
        shared = [prompt[:-1] for prompt in ([100, 101], list(range(100, 107))) if prompts.count(prompt) > 1]
        assert sorted(tokens) == sorted(wholes + shared)
        assert batch.tokens.numel() == sum(map(len, wholes)) - sum(
            (prompts.count([*prompt, 100 + len(prompt)]) - 1) * len(prompt) for prompt in shared
        )
        assert torch.equal(torch.roll(batch.tokens, -1, dims=1).flatten()[batch.predicts], batch.targets)
        assert batch.targets.tolist() == [token for row in rows for token in row.generation.token_ids]
        assert batch.lengths.tolist() == [len(row.generation.token_ids) for row in rows]
        assert batch.tokens.numel() <= budget or len(rows) == 1
        assert len(batch.key_indices) <= 2 * budget or len(rows) == 1


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 8), st.integers(1, 30)), min_size=1, max_size=12),
    st.integers(2, 5),
)
@example([(1, 1, 3), (3, 3, 1), (1, 1, 3)], 2)
def test_ranks_divide_prompts_before_completions(shapes: list, count: int) -> None:
    samples = [
        make_rollout([place, *range(prompt)], [0] * completion)
        for place, (prompt, group_size, completion) in enumerate(shapes)
        for _ in range(group_size)
    ]
    options = {"token_budget": 10**6, "pad_id": 0, "device": CPU, "layout": "packed", "share_prompts": True}
    found = [list(micro_batches(samples, **options, ranks=DataParallelGroup(count, rank))) for rank in range(count)]
    rows = [[batch for batch in of_rank if not batch.is_padding] for of_rank in found]
    assert sorted(index for of_rank in rows for batch in of_rank for index in batch.indices) == list(
        range(len(samples))
    )
    sizes = [sum(batch.tokens.numel() for batch in of_rank) for of_rank in rows]
    (alone,) = micro_batches(samples, **options)
    largest = max(prompt + 1 + group_size * completion for prompt, group_size, completion in shapes)
    # Pieces of a group that meet on a rank share the prompt again, which the division counts for each.
    of_rank = [Counter(samples[index].prompt.token_ids[0] for batch in row for index in batch.indices) for row in rows]
    torn = [place for place in range(len(shapes)) if sum(place in groups for groups in of_rank) > 1]
    met = [sum(shapes[place][0] * max(0, groups[place] - 1) for place in torn) for groups in of_rank]
    assert max(sizes) - min(sizes) <= largest + max(met)
    if len(shapes) >= PIECES * count and len(set(shapes)) == 1:
        assert sum(sizes) == alone.tokens.numel()  # no prompt is there twice


def test_long_prompts_fill_the_budget() -> None:
    samples = [make_rollout([place, *range(99)], [0] * 10) for place in range(4) for _ in range(8)]
    sizes = [
        [
            batch.tokens.numel()
            for batch in micro_batches(
                samples, token_budget=880, pad_id=0, device=CPU, layout="packed", share_prompts=share
            )
        ]
        for share in (False, True)
    ]
    assert [len(each) for each in sizes] == [4, 3]
    assert sum(sizes[1]) <= 4 * (99 + 8 * 11) + 2 * 99
