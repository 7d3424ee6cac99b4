"""Buffer sizes of the rollout engine `torch` on a GPU, for rollout/cuda_graph/ and for planning. No torch."""

SLOTS = 64
"""The cache is made for multiples of so many tokens."""

PREFILL_TOKENS = 32768
"""Tokens of prompts that are read at a time."""

GREEDY_BYTES, DRAWING_BYTES = 4, 26
"""Of a logit, beside itself, where it does not go through Triton's kernel: for the likeliest token; for top-p."""


def drawing_bytes(number: int, *, by_kernel: bool, greedy: bool) -> int:
    """Of each logit of a step, once for its graph and once where it was made ready.

    Args:
        number: bytes of a logit.
        by_kernel: whether tokens are drawn by Triton's kernel.
        greedy: whether the likeliest are taken.
    """
    beside = 0 if by_kernel else GREEDY_BYTES if greedy else DRAWING_BYTES
    return 2 * (number + beside)


FEW_SEQUENCES = 512
"""Generated at a time by the engine `torch` without CUDA graphs, where the configuration leaves it open."""
