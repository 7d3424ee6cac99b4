"""Numbers of all rollout engines that predictions need too; those of one are in its cost_model.py. No torch in here."""

GB = 1e9
"""Unit of `vllm.gpu_memory_gb`."""

DECODING_SHARE = 0.8
"""Fraction of a GPU's peak FLOP/s that decoding reaches, with any engine."""

LEAST_SEQUENCES = 16
"""Proposed to be generated at a time, at least."""

WEIGHT_BUCKET = 2**28
"""Bytes of memory for one broadcast of weights to dedicated engines, in each process: large enough for NCCL's full
bandwidth."""
