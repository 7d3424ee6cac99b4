"""Generating completions. Scoring them is in rewards/, where the engines run is in executors/.

Every engine is a `RolloutEngine` (engine.py); build.py chooses the one for a run.

- `rollout.engine=torch`, in plain torch in this process: torch_engine.py with decoder.py for any model and device, and
  cuda_graph/ for Llama-like models on a GPU. What they share is in batched_engine.py, scheduler.py, batch_state.py and
  sampling.py.
- `rollout.engine=vllm`: vllm/.
- For `rollout.max_async_level`: background_engine.py lets an engine of `torch` sample in a thread,
  async_batch_engine.py lets vLLM sample batch by batch behind the same interface.
"""

from tinyzero_trainer.rollout.engine import RolloutEngine, SamplingParams
from tinyzero_trainer.rollout.generate import generate
from tinyzero_trainer.rollout.torch_engine import TorchEngine

__all__ = ["RolloutEngine", "SamplingParams", "TorchEngine", "generate"]
