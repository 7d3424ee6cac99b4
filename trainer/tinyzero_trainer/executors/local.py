"""The roles of a run, built from its configuration: task, prompts, policy, rollout engine and reward pool."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import torch

from tinyzero_sdk import Task
from tinyzero_trainer.algorithms.losses import find_policy_loss
from tinyzero_trainer.algorithms.schedules import settings_at
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.tasks import load_tasks
from tinyzero_trainer.distributed.cuda_allocator import expand_segments
from tinyzero_trainer.distributed.fsdp import FsdpOptions, offload_note, process_group
from tinyzero_trainer.estimate.workload import workload_of
from tinyzero_trainer.executors.base import Workers
from tinyzero_trainer.executors.tasks import run_tasks
from tinyzero_trainer.models.device import choose_device
from tinyzero_trainer.models.loading import load_model
from tinyzero_trainer.monitoring.progress import Progress
from tinyzero_trainer.rollout.build import build_engine, require_engine
from tinyzero_trainer.training.build import build_learners
from tinyzero_trainer.utils.oom import catch_out_of_memory


@contextmanager
def build_workers(
    config: TrainConfig,
    *,
    display: Progress,
    training: bool,
    checkpoint: Path | None = None,
    tasks: Mapping[str, Task] | None = None,
) -> Iterator[Workers]:
    """Build the roles; leaving the context ends the scoring processes.

    Args:
        config: the run's.
        display: is told of the phases.
        training: whether a policy with its optimiser (and a reference model, if the loss needs one) is built.
        checkpoint: directory whose weights are taken instead of the starting model's.
        tasks: of the run, if they are loaded already.
    """
    display.phase("loading the task and the model")
    elsewhere = training and config.run.executor == "ray"
    device = _workers_device(config) if elsewhere else choose_device(config.run.device)
    require_engine(config, device, here=config.ray.address is None)
    loaded = (
        dict(tasks)
        if tasks
        else load_tasks(
            config.task_shares(),
            wrappers=config.wrappers_with_limit() if training else (),
            allow_unsafe_scorers=config.reward.allow_unsafe,
        )
    )
    if training:
        find_policy_loss(config.algorithm.policy_loss)  # a user's own may be at fault, which is soon seen
    if elsewhere:
        from tinyzero_trainer.executors.ray.build import build_ray_workers

        with build_ray_workers(config, loaded, display=display, checkpoint=checkpoint) as roles:
            yield roles
        return
    if training and device.type == "cuda":
        expand_segments(config)
    with process_group(device) if training else nullcontext(), ExitStack() as stack:
        policy = critic = None
        with catch_out_of_memory("the models were loaded"):
            if training:
                learners = build_learners(config, _placement(config, device, display), checkpoint=checkpoint)
                language_model, policy, critic = learners.language_model, learners.policy, learners.critic
            else:
                language_model = load_model(str(checkpoint) if checkpoint else config.model.path, device)
            roles_of_tasks = stack.enter_context(run_tasks(config, loaded, language_model.tokenizer))
        if policy is not None and device.type == "cuda":
            with catch_out_of_memory("the largest micro-batch was tried out"):
                policy.warm_up(settings_at(config, 1), workload_of(config, config.data.max_prompt_tokens).micro_batch)
        if config.rollout.engine == "vllm":
            display.phase("starting vLLM, about a minute")
        with catch_out_of_memory("the rollout engine took over the weights"):
            engine = build_engine(config, language_model, display.log)
        display.end_phase()
        try:
            yield Workers(roles_of_tasks, language_model, engine, policy, critic, display)
        finally:
            engine.close()


def _workers_device(config: TrainConfig) -> torch.device:
    """That of Ray's workers, who look at theirs themselves: this machine need not have one, nor lose memory to us."""
    return torch.device("cuda" if config.ray.gpus else "cpu")


def _placement(config: TrainConfig, device: torch.device, display: Progress) -> FsdpOptions:
    note = offload_note(config, device)
    if note is not None:
        display.log(note)
    return FsdpOptions.of(config, device)
