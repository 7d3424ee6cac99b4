"""Numbers of the rollout engine `vllm` that predictions need too. No torch in here."""

from tinyzero_trainer.hardware.gpu import MIB

GB = 1e9
"""Unit of `vllm.gpu_memory_gb`."""

MAX_SEQUENCES = 1024
"""Sequences generated at a time on a GPU where `rollout.max_num_seqs` is not set: more gain little."""

BESIDE = 700 * MIB
"""Bytes beyond `vllm.gpu_memory_gb`: CUDA graphs, and workspaces that vLLM's own profile misses."""

WORKSPACE = 900 * MIB
"""Bytes within `vllm.gpu_memory_gb`: activations of a prefill of 8,192 tokens."""

SAMPLER_BYTES = 12
"""Bytes within `vllm.gpu_memory_gb` for each logit of the sequences decoded at a time."""

ASLEEP = 900 * MIB
"""Bytes while it sleeps, without its process's context: CUDA graphs and workspaces."""

WAKE_SECONDS = 0.6
"""Seconds to put it to sleep without its weights, and to wake it up."""

STEP_SECONDS, SEQUENCE_SECONDS, LOGIT_BYTES = 1e-3, 14e-6, 115
"""Seconds on the host for a decoding step, and for each sequence in it; bytes read and written for each logit. Fitted
with `BANDWIDTH_SHARE` to all rows of engine_speeds.toml; hosts differ by a third."""

BANDWIDTH_SHARE = 0.9
"""Fraction of a GPU's memory bandwidth that decoding reaches."""
