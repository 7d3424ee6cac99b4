"""Which rollout engine a run gets."""

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.models import LanguageModel
from tinyzero_trainer.rollout.engine import RolloutEngine
from tinyzero_trainer.rollout.torch_engine import TorchEngine


def build_engine(config: TrainConfig, language_model: LanguageModel) -> RolloutEngine:
    """The engine that `rollout.engine` names, with the weights that the model has now."""
    return TorchEngine(
        language_model.model,
        eos_ids=language_model.eos_ids,
        pad_id=language_model.pad_id,
        max_sequences=config.rollout.max_sequences,
    )
