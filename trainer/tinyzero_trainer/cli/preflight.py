"""What is checked before a run starts, in the second before PyTorch is imported."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinyzero_sdk import Task
    from tinyzero_trainer.config import TrainConfig


def check(config: "TrainConfig", *, resume: bool) -> Mapping[str, "Task"]:
    """Check all that needs no model: tasks, scorers, the loss's file, engine, Ray's address and run directory.

    Returns:
        The run's tasks by name.

    Raises:
        TinyZeroError: says what to change.
    """
    from tinyzero_trainer.checkpoint.run_directory import RunDirectory
    from tinyzero_trainer.config.algorithm import check_loss_place
    from tinyzero_trainer.config.tasks import load_tasks
    from tinyzero_trainer.plan.limits import refuse_no_prompt
    from tinyzero_trainer.rollout.vllm.version import require_vllm

    tasks = load_tasks(
        config.task_specs,
        wrappers=config.wrappers_with_limit(),
        allow_unsafe_scorers=config.reward.allow_unsafe,
    )
    for task in tasks.values():
        task.check_scoring_allowed()
    check_loss_place(config.algorithm.policy_loss)
    if config.run.executor == "ray":
        from tinyzero_trainer.distributed.parallel_dims import parallel_dims
        from tinyzero_trainer.executors.ray.cluster import check_address

        parallel_dims(config)
        check_address(config.ray.address)
    if config.rollout.engine == "vllm" and config.ray.address is None:  # elsewhere the workers' machines need it
        require_vllm()
    refuse_no_prompt(config)
    if config.run.output:
        RunDirectory(Path(config.run.output)).check(resume=resume)
    return tasks
