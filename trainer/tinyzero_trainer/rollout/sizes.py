"""Numbers of all rollout engines that predictions need too; those of one are in its cost_model.py. No torch in here."""

GB = 1e9  # unit of `vllm.gpu_memory_gb`
DECODING_SHARE = 0.8  # fraction of a GPU's peak FLOP/s that decoding reaches, with any engine
LEAST_SEQUENCES = 16  # proposed to be generated at a time, at least
WEIGHT_BUCKET = 2**28  # bytes of a broadcast of weights to dedicated engines: large enough for NCCL's full bandwidth
