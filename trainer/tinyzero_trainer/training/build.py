"""Builds policy, reference and critic in this process, which may be one of several ranks."""

from dataclasses import dataclass, replace
from pathlib import Path

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.distributed.fsdp import FsdpOptions, cast_copy, cast_weights, shard
from tinyzero_trainer.models.loading import LanguageModel, ModelError, load_model
from tinyzero_trainer.models.lora import DIRECTORY as ADAPTER_DIRECTORY
from tinyzero_trainer.models.lora import Adapter, import_peft
from tinyzero_trainer.training.critic import Critic
from tinyzero_trainer.training.logprobs import PolicyModel
from tinyzero_trainer.training.policy import Policy
from tinyzero_trainer.training.varlen_attention import use_kernel


@dataclass(frozen=True, slots=True)
class Learners:
    """Those that learn in this process, which may be one of several ranks."""

    language_model: LanguageModel
    """The policy's model."""

    policy: Policy
    """Updates it."""

    critic: Critic | None
    """None but for `algorithm.advantage_estimator=gae`."""


def build_learners(config: TrainConfig, placement: FsdpOptions, *, checkpoint: Path | None) -> Learners:
    """Load and shard all models that the loss needs; takes a process group.

    Args:
        config: the run's.
        placement: of the models on this rank.
        checkpoint: directory whose weights are taken instead of the starting model's.
    """
    adapted = config.lora.rank > 0
    if adapted:
        import_peft(config.lora)  # if it is missing, that shall not be said minutes later
    # A checkpoint holds the weights merged, and what is merged cannot be taken apart bit for bit.
    source = str(checkpoint) if checkpoint and not adapted else config.model.path
    language_model = _load(source, placement)
    critic = None
    # Before an adapter: all of the critic's weights are trained.
    if config.algorithm.needs_critic:
        critic = Critic(language_model, settings=config.critic, optimizer=config.optimizer, placement=placement)
    if adapted:
        adapter = Adapter(language_model.model, config.lora, seed=config.run.seed, start=config.model.path)
        if checkpoint:
            adapter.load(checkpoint / ADAPTER_DIRECTORY)
        language_model = replace(language_model, adapter=adapter)
    policy = _build_policy(config, language_model, placement, resumed=checkpoint is not None)
    return Learners(language_model, policy, critic)


def _load(source: str | None, placement: FsdpOptions) -> LanguageModel:
    """A model that is to be sharded; it attends through a kernel for packed sequences.

    Raises:
        ModelError: ranks are to share its sequences, and it cannot attend so.
    """
    language_model, slices = load_model(source, placement.loading_device), placement.sequence_parallel
    model, name = language_model.model, language_model.name
    attends = use_kernel(model, placement.dtype, placement.device, or_plain=slices > 1)
    if slices == 1:
        return language_model
    if not attends:
        raise ModelError(
            f"{name} attends in a way of its own, which parallel.sequence_parallel={slices} cannot cut; leave that out"
        )
    heads = model.config.get_text_config().num_attention_heads
    if heads % slices:
        possible = ", ".join(str(count) for count in range(1, heads + 1) if heads % count == 0)
        raise ModelError(
            f"parallel.sequence_parallel={slices} does not divide the {heads} attention heads of {name}; "
            f"give one of {possible}"
        )
    return language_model


def _build_policy(
    config: TrainConfig, language_model: LanguageModel, placement: FsdpOptions, *, resumed: bool
) -> Policy:
    """The policy, with what its KL is measured to; from here on both are sharded."""
    reference = None
    if config.algorithm.kl_coefficient > 0 and language_model.adapter is None:
        # What the run started from, not what it was resumed from. Never stepped, so it needs no more precision than it
        # computes in.
        if resumed:
            start = _load(config.model.path, placement).model
            cast_weights(start.requires_grad_(False), placement.dtype)
        else:
            start = cast_copy(language_model.model, placement.dtype)
        reference = PolicyModel(start)
        shard(reference, placement)
    shard(PolicyModel(language_model.model), placement)
    if config.algorithm.kl_coefficient > 0 and reference is None:
        reference = PolicyModel.of(language_model.model)  # with the adapter off
    return Policy(
        language_model,
        algorithm=config.algorithm,
        optimizer=config.optimizer,
        max_tokens=config.rollout.max_completion_tokens,
        reference=reference,
    )
