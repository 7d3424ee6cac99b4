"""What to say when a GPU's memory is too small: which setting to change to what, and how to go on."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.plan.advice import after_out_of_memory

_PHASES = {
    "completions were generated": ("gen",),
    "log-probabilities and values were computed": ("old_log_prob", "ref", "values"),
    "the weights were updated": ("update_critic", "update_actor"),
}
"""The phases of a plan that are meant, by what is said of them."""


class OutOfMemory(TinyZeroError):
    """A GPU's memory is too small for the settings."""


@contextmanager
def explained(config: TrainConfig, phase: str) -> Iterator[None]:
    """Within, running out of memory becomes an error that says what to do.

    Args:
        config: of the run.
        phase: what went on, in the past tense: "the weights were updated".

    Raises:
        OutOfMemory: the GPU's memory ran out.
    """
    try:
        yield
        return
    except torch.OutOfMemoryError as error:
        asked = str(error).removeprefix("CUDA out of memory. ").partition(". ")[0].strip(" .")
    # Out of the handler the traceback, and with it what the failed pass still held, is gone.
    torch.cuda.empty_cache()
    raise OutOfMemory(out_of_memory(config, phase, asked))


def out_of_memory(config: TrainConfig, phase: str, reason: str = "") -> str:
    """One line: when it happened, what to change to what, and how to go on.

    Args:
        config: of the run.
        phase: see `explained`.
        reason: what the allocator said.
    """
    changes = after_out_of_memory(config, _PHASES.get(phase, ()))
    because = f" ({reason})" if reason else ""
    advice = f"go on from the last checkpoint with --resume {changes}" if changes else "take a smaller model"
    return f"the GPU's memory ran out while {phase}{because}; {advice}"
