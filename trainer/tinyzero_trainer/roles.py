"""The roles of a run, built from its configuration: task, prompts, policy, rollout engine and reward pool."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from tinyzero_sdk import Completion, Score
from tinyzero_sdk.errors import BrokenTaskError
from tinyzero_sdk.records import Reason
from tinyzero_trainer.attention import use_kernel
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.critic import Critic
from tinyzero_trainer.decoding import decode_texts
from tinyzero_trainer.display import Display
from tinyzero_trainer.forward import Reference
from tinyzero_trainer.interrupts import StopFlag
from tinyzero_trainer.lora import DIRECTORY as ADAPTER_DIRECTORY
from tinyzero_trainer.lora import Adapter, import_peft
from tinyzero_trainer.losses import find_policy_loss
from tinyzero_trainer.memory_errors import explained
from tinyzero_trainer.models import LanguageModel, ModelError, choose_device, load_model
from tinyzero_trainer.plan.work import work_of
from tinyzero_trainer.policy import Policy
from tinyzero_trainer.records import Prompt, Rollout, Sample
from tinyzero_trainer.rollout import RolloutEngine, SamplingParams
from tinyzero_trainer.rollout.build import build_engine, require_engine
from tinyzero_trainer.schedules import settings_at
from tinyzero_trainer.sharding import Placement, cast_weights, offload_note, process_group, shard
from tinyzero_trainer.task_shares import load_shares
from tinyzero_trainer.tasks import TaskRole, task_roles

SCORER_FAILURES: tuple[Reason, ...] = ("error", "timeout")
"""The scorer's, not the model's."""


class StopRequested(Exception):
    """Raised inside a phase when a signal has asked the run to end; the policy is as it was before the step."""


@dataclass(frozen=True, slots=True)
class Roles:
    """Everyone a run needs, in this process."""

    tasks: Mapping[str, TaskRole]
    """The tasks with their problems and scorers, by what the run calls them."""

    language_model: LanguageModel
    """The model that is trained or evaluated."""

    engine: RolloutEngine
    """Generates completions."""

    policy: Policy | None
    """Updates the model; None where nothing is trained."""

    critic: Critic | None
    """Estimates what a completion is worth; None but for `algorithm.advantage=gae`."""

    display: Display
    """Is told of progress."""


@contextmanager
def build_roles(
    config: TrainConfig, *, display: Display, training: bool, checkpoint: Path | None = None
) -> Iterator[Roles]:
    """Build the roles; leaving the context ends the scoring processes.

    Args:
        config: the run's.
        display: is told of the phases.
        training: whether a policy with its optimiser (and a reference model, if the loss needs one) is built.
        checkpoint: directory whose weights are taken instead of the starting model's.
    """
    display.phase("loading the task and the model")
    device = choose_device(config.run.device)
    require_engine(config, device)
    loaded = load_shares(
        config.task_shares(),
        wrappers=config.wrappers_with_limit() if training else (),
        allow_unsafe_scorers=config.run.allow_unsafe_scorers,
    )
    if training:
        find_policy_loss(config.algorithm.policy_loss)  # a user's own may be at fault, which is soon seen
    with process_group(device) if training else nullcontext(), ExitStack() as stack:
        with explained(config, "the models were loaded"):
            placement = _placement(config, device, display) if training else None
            language_model, critic = _build_models(config, device, placement, checkpoint=checkpoint)
            tasks = stack.enter_context(task_roles(config, loaded, language_model.tokenizer))
            policy = None
            if placement is not None:
                policy = _build_policy(config, language_model, placement, resumed=checkpoint is not None)
        if policy is not None and device.type == "cuda":
            with explained(config, "the largest micro-batch was tried out"):
                policy.warm_up(settings_at(config, 1), work_of(config, config.data.max_prompt_tokens).micro_batch)
        if config.rollout.engine == "vllm":
            display.phase("starting vLLM, about a minute")
        with explained(config, "the rollout engine took over the weights"):
            engine = build_engine(config, language_model, display.note)
        display.end_phase()
        try:
            yield Roles(tasks, language_model, engine, policy, critic, display)
        finally:
            engine.close()


def _placement(config: TrainConfig, device: torch.device, display: Display) -> Placement:
    note = offload_note(config, device)
    if note is not None:
        display.note(note)
    return Placement.of(config, device)


def _build_models(
    config: TrainConfig, device: torch.device, placement: Placement | None, *, checkpoint: Path | None
) -> tuple[LanguageModel, Critic | None]:
    """The model and, sharded already, the critic; without a placement nothing is trained."""
    adapted = placement is not None and config.lora.rank > 0
    if adapted:
        import_peft(config.lora)  # if it is missing, that shall not be said minutes later
    # A checkpoint holds the weights merged, and what is merged cannot be taken apart bit for bit.
    source = str(checkpoint) if checkpoint and not adapted else config.model.path
    language_model = _load(source, device, placement)
    critic = None
    # Before an adapter: all of the critic's weights are trained.
    if placement is not None and config.algorithm.needs_critic:
        critic = Critic(language_model, settings=config.critic, optimizer=config.optimizer, placement=placement)
    if adapted:
        adapter = Adapter(language_model.model, config.lora, seed=config.run.seed, start=config.model.path)
        if checkpoint:
            adapter.load(checkpoint / ADAPTER_DIRECTORY)
        language_model = replace(language_model, adapter=adapter)
    return language_model, critic


def _load(source: str | None, device: torch.device, placement: Placement | None) -> LanguageModel:
    """A model that is not sharded yet; where it is to be, it attends through a kernel for packed sequences."""
    if placement is None:
        return load_model(source, device)
    language_model = load_model(source, placement.loading_device)
    use_kernel(language_model.model, placement.dtype, placement.device)
    return language_model


def _build_policy(config: TrainConfig, language_model: LanguageModel, placement: Placement, *, resumed: bool) -> Policy:
    """The policy, with what its KL is measured to; from here on both are sharded."""
    reference = None
    if config.algorithm.kl_coefficient > 0 and language_model.adapter is not None:
        reference = Reference(language_model.model)  # with the adapter off
    elif config.algorithm.kl_coefficient > 0:
        model = language_model.model
        # The reference is what the run started from, not what it was resumed from.
        start = _load(config.model.path, placement.device, placement).model if resumed else copy.deepcopy(model)
        # Never stepped, so it needs no more precision than it computes in.
        cast_weights(start.requires_grad_(False), placement.dtype)
        shard(start, placement)
        reference = Reference(start)
    shard(language_model.model, placement)
    return Policy(
        language_model,
        algorithm=config.algorithm,
        optimizer=config.optimizer,
        max_tokens=config.rollout.max_tokens,
        reference=reference,
    )


def generate(
    roles: Roles, prompts: Sequence[Prompt], params: SamplingParams, *, samples: int, seed: int, stop: StopFlag
) -> list[tuple[Prompt, Rollout]]:
    """Generate `samples` completions of each prompt; the result is flat, prompt after prompt.

    Raises:
        ModelError: a prompt and the longest completion do not fit into the model's context.
        StopRequested: a signal asked for the end meanwhile.
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
        raise ModelError(
            f"a prompt of {longest} tokens and rollout.max_tokens={max_tokens} exceed the {context} tokens that "
            f"{language_model.name} was made for; lower rollout.max_tokens"
        )


def score(roles: Roles, rollouts: Sequence[tuple[Prompt, Rollout]], *, max_failed_share: float) -> list[Sample]:
    """Score completions, each in the reward pool of its task.

    Where the scorer failed nothing is known of the completion, so it is masked: 0 may be more than a wrong answer gets.

    Raises:
        BrokenTaskError: more than `max_failed_share` of a task's ended in an error or a time-out of the scorer,
            so the rewards say more about the scorer than about the model.
    """
    texts = decode_texts(roles.language_model.tokenizer, [rollout.token_ids for _, rollout in rollouts])
    samples: dict[int, Sample] = {}
    for name, role in roles.tasks.items():
        places = [place for place, (prompt, _) in enumerate(rollouts) if prompt.task == name]
        completions = [
            Completion(texts[place], len(rollouts[place][1].token_ids), rollouts[place][1].finished) for place in places
        ]
        truths = [rollouts[place][0].item.ground_truth for place in places]
        verdicts = role.pool.score(completions, truths)
        _refuse_failures(name, role, verdicts, max_failed_share)
        for place, verdict in zip(places, verdicts, strict=True):
            masked = verdict.masked or verdict.reason in SCORER_FAILURES
            final = verdict if verdict.masked == masked else replace(verdict, masked=masked)
            samples[place] = Sample(*rollouts[place], texts[place], final)
    return [samples[place] for place in range(len(rollouts))]


def _refuse_failures(name: str, role: TaskRole, verdicts: Sequence[Score], max_failed_share: float) -> None:
    failed = sum(verdict.reason in SCORER_FAILURES for verdict in verdicts)
    if failed > max_failed_share * len(verdicts):
        cause = f" ({role.pool.first_error.splitlines()[-1]})" if role.pool.first_error else ""
        raise BrokenTaskError(
            f"the scorer of task {name!r} failed on {failed} of {len(verdicts)} completions{cause}; expected "
            f"at most reward.max_failed_share={max_failed_share:g}: mend the task, or raise reward.time_limit"
        )
