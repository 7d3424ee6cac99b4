"""The tasks of a run, each with its prompts and the processes that score its completions."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from tinyzero_sdk import Task
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.data.mixture import Mixture
from tinyzero_trainer.data.prompts import PromptSource, StreamState
from tinyzero_trainer.rewards.reward_pool import RewardPool, scoring_pool


@dataclass(frozen=True, slots=True)
class RunTask:
    """One task of a run."""

    task: Task
    """With its options and wrappers."""

    weight: float
    """Its fraction of the problems, relative to the other tasks' weights; 0 = it is not trained on."""

    prompts: PromptSource
    pool: RewardPool


@contextmanager
def run_tasks(
    config: TrainConfig,
    tasks: Mapping[str, Task],
    tokenizer: PreTrainedTokenizerBase,
) -> Iterator[dict[str, RunTask]]:
    """The tasks by name; leaving the context ends the scoring processes.

    Args:
        config: `reward.num_workers` is for each task.
        tasks: from `load_tasks`, of `config.task_specs` or others.
    """
    with ExitStack() as stack:
        running, weights = {}, {spec.name: spec.weight for spec in config.task_specs}
        for name, task in tasks.items():
            pool = scoring_pool(config.reward, task)
            stack.callback(pool.close)
            prompts = PromptSource(
                task,
                tokenizer,
                name=name,
                prompt_template=config.data.prompt_template,
                test_fraction=config.data.test_fraction,
                max_prompt_tokens=config.data.max_prompt_tokens,
            )
            running[name] = RunTask(task, weights.get(name, 0.0), prompts, pool)
        yield running


def training_stream(config: TrainConfig, tasks: Mapping[str, RunTask], progress: Mapping[str, StreamState]) -> Mixture:
    """Training problems of all tasks, mixed by weight; a task without `progress` starts at its first problem."""
    streams = {
        name: task.prompts.stream(config.run.seed, progress.get(name), config.curriculum)
        for name, task in tasks.items()
    }
    return Mixture(streams, [task.weight for task in tasks.values()])
