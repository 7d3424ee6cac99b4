"""The trainer's configuration: typed groups of keys, and how one is composed, resumed, checked and explained.

It says what to run, not how: no torch, no model and no plan in here.
"""

from tinyzero_trainer.config.algorithm import Advantage, Aggregation, AlgorithmConfig, Estimator
from tinyzero_trainer.config.optimizer import CriticConfig, Decay, Layout, LoraConfig, OptimizerConfig
from tinyzero_trainer.config.rollout import (
    CurriculumConfig,
    DataConfig,
    LengthControlConfig,
    RolloutConfig,
    RolloutCorrectionConfig,
    VllmConfig,
)
from tinyzero_trainer.config.run import (
    CheckpointConfig,
    EvalConfig,
    LogConfig,
    MemoryConfig,
    ModelConfig,
    ParallelConfig,
    RayConfig,
    RewardConfig,
    RunConfig,
)
from tinyzero_trainer.config.sft import DefaultModelConfig
from tinyzero_trainer.config.train_config import TrainConfig

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
