"""The rollout engine for Llama-like models on a GPU: start with engine.py. Its loop is ../batched_engine.py.

The network is in model.py; its kernels are in triton_kernels.py and attention_triton.py, and the same in plain torch
in reference_ops.py. graph_runner.py captures steps, kv_capacity.py says how many sequences fit.
"""
