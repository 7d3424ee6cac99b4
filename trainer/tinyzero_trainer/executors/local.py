"""The roles of a run, built from its configuration: task, prompts, policy, rollout engine and reward pool."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from tinyzero_sdk import Completion, Score, Task
from tinyzero_sdk.errors import BrokenTaskError
from tinyzero_sdk.records import Reason
from tinyzero_trainer.algorithms.losses import find_policy_loss
from tinyzero_trainer.algorithms.schedules import settings_at
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.tasks import load_tasks
from tinyzero_trainer.data.tokenization import decode_texts
from tinyzero_trainer.distributed.cuda_allocator import expand_segments
from tinyzero_trainer.distributed.fsdp import FsdpOptions, offload_note, process_group
from tinyzero_trainer.estimate.workload import workload_of
from tinyzero_trainer.executors.base import StopRequested, Workers
from tinyzero_trainer.executors.tasks import RunTask, run_tasks
from tinyzero_trainer.models.loading import LanguageModel, ModelError, choose_device, load_model
from tinyzero_trainer.models.spec import context_error
from tinyzero_trainer.monitoring.progress import Progress
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.build import build_engine, require_engine
from tinyzero_trainer.training.build import build_learners
from tinyzero_trainer.types import Generation, Prompt, Rollout
from tinyzero_trainer.utils.oom import catch_out_of_memory
from tinyzero_trainer.utils.signals import Stop

SCORER_FAILURES: tuple[Reason, ...] = ("error", "timeout")
"""The scorer's, not the model's."""


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


def generate(
    roles: Workers, prompts: Sequence[Prompt], params: SamplingParams, *, samples: int, seed: int, stop: Stop
) -> list[tuple[Prompt, Generation]]:
    """Generate `samples` completions of each prompt; the result is flat, prompt after prompt.

    Raises:
        ModelError: a prompt and the longest completion do not fit into the model's context.
        StopRequested: the end was asked for meanwhile.
    """
    check_context(roles.language_model, prompts, params.max_tokens)

    def on_progress(finished: int) -> None:
        roles.display.advance(finished)
        if stop.requested:
            raise StopRequested

    token_ids = [prompt.token_ids for prompt in prompts]
    groups = roles.engine.generate(token_ids, samples, params, seed=seed, on_progress=on_progress)
    return [(prompt, rollout) for prompt, group in zip(prompts, groups, strict=True) for rollout in group]


def check_context(language_model: LanguageModel, prompts: Sequence[Prompt], max_tokens: int) -> None:
    """Refuse completions that the model has no room for.

    Raises:
        ModelError: a prompt and the longest completion do not fit into the model's context.
    """
    longest, context = max(len(prompt.token_ids) for prompt in prompts), language_model.context
    if longest + max_tokens > context:
        raise ModelError(context_error(language_model.name, context, longest, max_tokens))


def score(roles: Workers, rollouts: Sequence[tuple[Prompt, Generation]], *, max_failure_rate: float) -> list[Rollout]:
    """Score completions, each in the reward pool of its task.

    Where the scorer failed nothing is known of the completion, so it is masked: 0 may be more than a wrong answer gets.

    Raises:
        BrokenTaskError: more than `max_failure_rate` of a task's ended in an error or a time-out of the scorer,
            so the rewards say more about the scorer than about the model.
    """
    texts = decode_texts(roles.language_model.tokenizer, [rollout.token_ids for _, rollout in rollouts])
    samples: dict[int, Rollout] = {}
    for name, role in roles.tasks.items():
        places = [place for place, (prompt, _) in enumerate(rollouts) if prompt.task == name]
        completions = [
            Completion(texts[place], len(rollouts[place][1].token_ids), rollouts[place][1].finished) for place in places
        ]
        truths = [rollouts[place][0].item.ground_truth for place in places]
        verdicts = role.pool.score(completions, truths)
        _refuse_failures(name, role, verdicts, max_failure_rate)
        for place, verdict in zip(places, verdicts, strict=True):
            masked = verdict.masked or verdict.reason in SCORER_FAILURES
            final = verdict if verdict.masked == masked else replace(verdict, masked=masked)
            samples[place] = Rollout(*rollouts[place], texts[place], final)
    return [samples[place] for place in range(len(rollouts))]


def _refuse_failures(name: str, role: RunTask, verdicts: Sequence[Score], max_failure_rate: float) -> None:
    failed = sum(verdict.reason in SCORER_FAILURES for verdict in verdicts)
    if failed > max_failure_rate * len(verdicts):
        cause = f" ({role.pool.first_error.splitlines()[-1]})" if role.pool.first_error else ""
        raise BrokenTaskError(
            f"the scorer of task {name!r} failed on {failed} of {len(verdicts)} completions{cause}; expected "
            f"at most reward.max_failure_rate={max_failure_rate:g}: mend the task, or raise reward.timeout"
        )
