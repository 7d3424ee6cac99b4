"""The rollout engine for Llama-like models on a GPU. Begin with engine.py, the order of things.

A batch's tensors are in state.py, the network in model.py with weights.py, what a step does for each sequence in
attention.py (on a GPU in step_kernels.py), how a step becomes a graph in replaying.py, and how many sequences there is
room for in room.py.
"""
