"""Sequences over ranks: each once, evenly; and the same number of passes through the model on each rank."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.samples import make_sample
from tinyzero_trainer.distributed.groups import DataParallelGroup
from tinyzero_trainer.training.micro_batches import Layout, micro_batches
from tinyzero_trainer.training.seqlen_balancing import balance

CPU = torch.device("cpu")
LENGTHS = st.lists(st.integers(1, 500), min_size=1, max_size=60)


@given(LENGTHS, st.integers(1, 9))
def test_each_sequence_has_one_rank_and_ranks_have_about_equal_tokens(lengths: list[int], ranks: int) -> None:
    shares = balance(lengths, ranks)
    assert len(shares) == ranks
    assert sorted(row for share in shares for row in share) == list(range(len(lengths)))
    assert all(share == sorted(share) for share in shares)
    tokens = [sum(lengths[row] for row in share) for share in shares]
    assert max(tokens) - min(tokens) <= max(lengths)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 30)), min_size=1, max_size=20),
    st.integers(1, 120),
    st.sampled_from(["padded", "packed"]),
    st.integers(1, 5),
)
def test_ranks_run_equally_many_passes_and_take_every_sequence_once(
    shapes: list[tuple[int, int]], budget: int, layout: Layout, count: int
) -> None:
    samples = [make_sample(prompt, completion) for prompt, completion in shapes]
    given_to = [
        list(
            micro_batches(
                samples,
                token_budget=budget,
                pad_id=0,
                device=CPU,
                layout=layout,
                ranks=DataParallelGroup(count, rank),
            )
        )
        for rank in range(count)
    ]
    assert len({len(batches) for batches in given_to}) == 1
    assert any(not batches[-1].is_padding for batches in given_to)  # none more than is needed
    counted = [row for batches in given_to for batch in batches if not batch.is_padding for row in batch.indices]
    assert sorted(counted) == list(range(len(samples)))
    for batch in (batch for batches in given_to for batch in batches if batch.is_padding):
        assert batch.tokens.numel() == min(map(sum, shapes))
