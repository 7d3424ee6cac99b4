"""Flat values of completions, and the same as a padded matrix."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_trainer.utils import jagged


@given(st.lists(st.lists(st.integers(-9, 9), min_size=1, max_size=5), min_size=1, max_size=6), st.randoms())
def test_flat_and_padded_are_the_same_values(rows: list[list[int]], random) -> None:
    lengths = torch.tensor([len(row) for row in rows])
    flat = torch.tensor([float(value) for row in rows for value in row])
    matrix = jagged.to_matrix(flat, lengths)
    assert [line[: len(row)] for line, row in zip(matrix.tolist(), rows, strict=True)] == rows
    assert jagged.from_matrix(matrix, lengths).tolist() == flat.tolist()
    assert jagged.sums(flat, lengths).tolist() == [sum(row) for row in rows]
    order = random.sample(range(len(rows)), len(rows))
    assert jagged.select(flat, lengths, order).tolist() == [value for row in order for value in rows[row]]
    owners = jagged.repeat_to_tokens(torch.arange(len(rows)), lengths)
    assert owners.tolist() == [index for index, row in enumerate(rows) for _ in row]
