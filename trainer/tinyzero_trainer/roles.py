"""The roles of a run, built from its configuration: task, prompts, policy, rollout engine and reward pool."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tinyzero_sdk import Completion, Task, load_task
from tinyzero_sdk.errors import BrokenTaskError
from tinyzero_sdk.pool import ScoringPool
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.critic import Critic
from tinyzero_trainer.display import Display
from tinyzero_trainer.interrupts import StopFlag
from tinyzero_trainer.models import LanguageModel, ModelError, choose_device, load_model
from tinyzero_trainer.policy import Policy
from tinyzero_trainer.prompts import PromptSource
from tinyzero_trainer.records import Prompt, Rollout, Sample
from tinyzero_trainer.rollout import RolloutEngine, SamplingParams, TorchEngine


class StopRequested(Exception):
    """Raised inside a phase when a signal has asked the run to end; the policy is as it was before the step."""


@dataclass(frozen=True, slots=True)
class Roles:
    """Everyone a run needs, in this process."""

    task: Task
    """The task, with its options and wrappers."""

    language_model: LanguageModel
    """The model that is trained or evaluated."""

    prompts: PromptSource
    """Its problems."""

    engine: RolloutEngine
    """Generates completions."""

    pool: ScoringPool
    """Scores them."""

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
    task = load_task(
        config.run.task,
        options=config.task,
        wrappers=config.run.wrappers,
        allow_unsafe_scorers=config.run.allow_unsafe_scorers,
    )
    device = choose_device(config.run.device)
    language_model = load_model(str(checkpoint) if checkpoint else config.model.path, device)
    reward = config.reward
    with ScoringPool(
        task, workers=reward.workers, time_limit=reward.time_limit, memory_limit_gb=reward.memory_limit_gb
    ) as pool:
        engine = TorchEngine(
            language_model.model,
            eos_ids=language_model.eos_ids,
            pad_id=language_model.pad_id,
            max_sequences=config.rollout.max_sequences,
        )
        prompts = PromptSource(task, language_model.tokenizer, config.data)
        policy = _build_policy(config, language_model, resumed=checkpoint is not None) if training else None
        critic = None
        if training and config.algorithm.advantage == "gae":
            critic = Critic(language_model, settings=config.critic, optimizer=config.optimizer)
        display.end_phase()
        yield Roles(task, language_model, prompts, engine, pool, policy, critic, display)


def _build_policy(config: TrainConfig, language_model: LanguageModel, *, resumed: bool) -> Policy:
    reference = None
    if config.algorithm.kl_coefficient > 0:
        model = language_model.model
        # The reference is what the run started from, not what it was resumed from.
        start = load_model(config.model.path, model.device).model if resumed else copy.deepcopy(model)
        reference = start.eval().requires_grad_(False)
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
    """Score completions in the reward pool.

    Raises:
        BrokenTaskError: more than `max_failed_share` of them ended in an error or a time-out of the scorer,
            so the rewards say more about the scorer than about the model.
    """
    texts = roles.language_model.tokenizer.batch_decode(
        [rollout.token_ids for _, rollout in rollouts], skip_special_tokens=True
    )
    completions = [
        Completion(text, len(rollout.token_ids), rollout.finished)
        for text, (_, rollout) in zip(texts, rollouts, strict=True)
    ]
    scores = roles.pool.score(completions, [prompt.item.ground_truth for prompt, _ in rollouts])
    failed = sum(verdict.reason in ("error", "timeout") for verdict in scores)
    if failed > max_failed_share * len(scores):
        cause = f" ({roles.pool.first_error.splitlines()[-1]})" if roles.pool.first_error else ""
        raise BrokenTaskError(
            f"the scorer of task {roles.task.name!r} failed on {failed} of {len(scores)} completions{cause}; expected "
            f"at most reward.max_failed_share={max_failed_share:g}: mend the task, or raise reward.time_limit"
        )
    return [
        Sample(prompt, rollout, text, verdict)
        for (prompt, rollout), text, verdict in zip(rollouts, texts, scores, strict=True)
    ]
