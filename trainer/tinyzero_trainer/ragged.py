"""Values of completions of unequal lengths, one after another in a flat tensor, and the same as a padded matrix."""

from collections.abc import Sequence

import torch
from torch import Tensor


def spread(values: Tensor, lengths: Tensor) -> Tensor:
    """[tokens] the value of its completion at each token, from [completions]."""
    return values.repeat_interleave(lengths)


def sums(values: Tensor, lengths: Tensor) -> Tensor:
    """[completions] the sum over each completion's tokens, from [tokens]."""
    owners = torch.arange(len(lengths), device=values.device).repeat_interleave(lengths)
    return torch.zeros(len(lengths), dtype=values.dtype, device=values.device).index_add(0, owners, values)


def means(values: Tensor, lengths: Tensor) -> Tensor:
    """[completions] the mean over each completion's tokens, from [tokens]."""
    return sums(values, lengths) / lengths


def to_matrix(values: Tensor, lengths: Tensor) -> Tensor:
    """[completions, longest] with zeros after a completion's end, from [tokens]."""
    matrix = values.new_zeros(len(lengths), int(lengths.max()))
    matrix[_present(lengths)] = values
    return matrix


def from_matrix(matrix: Tensor, lengths: Tensor) -> Tensor:
    """[tokens] from [completions, longest]; what stands after a completion's end is left out."""
    return matrix[_present(lengths)]


def last_tokens(lengths: Tensor) -> Tensor:
    """[completions] the place of each completion's last token among all tokens."""
    return lengths.cumsum(0) - 1


def _present(lengths: Tensor) -> Tensor:
    return torch.arange(int(lengths.max()), device=lengths.device)[None, :] < lengths[:, None]


def take(values: Tensor, lengths: Tensor, rows: Sequence[int]) -> Tensor:
    """[tokens of the chosen completions], in the order of `rows`, from [tokens]."""
    parts = values.split(lengths.tolist())
    return torch.cat([parts[row] for row in rows])
