"""From a task's problems to prompts: splits, curriculum, mixture of tasks. Generating and scoring are elsewhere."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinyzero_trainer.data.mixture import Mixture as Mixture
    from tinyzero_trainer.data.prompts import PromptSource as PromptSource
    from tinyzero_trainer.data.prompts import PromptStream as PromptStream

__all__ = ["Mixture", "PromptSource", "PromptStream"]


def __getattr__(name: str) -> Any:
    """Import torch with the names that need it: the process of `chat_template.py` does without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tinyzero_trainer.data import mixture, prompts

    return getattr(mixture if name == "Mixture" else prompts, name)
