"""The trainer's configuration: typed groups of keys, and how one is composed, resumed, checked and explained.

It says what to run, not how: no torch, no model and no plan in here.
"""

from tinyzero_trainer.config.algorithm import AlgorithmConfig as AlgorithmConfig
from tinyzero_trainer.config.algorithm import CriticConfig as CriticConfig
from tinyzero_trainer.config.algorithm import KlEstimator as KlEstimator
from tinyzero_trainer.config.algorithm import Layout as Layout
from tinyzero_trainer.config.algorithm import LoraConfig as LoraConfig
from tinyzero_trainer.config.algorithm import OptimizerConfig as OptimizerConfig
from tinyzero_trainer.config.rollout import CurriculumConfig as CurriculumConfig
from tinyzero_trainer.config.rollout import DataConfig as DataConfig
from tinyzero_trainer.config.rollout import LengthControlConfig as LengthControlConfig
from tinyzero_trainer.config.rollout import RolloutConfig as RolloutConfig
from tinyzero_trainer.config.rollout import RolloutCorrectionConfig as RolloutCorrectionConfig
from tinyzero_trainer.config.rollout import VllmConfig as VllmConfig
from tinyzero_trainer.config.run import AuditConfig as AuditConfig
from tinyzero_trainer.config.run import CheckpointConfig as CheckpointConfig
from tinyzero_trainer.config.run import DefaultModelConfig as DefaultModelConfig
from tinyzero_trainer.config.run import EvalConfig as EvalConfig
from tinyzero_trainer.config.run import LogConfig as LogConfig
from tinyzero_trainer.config.run import MemoryConfig as MemoryConfig
from tinyzero_trainer.config.run import ModelConfig as ModelConfig
from tinyzero_trainer.config.run import NewModelConfig as NewModelConfig
from tinyzero_trainer.config.run import ParallelConfig as ParallelConfig
from tinyzero_trainer.config.run import RayConfig as RayConfig
from tinyzero_trainer.config.run import RewardConfig as RewardConfig
from tinyzero_trainer.config.run import RunConfig as RunConfig
from tinyzero_trainer.config.sft import SftConfig as SftConfig
from tinyzero_trainer.config.train_config import TrainConfig as TrainConfig
