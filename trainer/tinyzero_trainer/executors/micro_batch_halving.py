"""Where a GPU's memory runs out in a pass: micro-batches of half the tokens, and the pass again, while that helps."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tinyzero_trainer.advisor.workload import workload_of
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.types import Rollout
from tinyzero_trainer.utils.oom import OutOfMemoryError, catch_out_of_memory

PASSES = frozenset({"logprobs", "reference_logprobs", "values", "update"})
"""Methods of policy, critic and teacher that can be repeated; the first argument is a batch or its completions."""

Result = TypeVar("Result")


class MicroBatchHalving:
    """The micro-batch of all models on all ranks.

    A pass that is split otherwise learns the same, since tokens are weighted over the whole mini-batch.
    """

    def __init__(self, config: TrainConfig, restart: Callable[[int], None], report: Callable[[str], None]) -> None:
        """`restart` makes every rank ready to repeat its pass, given the new budget; `report` receives a line."""
        self.tokens = config.optimizer.token_budget
        self._work = workload_of(config, config.data.max_prompt_tokens)
        self._restart, self._report = restart, report

    def try_largest(self, run: Callable[[], Result]) -> Result:
        """Call `run`, which tries out the largest micro-batch that the settings allow, until it fits."""
        return self._repeat(run, self._work.sequence, self._work.micro_batch)

    def _repeat(self, run: Callable[[], Result], longest: int, most: int) -> Result:
        """Call `run`, and again with half the tokens each time that a GPU's memory runs out.

        Args:
            run: a pass.
            longest: tokens of its longest sequence, which is never cut.
            most: tokens of its largest micro-batch on a rank where nothing is split.

        Raises:
            OutOfMemoryError: this sequence alone is too much, or the host's memory ran out.
        """
        halved = False
        while True:
            try:
                with catch_out_of_memory(""):
                    if halved:
                        self._restart(self.tokens)
                        halved = False
                    return run()
            except OutOfMemoryError as error:
                error.micro_batch_tokens = self.tokens
                if error.on_host or self.tokens * self._work.sequence_parallel <= longest:
                    raise
                reason = f" ({error.reason})" if error.reason else ""
            before, self.tokens, halved = self.tokens, min(self.tokens, most) // 2, True
            self._report(
                f"the GPU's memory ran out{reason}: optimizer.micro_batch_tokens is {self.tokens} from here on, not "
                f"{before}, and the pass is repeated"
            )

    def repeating(self, method: Callable[..., Result]) -> Callable[..., Result]:
        """One of `PASSES`, repeated so."""

        def repeated(batch: TrainingBatch | Sequence[Rollout], *args: Any) -> Result:
            parts = self._work.mini_batches if isinstance(batch, TrainingBatch) else 1
            rollouts = batch.rollouts if isinstance(batch, TrainingBatch) else batch
            longest = max(len(each.prompt.token_ids) + len(each.generation.token_ids) for each in rollouts)
            sequences = -(-len(rollouts) // (parts * self._work.data_parallel))
            most = -(-sequences * longest // self._work.sequence_parallel)
            return self._repeat(lambda: method(batch, *args), longest, most)

        return repeated
