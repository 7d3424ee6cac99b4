"""The trainer's configuration: typed groups of keys, and how one is composed, resumed, checked and explained.

It says what to run, not how: no torch, no model and no plan in here.
"""

from tinyzero_trainer.config.algorithm import AlgorithmConfig, CriticConfig, LoraConfig, OptimizerConfig
from tinyzero_trainer.config.rollout import (
    CurriculumConfig,
    DataConfig,
    LengthControlConfig,
    RolloutConfig,
    RolloutCorrectionConfig,
)
from tinyzero_trainer.config.run import (
    CheckpointConfig,
    DefaultModelConfig,
    EvalConfig,
    LogConfig,
    MemoryConfig,
    ModelConfig,
    ParallelConfig,
    RayConfig,
    RewardConfig,
    RunConfig,
    VllmConfig,
)
from tinyzero_trainer.config.train_config import TrainConfig
from tinyzero_trainer.config.types import Advantage, Aggregation, Decay, Estimator, Layout

__all__ = [
    "Advantage",
    "Aggregation",
    "AlgorithmConfig",
    "CheckpointConfig",
    "CriticConfig",
    "CurriculumConfig",
    "DataConfig",
    "Decay",
    "DefaultModelConfig",
    "Estimator",
    "EvalConfig",
    "Layout",
    "LengthControlConfig",
    "LogConfig",
    "LoraConfig",
    "MemoryConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "RayConfig",
    "RewardConfig",
    "RolloutConfig",
    "RolloutCorrectionConfig",
    "RunConfig",
    "TrainConfig",
    "VllmConfig",
]
