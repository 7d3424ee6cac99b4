"""From a task's problems to prompts: splits, curriculum, mixture of tasks. Generating and scoring are elsewhere."""

from tinyzero_trainer.data.mixture import Mixture
from tinyzero_trainer.data.prompts import PromptSource, PromptStream

__all__ = ["Mixture", "PromptSource", "PromptStream"]
