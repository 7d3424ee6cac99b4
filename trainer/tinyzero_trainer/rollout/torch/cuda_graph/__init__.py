"""The rollout engine for Llama-like models on a GPU: start with engine.py. Its loop is ../batched_engine.py.

The network is in model.py, with kernels in triton_kernels.py and attention_triton.py; kv_capacity.py says how many
sequences fit.
"""
