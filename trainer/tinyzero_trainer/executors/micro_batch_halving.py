"""The largest micro-batch, tried out before the first step: half the tokens each time that a GPU's memory runs out."""

from collections.abc import Callable

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.distributed.workload import workload_of
from tinyzero_trainer.utils.oom import OutOfMemoryError, catch_out_of_memory


def halve_until_it_fits(config: TrainConfig, try_out: Callable[[int], None], report: Callable[[str], None]) -> int:
    """The tokens of a micro-batch that the GPUs have memory for, at most `optimizer.micro_batch_tokens`.

    A run learns the same with any number of them, since tokens are weighted over the whole mini-batch.

    Args:
        config: the run's.
        try_out: runs the largest micro-batch of at most so many tokens, on all ranks.
        report: receives a line each time that the number is halved.

    Raises:
        OutOfMemoryError: the longest sequence alone is too much, or the host's memory ran out.
    """
    tokens, work = config.optimizer.token_budget, workload_of(config, config.data.max_prompt_tokens)
    while True:
        try:
            with catch_out_of_memory("the largest micro-batch was tried out"):
                try_out(tokens)
            return tokens
        except OutOfMemoryError as error:
            error.micro_batch_tokens = tokens
            if error.on_host or tokens * work.sequence_parallel <= work.sequence:
                raise
            reason = f" ({error.reason})" if error.reason else ""
        before, tokens = tokens, min(tokens, work.micro_batch) // 2
        report(f"the GPU's memory ran out{reason}: optimizer.micro_batch_tokens is {tokens} from here on, not {before}")
