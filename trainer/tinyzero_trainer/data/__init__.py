"""From a task's problems to prompts: splits, curriculum, mixture of tasks. Generating and scoring are elsewhere."""

from tinyzero_trainer.data.mixture import Mixture as Mixture
from tinyzero_trainer.data.prompts import PromptSource as PromptSource
from tinyzero_trainer.data.prompts import PromptStream as PromptStream
