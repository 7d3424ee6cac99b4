"""The rollout engine for Llama-like models on a GPU. Begin with engine.py, the order of things.

A batch's tensors are in batch_state.py, the network in model.py with rollout/weight_sync.py, what a step does for each
sequence in training/varlen_attention.py (on a GPU in triton_kernels.py), how a step becomes a graph in graph_runner.py,
and how many sequences there is room for in kv_capacity.py.
"""
