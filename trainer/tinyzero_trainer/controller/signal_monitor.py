"""The warning that a model can hardly learn: once per task, before training or after the first steps."""

from collections.abc import Sequence

import numpy as np

from tinyzero_sdk.scoring.learning_signal import LearningSignal, measure, warning
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.model_defaults import directory_of
from tinyzero_trainer.executors.base import Workers
from tinyzero_trainer.types import Rollout

ENOUGH_GROUPS = 64
"""Groups per task that decide; later steps say something about the training, and no longer about its start."""

FEW_RIGHT = 0.01  # accuracy below which training on right completions alone has nothing to learn from


def learning_signal(
    rollouts: Sequence[Rollout], group_size: int = 1, *, config: TrainConfig | None = None
) -> LearningSignal:
    """What there is to learn from whole groups; `config` of training, where completions may be cut off on purpose."""
    cuts = config is not None and (config.rollout.ignore_eos or config.length_control.mode != "full")
    return measure(
        np.full(len(rollouts) // group_size, group_size),
        np.array([rollout.score.value for rollout in rollouts]),
        np.array([rollout.score.correct for rollout in rollouts]),
        np.array([rollout.score.reason == "no_answer" for rollout in rollouts]),
        None if cuts else np.array([not rollout.generation.finished for rollout in rollouts]),
    )


class SignalMonitor:
    """Watches the evaluation before training and the first steps."""

    def __init__(self, config: TrainConfig, workers: Workers) -> None:
        self.config, self.workers = config, workers
        self._warned = set[str]()  # tasks
        self._rollouts: dict[str, list[Rollout]] = {name: [] for name in workers.tasks}

    def step(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Judge the tasks by the completions of the steps so far."""
        config = self.config
        if (step - 1) * config.data.prompts_per_step >= ENOUGH_GROUPS * len(self._rollouts):
            self._rollouts = {name: [] for name in self._rollouts}
            return
        for name, earlier in self._rollouts.items():
            earlier += [rollout for rollout in rollouts if rollout.prompt.task == name]
            if earlier:
                signal = learning_signal(earlier, config.rollout.group_size, config=config)
                self.judge(name, signal)

    def judge(self, name: str, signal: LearningSignal) -> None:
        """Warn of a task, unless that has been done or there is enough to learn."""
        config, task = self.config, self.workers.tasks[name]
        estimator = config.algorithm.estimator
        of_groups = estimator.compares_samples or (estimator.only_correct and signal.accuracy < FEW_RIGHT)
        if name in self._warned or signal.fault is None or (signal.fault == "zero_std" and not of_groups):
            return
        if config.algorithm.needs("teacher"):  # it has something to say about any completion
            return
        directory, tokens = directory_of(config.model.path), config.rollout.max_completion_tokens
        path = None if directory is None else str(directory)
        prefix = f"{name}: " if len(self.workers.tasks) > 1 else ""
        self._warned.add(name)
        text = warning(signal, task.task, path, tokens, "rollout.max_completion_tokens=")
        self.workers.display.warn(prefix + text)
