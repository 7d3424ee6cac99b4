"""Generating completions: the engine protocol and the engine that runs in this process."""

from tinyzero_trainer.rollout.engine import RolloutEngine, SamplingParams
from tinyzero_trainer.rollout.torch_engine import TorchEngine

__all__ = ["RolloutEngine", "SamplingParams", "TorchEngine"]
