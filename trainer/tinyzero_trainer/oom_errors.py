"""What to say when memory is too small, the GPU's or the machine's: what to set to what, and how to go on."""

import errno
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.checkpoint.run_directory import RunDirectory
from tinyzero_trainer.checkpoint.store import sealed
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.models.loading import ModelError
from tinyzero_trainer.plan.advice import (
    FEW_SEQUENCES,
    LAST_RESORT,
    LOADING,
    after_out_of_memory,
    fits_without_offload,
    without_advice,
)
from tinyzero_trainer.rollout.cuda_graph.kv_capacity import NoRoom

PHASES = {
    "the models were loaded": (LOADING,),
    "the checkpoint was loaded": (LOADING,),
    "the largest micro-batch was tried out": ("update_actor",),
    "the rollout engine took over the weights": ("update_weights",),
    "completions were generated": ("gen",),
    "log-probabilities and values were computed": ("old_log_prob", "ref", "values"),
    "the weights were updated": ("update_critic", "update_actor"),
    "a checkpoint was saved": ("update_weights",),
}
"""The phases of a plan that are meant, by what is said of them."""

_SIGNS = (
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "Triton Error [CUDA]: out of memory",
    "_STATUS_ALLOC_FAILED",  # of cuBLAS, cuDNN, cuSOLVER, cuSPARSE
    "CUBLAS_STATUS_NOT_INITIALIZED",  # what cuBLAS says where there is no room for its handle
)
"""In errors of what takes a GPU's memory without PyTorch's allocator: CUDA graphs, kernels, libraries' workspaces."""

_HOST_SIGNS = (
    "DefaultCPUAllocator",
    "cudaHostAlloc",
    "cudaHostRegister",
    "cudaErrorMemoryAllocation",
    "Cannot allocate memory",
    "(os error 12)",
)
"""In errors of what takes the machine's memory, pinned or not."""

_PINNING = "pin_memory"
"""In the line that fails where pinned memory runs out, which CUDA reports in the same words as a GPU's."""

_LEAST_COMPLETION = 16
"""Tokens: shorter completions are not proposed."""


class OutOfMemory(TinyZeroError):
    """A GPU's memory, or the machine's, is too small for the settings."""

    def __init__(self, what: str, advice: str, *, of_host: bool = False) -> None:
        """
        Args:
            what: happened, and when.
            advice: what to do.
            of_host: whether it was the machine's memory.
        """
        super().__init__(f"{what}; {advice}")
        self.what, self.of_host = what, of_host


@contextmanager
def explained(config: TrainConfig | None, phase: str, advice: str | None = None) -> Iterator[None]:
    """Within, running out of memory becomes an error that says what to do.

    Args:
        config: of the run; None = there is none, and `advice` is given.
        phase: what went on, in the past tense: "the weights were updated".
        advice: what to do where it is a GPU's memory; None = go on from the last checkpoint, or begin again, with
            settings that need less.

    Raises:
        OutOfMemory: memory ran out.
    """
    try:
        yield
        return
    except OutOfMemory as error:
        if advice is None or error.of_host:
            raise
        raise OutOfMemory(error.what, advice) from None  # that of who knows what was typed
    except NoRoom as error:
        what = f"the GPU's memory ran out while {phase} ({error})"
        raise OutOfMemory(what, advice or _for_few_sequences(_known(config), error)) from None
    except (RuntimeError, MemoryError, OSError, ModelError) as error:
        host, gpu, reason = _read((error.__cause__ if isinstance(error, ModelError) else None) or error)
        if not host and not gpu:
            raise
        traceback.clear_frames(error.__traceback__)  # which still hold what the failed pass did
    torch.cuda.empty_cache()
    if host:
        because = f" ({reason})" if reason else ""
        what = f"the machine's memory (RAM) ran out while {phase}{because}"
        raise OutOfMemory(what, _for_host(config), of_host=True)
    raise OutOfMemory(*_told(config, phase, reason, advice))


def out_of_memory(config: TrainConfig, phase: str, reason: str = "", advice: str | None = None) -> str:
    """One line: when a GPU's memory ran out, what to change to what, and how to go on.

    Args:
        config: of the run.
        phase: see `explained`.
        reason: what the allocator said.
        advice: see `explained`.
    """
    return str(OutOfMemory(*_told(config, phase, reason, advice)))


def _told(config: TrainConfig | None, phase: str, reason: str, advice: str | None) -> tuple[str, str]:
    because = f" ({reason})" if reason else ""
    if advice is None:
        advice = _advice(_known(config), PHASES.get(phase, ()))
    return f"the GPU's memory ran out while {phase}{because}", advice


def _advice(config: TrainConfig, phases: tuple[str, ...]) -> str:
    resumed = _has_checkpoint(config)
    with suppress(Exception):  # it asks a driver and reads files that may be broken in any way
        changes = after_out_of_memory(config, phases, resumed=resumed)
        return _again(config, changes) if changes else without_advice(config, phases, resumed=resumed)
    return LAST_RESORT


def _for_few_sequences(config: TrainConfig, error: NoRoom) -> str:
    """Where there is no room for even a few sequences."""
    resumed, changes = _has_checkpoint(config), ""
    with suppress(Exception):  # as above
        changes = after_out_of_memory(config, (FEW_SEQUENCES,), resumed=resumed)
    if changes:
        return _again(config, changes)
    if error.found:
        return f"{_again(config, f'rollout.max_sequences={error.found}')}, which is slow, or {LAST_RESORT}"
    tokens = config.rollout.max_tokens
    while tokens > error.share * config.rollout.max_tokens:
        tokens //= 2
    if tokens < _LEAST_COMPLETION:
        return LAST_RESORT
    where = "start a run in another --output with" if resumed else "start again with"
    return f"{where} rollout.max_tokens={tokens}, or {LAST_RESORT}"


def _for_host(config: TrainConfig | None) -> str:
    more = "end other programs, or take a smaller model or a machine with more memory"
    if config is None or config.memory.offload is None:
        return more
    with suppress(Exception):  # as above
        if fits_without_offload(config):
            return f"{_again(config, 'memory.offload=none')}, which keeps all on the GPU, or {more}"
    return f"memory.offload={config.memory.offload} takes it, and the GPU has no room for all: {more}"


def _read(error: BaseException) -> tuple[bool, bool, str]:
    """Whether the machine's memory ran out, whether a GPU's did, and what was said of it."""
    line = str(error).partition("\n")[0]
    reason = line.removeprefix("CUDA out of memory. ").partition(". ")[0].strip(" .")
    return _is_of_host(error), _is_of_gpu(error), reason


def _is_of_gpu(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or any(sign in str(error) for sign in _SIGNS)


def _is_of_host(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError):
        return False
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    text = str(error)
    if _is_of_gpu(error):  # newer releases of PyTorch name cudaErrorMemoryAllocation with a GPU's memory too
        place = traceback.extract_tb(error.__traceback__)[-1:]
        pinned = any(_PINNING in (frame.line or "") for frame in place)
        return pinned or any(sign in text for sign in ("cudaHostAlloc", "cudaHostRegister"))
    return any(sign in text for sign in _HOST_SIGNS)


def _again(config: TrainConfig, changes: str) -> str:
    again = "go on from the last checkpoint with --resume" if _has_checkpoint(config) else "start again with"
    return f"{again} {changes}"


def _known(config: TrainConfig | None) -> TrainConfig:
    assert config is not None, "without a configuration the advice must be given"
    return config


def _has_checkpoint(config: TrainConfig) -> bool:
    found = RunDirectory(Path(config.run.output).expanduser()).checkpoints
    return bool(config.run.output) and found.is_dir() and any(sealed(found))
