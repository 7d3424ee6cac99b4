"""Generating completions. Every engine is behind the protocol in engine.py; build.py says which one a run gets.

- torch_engine.py with decoder.py: any model on any device, in plain torch.
- graph/: Llama-like models on a GPU, every step a CUDA graph.
- vllm/: vLLM, beside the trainer.

The first two are `rollout.engine=torch`, and share sampling.py and engine.py.
"""

from tinyzero_trainer.rollout.engine import RolloutEngine, SamplingParams
from tinyzero_trainer.rollout.torch_engine import TorchEngine

__all__ = ["RolloutEngine", "SamplingParams", "TorchEngine"]
