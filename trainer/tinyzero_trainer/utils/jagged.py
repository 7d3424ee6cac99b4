"""Values of completions of unequal lengths: concatenated in a flat tensor, or as a padded matrix."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def repeat_to_tokens(values: Tensor, lengths: Tensor, total: int | None = None) -> Tensor:
    """[tokens] the value of its completion at each token, from [completions]; `total` tokens saves a GPU sync."""
    return values.repeat_interleave(lengths, output_size=total)


def sums(values: Tensor, lengths: Tensor) -> Tensor:
    """[completions] the sum over each completion's tokens, from [tokens]."""
    owners = repeat_to_tokens(torch.arange(len(lengths), device=values.device), lengths, len(values))
    return torch.zeros(len(lengths), dtype=values.dtype, device=values.device).index_add(0, owners, values)


def to_matrix(values: Tensor, lengths: Tensor) -> Tensor:
    """[completions, longest] with zeros after a completion's end, from [tokens]."""
    matrix = values.new_zeros(len(lengths), int(lengths.max()))
    matrix[_present(lengths)] = values
    return matrix


def from_matrix(matrix: Tensor, lengths: Tensor) -> Tensor:
    """[tokens] from [completions, longest], without what follows a completion's end."""
    return matrix[_present(lengths)]


def _present(lengths: Tensor) -> Tensor:
    return torch.arange(int(lengths.max()), device=lengths.device)[None, :] < lengths[:, None]


def select(values: Tensor, lengths: Tensor, rows: Sequence[int]) -> Tensor:
    """[tokens of the chosen completions], in the order of `rows`, from [tokens]; both on the CPU."""
    return torch.from_numpy(values.numpy()[token_indices(lengths, rows)])


def token_indices(lengths: Tensor, rows: Sequence[int]) -> "np.ndarray | slice":
    """Indices of the chosen completions' tokens among all tokens, in the order of `rows`; on the CPU.

    In NumPy: torch would wake all its threads for each of these short operations.
    """
    all_lengths, chosen = lengths.numpy(), np.asarray(rows, dtype=np.int64)
    ends = all_lengths.cumsum()
    if len(chosen) and (np.diff(chosen) == 1).all():
        return slice(int(ends[chosen[0]] - all_lengths[chosen[0]]), int(ends[chosen[-1]]))
    chosen_lengths = all_lengths[chosen]
    # A token's index among all is that among the chosen ones plus its completion's offset.
    offsets = ends[chosen] - chosen_lengths.cumsum()
    indices: np.ndarray = np.arange(chosen_lengths.sum()) + offsets.repeat(chosen_lengths)
    return indices
