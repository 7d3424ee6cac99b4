"""Builds policy, reference, critic and teacher on this rank."""

import copy
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.distributed.fsdp import FsdpOptions, cast_weights, shard
from tinyzero_trainer.distributed.parallel_dims import refuse_uneven
from tinyzero_trainer.distributed.workload import workload_of
from tinyzero_trainer.models.hub import outline
from tinyzero_trainer.models.loading import LanguageModel, ModelError, load_model, require_same_tokens
from tinyzero_trainer.models.lora import DIRECTORY as ADAPTER_DIRECTORY
from tinyzero_trainer.models.lora import Adapter, adaptable_layers, import_peft
from tinyzero_trainer.training.critic import Critic
from tinyzero_trainer.training.float8 import require_float8, use_float8
from tinyzero_trainer.training.logprobs import PolicyModel
from tinyzero_trainer.training.policy import Policy
from tinyzero_trainer.training.teacher import Teacher
from tinyzero_trainer.training.varlen_attention import is_plain, use_kernel


@dataclass(frozen=True, slots=True)
class TrainedModels:
    """The models of an update on this rank."""

    language_model: LanguageModel  # the policy's
    policy: Policy
    critic: Critic | None
    """None unless the advantages need one, as `gae` does."""

    teacher: Teacher | None
    """None unless the advantages need one, as `on_policy_distillation` does."""

    def try_largest(self, config: TrainConfig, micro_batch_tokens: int) -> None:
        """Run the largest micro-batch of at most so many tokens, which all passes have from here on; trains nothing."""
        for model in (self.policy, self.critic, self.teacher):
            if model is not None:
                model.micro_batch_tokens = micro_batch_tokens
        config = replace(config, optimizer=replace(config.optimizer, micro_batch_tokens=micro_batch_tokens))
        work = workload_of(config, config.data.max_prompt_tokens)
        most = work.micro_batch * work.sequence_parallel
        self.policy.warm_up(config.settings_at(1), most, accumulates=work.accumulates)


def refuse_unsupported(config: TrainConfig, path: str | None) -> None:
    """Refuse, from the config.json of a `model.path` alone, settings that its architecture does not allow."""
    slices = config.parallel.sequence_parallel
    with suppress(OSError, ValueError):  # loading a model says what is wrong with its files
        if config.lora.target_modules:
            adaptable_layers(outline(path), config.lora)
        for name in (path, *filter(None, [config.model.teacher])) if slices > 1 else ():
            model = outline(name)
            text = model.config.get_text_config()
            if not is_plain(model):
                raise ModelError(
                    f"{name} ({text.model_type}) has its own attention, which parallel.sequence_parallel={slices} "
                    "cannot divide; leave that out"
                )
            refuse_uneven("parallel.sequence_parallel", slices, text.num_attention_heads)


def build_trained_models(config: TrainConfig, options: FsdpOptions, *, checkpoint: Path | None) -> TrainedModels:
    """Load and shard all models that the loss needs, from a checkpoint's directory if given; needs a process group."""
    adapted = config.lora.rank > 0
    if adapted:
        import_peft(config.lora)  # fails now rather than minutes later
    if config.model.teacher is not None:
        require_same_tokens(config.model.path, config.model.teacher)
    # A checkpoint holds merged weights, which cannot be separated bit for bit.
    source = str(checkpoint) if checkpoint and not adapted else config.model.path
    refuse_unsupported(config, source)
    language_model = _load(source, options)
    if config.model.float8:
        require_float8(options.device)
        use_float8(language_model.model, config.model)
    critic = None
    if config.algorithm.needs("critic"):  # before the adapter: all of the critic's weights are trained
        critic = Critic(language_model, settings=config.critic, optimizer=config.optimizer, options=options)
    if adapted:
        adapter = Adapter(language_model.model, config.lora, seed=config.run.seed, start=config.model.path)
        if checkpoint:
            adapter.load(checkpoint / ADAPTER_DIRECTORY)
        language_model = replace(language_model, adapter=adapter)
    policy = _build_policy(config, language_model, options, resumed=checkpoint is not None)
    teacher = None
    if config.model.teacher is not None:
        frozen = _load(config.model.teacher, options, options.dtype)
        shard(PolicyModel(frozen.model.requires_grad_(False)), options)
        teacher = Teacher(frozen, config.optimizer.token_budget)
    return TrainedModels(language_model, policy, critic, teacher)


def _load(source: str | None, options: FsdpOptions, dtype: torch.dtype = torch.float32) -> LanguageModel:
    """A model to be sharded, with a kernel for packed sequences where there is one."""
    language_model = load_model(source, options.loading_device, dtype)
    use_kernel(language_model.model, options.dtype, options.device, or_plain=options.sequence_parallel > 1)
    return language_model


def _build_policy(config: TrainConfig, language_model: LanguageModel, options: FsdpOptions, *, resumed: bool) -> Policy:
    """The policy, and the reference of its KL; shards both."""
    needs_reference, reference = config.algorithm.kl_coefficient > 0, None
    if needs_reference and language_model.adapter is None:
        # The starting model, also of a resumed run; never stepped, so in the type that it computes in.
        start = _load(config.model.path, options).model if resumed else copy.deepcopy(language_model.model)
        if config.model.float8 and resumed:
            use_float8(start, config.model)
        cast_weights(start.requires_grad_(False), options.dtype)
        reference = PolicyModel(start)
        shard(reference, options)
    model = PolicyModel(language_model.model)
    shard(model, options)
    if needs_reference and reference is None:
        reference = model  # with its adapter off
    return Policy(
        language_model,
        algorithm=config.algorithm,
        optimizer=config.optimizer,
        max_tokens=config.rollout.max_completion_tokens,
        reference=reference,
    )
