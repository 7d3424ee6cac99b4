"""Numbers of all rollout engines that predictions need too. No torch in here."""

WEIGHT_BUCKET = 2**28
"""Bytes of memory for one broadcast of weights to dedicated engines, in each process: large enough for NCCL's full
bandwidth."""
