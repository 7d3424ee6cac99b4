"""What engines in this process have drawn, as rollouts."""

import torch
from torch import Tensor

from tinyzero_trainer.types import Generation


def to_rollouts(tokens: Tensor, logprobs: Tensor | None, lengths: Tensor, finished: Tensor) -> list[Generation]:
    """Lists from columns.

    Args:
        tokens: [steps, rows].
        logprobs: [steps, rows], or None where they are not wanted.
        lengths: [rows] tokens of each row.
        finished: [rows] whether an end token was drawn.
    """
    # One list of what counts, and slices of it: an object for each padding as well would take longer.
    valid = torch.arange(len(tokens), device=tokens.device) < lengths[:, None]  # [rows, steps]
    ids = tokens.T[valid].tolist()
    values = None if logprobs is None else logprobs.T[valid].tolist()
    rollouts, start = [], 0
    for length, done in zip(lengths.tolist(), finished.tolist(), strict=True):
        end = start + length
        rollouts.append(Generation(ids[start:end], None if values is None else values[start:end], bool(done)))
        start = end
    return rollouts
