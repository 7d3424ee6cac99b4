"""What to say when a GPU's memory is too small: which setting to change to what, and how to go on."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.checkpoint import sealed
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.plan.advice import after_out_of_memory
from tinyzero_trainer.run_directory import RunDirectory

_PHASES = {
    "completions were generated": ("gen",),
    "log-probabilities and values were computed": ("old_log_prob", "ref", "values"),
    "the weights were updated": ("update_critic", "update_actor"),
    "the largest micro-batch was tried out": ("update_actor",),
    "the rollout engine took over the weights": ("update_weights",),
}
"""The phases of a plan that are meant, by what is said of them."""

_SIGNS = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""In errors of what takes memory without PyTorch's allocator: CUDA graphs, and libraries' workspaces."""


class OutOfMemory(TinyZeroError):
    """A GPU's memory is too small for the settings."""


@contextmanager
def explained(config: TrainConfig, phase: str, advice: str | None = None) -> Iterator[None]:
    """Within, running out of memory becomes an error that says what to do.

    Args:
        config: of the run.
        phase: what went on, in the past tense: "the weights were updated".
        advice: what to do; None = go on from the last checkpoint, or begin again, with settings that need less.

    Raises:
        OutOfMemory: the GPU's memory ran out.
    """
    try:
        yield
        return
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and not any(sign in str(error) for sign in _SIGNS):
            raise
        line = str(error).partition("\n")[0]
        asked = line.removeprefix("CUDA out of memory. ").partition(". ")[0].strip(" .")
    # Out of the handler the traceback, and with it what the failed pass still held, is gone.
    torch.cuda.empty_cache()
    raise OutOfMemory(out_of_memory(config, phase, asked, advice))


def out_of_memory(config: TrainConfig, phase: str, reason: str = "", advice: str | None = None) -> str:
    """One line: when it happened, what to change to what, and how to go on.

    Args:
        config: of the run.
        phase: see `explained`.
        reason: what the allocator said.
        advice: see `explained`.
    """
    because = f" ({reason})" if reason else ""
    if advice is None:
        changes = after_out_of_memory(config, _PHASES.get(phase, ()))
        again = "go on from the last checkpoint with --resume" if _has_checkpoint(config) else "start again with"
        advice = f"{again} {changes}" if changes else "take a smaller model"
    return f"the GPU's memory ran out while {phase}{because}; {advice}"


def _has_checkpoint(config: TrainConfig) -> bool:
    found = RunDirectory(Path(config.run.output).expanduser()).checkpoints
    return bool(config.run.output) and found.is_dir() and any(sealed(found))
