"""Numbers of the rollout engine `torch` that predictions need too. No torch in here."""

CACHE_BLOCK = 64
"""Positions by which the KV cache grows, so that short completions do not pay for the longest allowed."""

PREFILL_TOKENS = 32768
"""Tokens of prompts that are read at a time with CUDA graphs."""

FEW_SEQUENCES = 512
"""Sequences generated at a time without CUDA graphs, where `rollout.max_num_seqs` leaves it open."""

STEP_NUMBERS = 8
"""Intermediate numbers of a sequence in a decoding step, per unit of the MLP's width."""

STEP_SECONDS, LAYER_SECONDS = 100e-6, 24e-6
"""Seconds of a replayed CUDA graph for a decoding step, and for each layer in it."""

BANDWIDTH_SHARE = 0.95
"""Fraction of a GPU's memory bandwidth that decoding reaches."""

LEAST_TOKENS = 180
"""Tokens by which a sequence seems longer when its cache is read: the cost of starting to read."""

FP8_PRODUCTS, FP8_CACHE = 0.62, 1.3
"""In fp8, the time of matrix products relative to that in bfloat16, and the bytes that a number of the cache seems to
have: it is converted, which takes time as well."""

PLAIN_STEP_SECONDS, PLAIN_LAYER_SECONDS = 5e-3, 1.1e-3
"""Seconds on the host for a decoding step without CUDA graphs, and for each layer in it: Python launches kernel after
kernel. Between what two virtual hosts took, 32 and 36 ms."""

PLAIN_CACHE_PASSES = 14
"""How often the cache is read or written in a step without CUDA graphs: it is copied to grow, and read by kernels made
for several queries. Measured."""

PLAIN_LOGIT_BYTES = 50
"""Bytes read and written for each logit when plain torch samples, without CUDA graphs."""


def sampling_bytes(number: int, *, by_kernel: bool, greedy: bool) -> int:
    """Bytes taken for each logit of a step: once for its graph, once where it was prepared.

    A logit has `number` bytes. Tokens are sampled by the Triton kernel or by plain torch, which takes less if `greedy`.
    """
    return 2 * (number + (0 if by_kernel else 4 if greedy else 26))
