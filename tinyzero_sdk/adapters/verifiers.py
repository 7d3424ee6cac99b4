"""A task as an environment of verifiers: a taskset whose reward is the task's score.

verifiers finds a taskset by the name of a module that exports it, so an environment is a module of three lines:

    # countdown_env.py
    from tinyzero_sdk.adapters.verifiers import make_taskset

    Taskset = make_taskset("countdown")
    __all__ = ["Taskset"]

`vf-eval countdown_env` runs it; options such as `--env.taskset.size 100` configure the taskset. Only `make_taskset`
imports verifiers.
"""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tinyzero_sdk.adapters.scorer import Scorer
from tinyzero_sdk.records import Completion, Split
from tinyzero_sdk.tasks.task import Task

if TYPE_CHECKING:
    import verifiers.v1 as vf


def make_taskset(task: Task | str, *, workers: int = 0, timeout: float = 5.0) -> "type[vf.Taskset[Any, Any]]":
    """A taskset class for verifiers with the problems of `task`; the other arguments are those of `Scorer`.

    Its configuration has `size`, `split`, `seed` and `template` (see `TinyZeroConfig` below). The reward is the
    task's score; the metric `correct` is 1 for a solved problem.
    """
    import verifiers.v1 as vf

    scorer = Scorer(task, workers=workers, timeout=timeout)

    class TinyZeroData(vf.TaskData):
        """One problem."""

        ground_truth: Any
        """The ground truth for the scorer; the model does not see it."""

    class TinyZeroTask(vf.Task[TinyZeroData]):
        """One problem and its reward."""

        @vf.reward(weight=1.0)
        async def score_reward(self, trace: vf.Trace) -> float:
            completion = Completion(trace.last_reply, finished=not trace.is_truncated)
            [score] = await asyncio.to_thread(scorer.score, [completion], [self.data.ground_truth])
            trace.record_metric("correct", score.correct)  # not a separate metric function, which would score again
            return score.value

    class TinyZeroConfig(vf.TasksetConfig):
        """The problems to load."""

        size: int = 1000
        """Number of problems."""
        split: Split = "test"
        """Training or held-out problems."""
        seed: int = 0
        """Different seeds give different problems."""
        template: str = "chat"
        """Prompt template of the task."""

    class TinyZeroTaskset(vf.Taskset[TinyZeroTask, TinyZeroConfig]):
        """The problems of a task, generated lazily."""

        def load(self) -> Iterator[TinyZeroTask]:
            config = self.config
            for item in scorer.task.dataset(config.split, config.size, seed=config.seed):
                prompt = scorer.task.make_prompt(item, config.template)
                data = TinyZeroData(id=scorer.task.item_key(item), prompt=prompt, ground_truth=item.ground_truth)
                yield TinyZeroTask(data, config.task)

    return TinyZeroTaskset
