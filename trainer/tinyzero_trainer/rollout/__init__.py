"""Generating completions. Scoring them is in rewards/, where the engines run is in executors/.

Every engine is a `RolloutEngine` (engine.py) in a folder named after it, whose kind.py says what it can do; build.py
builds the one of a run. background_engine.py lets an engine sample on in a thread, for `rollout.max_async_level`.

- torch/: plain torch in this process, for any model and device, with CUDA graphs for Llama-like models on a GPU.
- vllm/: vLLM, in a process of its own.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tinyzero_trainer.rollout.engine import RolloutEngine, SamplingParams

if TYPE_CHECKING:
    from tinyzero_trainer.rollout.generation import generate
    from tinyzero_trainer.rollout.torch.torch_engine import TorchEngine

__all__ = ["RolloutEngine", "SamplingParams", "TorchEngine", "generate"]


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is first used, since the configuration asks the kinds of engines."""
    modules = {"TorchEngine": "torch.torch_engine", "generate": "generation"}
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{modules[name]}"), name)
