"""What to change after memory ran out, by the plan: added to the error where a command ends."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.settings import read_toml
from tinyzero_trainer.advisor.advice import FEW_SEQUENCES, LAST_RESORT, LOADING, after_out_of_memory, without_advice
from tinyzero_trainer.checkpoint.run_directory import RunDirectory
from tinyzero_trainer.checkpoint.store import sealed
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.settings import with_settings
from tinyzero_trainer.distributed.workload import workload_of
from tinyzero_trainer.rollout.torch.cuda_graph.kv_capacity import KvCacheError
from tinyzero_trainer.utils.oom import OutOfMemoryError

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
"""Phases of a plan by the phase that an error names."""


@contextmanager
def advise_on_out_of_memory(config: TrainConfig) -> Iterator[None]:
    """Add advice to an `OutOfMemoryError` of the block that has none."""
    try:
        yield
    except OutOfMemoryError as error:
        error.advice = error.advice or advice_for(error, config)
        raise


def advice_for(error: OutOfMemoryError, config: TrainConfig) -> str:
    """What to change to what, and how to resume, in one line."""
    run = RunDirectory(Path(config.run.output).expanduser())
    resumed = bool(config.run.output) and any(sealed(run.checkpoints))
    tokens = error.micro_batch_tokens
    if tokens is None and config.run.output:
        with suppress(TinyZeroError, LookupError):  # the run records it, and may have halved it at its start
            tokens = read_toml(run.config)["optimizer"]["micro_batch_tokens"]
    if tokens is not None:
        config = with_settings(config, {"optimizer.micro_batch_tokens": tokens})
    again = "resume from the last checkpoint with --resume" if resumed else "start again with"
    if error.on_host:
        more = "end other programs, or take a smaller model or a machine with more memory"
        return f"{again} memory.cpu_offload=none, or {more}" if config.memory.offload else more
    if error.phase in ("log-probabilities and values were computed", "the weights were updated"):
        work = workload_of(config, config.data.max_prompt_tokens)
        tokens = min(config.optimizer.token_budget, work.micro_batch)
        if tokens * work.sequence_parallel > config.rollout.max_completion_tokens:  # a completion does not fill it
            return f"{again} optimizer.micro_batch_tokens={tokens // 2}"
    phases = (FEW_SEQUENCES,) if isinstance(error, KvCacheError) else PHASES.get(error.phase, ())
    if changes := after_out_of_memory(config, phases, resumed=resumed):
        return f"{again} {changes}"
    if not isinstance(error, KvCacheError):
        return without_advice(config, phases, resumed=resumed)
    if error.fitting:
        return f"{again} rollout.max_num_seqs={error.fitting}, which is slow, or {LAST_RESORT}"
    new_run = "start a run in another --output" if resumed else "start again"
    return f"{new_run} with a lower rollout.max_completion_tokens, or {LAST_RESORT}"
