"""The rollout engine `torch`: start with torch_engine.py, or cuda_graph/ for Llama-like models on a GPU.

Their decoding loop is in batched_engine.py, with scheduler.py, batch_state.py and sampling.py; decoder.py runs a model
without CUDA graphs.
"""
