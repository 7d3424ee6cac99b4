"""Numbers of all rollout engines that predictions need too. No torch in here.

What an engine takes of a GPU's memory is predicted in its own folder: vllm/predictions.py, torch/predictions.py.
"""

DECODING_SHARE = 0.8
"""Fraction of a GPU's peak FLOP/s that decoding reaches, with any engine."""

LEAST_SEQUENCES = 16
"""Proposed to be generated at a time, at least."""

WEIGHT_BUCKET = 2**28
"""Bytes of memory for one broadcast of weights to dedicated engines, in each process: large enough for NCCL's full
bandwidth."""
