"""Policies, plain or sharded, a synthetic batch to train on, and what two updates show, to the bit."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.trainer.samples import ragged_samples
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.config import AlgorithmConfig, LoraConfig, OptimizerConfig
from tinyzero_trainer.distributed.fsdp import FsdpOptions, process_group, shard
from tinyzero_trainer.models.loading import LanguageModel, save_model
from tinyzero_trainer.models.lora import Adapter
from tinyzero_trainer.rollout.weight_source import named_weights
from tinyzero_trainer.training.logprobs import PolicyModel
from tinyzero_trainer.training.micro_batches import completion_lengths
from tinyzero_trainer.training.policy import Policy

CPU = torch.device("cpu")
PLAIN = FsdpOptions(CPU, torch.float32)
NOW = StepSettings(learning_rate=1e-2, temperature=0.8, kl_coefficient=0.3)
OPTIMIZER = OptimizerConfig(micro_batch_tokens=80, num_mini_batches=2, weight_decay=0.1)
SAVING = {
    "as it is": PLAIN,
    "gathered once": replace(PLAIN, reshard_after_forward=False),
    "checkpointed activations": replace(PLAIN, activation_checkpointing=True),
    "offloaded while idle": replace(PLAIN, offload="idle"),
    "offloaded always": replace(PLAIN, offload="always"),
    "all of it": replace(PLAIN, activation_checkpointing=True, offload="idle"),
}


@pytest.fixture(autouse=True, scope="module")
def group() -> Iterator[None]:
    with process_group(CPU):
        yield


@dataclass
class Case:
    """A policy with what its loss needs."""

    lora: bool = False
    kl: str | None = None


CASES = {
    "all weights": Case(),
    "LoRA": Case(lora=True),
    "KL": Case(kl="k3"),
    "exact KL": Case(kl="exact"),
    "LoRA, KL to itself": Case(lora=True, kl="k3"),
    "LoRA, exact KL to itself": Case(lora=True, kl="exact"),
}


def make_policy(language_model: LanguageModel, case: Case, options: FsdpOptions | None) -> Policy:
    """From a copy of the model; sharded unless the options is None."""
    model, reference = copy.deepcopy(language_model.model), None
    language_model = replace(language_model, model=model)
    if case.lora:
        adapter = Adapter(model, LoraConfig(rank=4), seed=0, start=None)
        language_model = replace(language_model, adapter=adapter)
    if case.kl and not case.lora:
        reference = PolicyModel(copy.deepcopy(model).requires_grad_(False))
        if options is not None:
            shard(reference, options)
    if options is not None:
        shard(PolicyModel(model), options)
    if case.kl and case.lora:
        reference = PolicyModel.of(model)
    algorithm = AlgorithmConfig(
        kl_coefficient=0.3 if case.kl else 0.0, **({"kl_estimator": case.kl} if case.kl else {})
    )
    return Policy(language_model, algorithm=algorithm, optimizer=OPTIMIZER, max_tokens=40, reference=reference)


BATCHES: dict[str, TrainingBatch] = {}


def shared_batch(language_model: LanguageModel) -> TrainingBatch:
    """The same for each model of a name."""
    if language_model.name not in BATCHES:
        BATCHES[language_model.name] = synthetic_batch(language_model)
    return BATCHES[language_model.name]


def synthetic_batch(language_model: LanguageModel) -> TrainingBatch:
    samples = ragged_samples(language_model, groups=2)
    generator = torch.Generator().manual_seed(0)
    lengths = completion_lengths(samples)
    tokens = int(lengths.sum())
    old = torch.tensor([value for sample in samples for value in sample.generation.logprobs or ()])
    values = torch.randn(tokens, generator=generator)
    return TrainingBatch.of(
        samples, 4, old_logprobs=old, advantages=values, values=0.1 * values, returns=values.sin(), engine_logprobs=None
    )


def learn(policy: Policy, experience: TrainingBatch, tmp_path: Path) -> tuple[Any, ...]:
    """Everything that two updates and what lies between them show."""
    shown: list[Any] = []
    for _ in range(2):
        shown.append(bits(policy.logprobs(experience.rollouts, 0.8)))
        if policy._reference is not None:
            shown.append(bits(policy.reference_logprobs(experience.rollouts, 0.8)))
        shown.append(policy.update(experience, NOW))
    save_model(directory := tmp_path / f"{len(list(tmp_path.iterdir()))}", policy.language_model)
    policy.save(directory)
    saved = {
        f"{path.relative_to(directory)} {name}": bits(value)
        for path in directory.rglob("*.safetensors")
        for name, value in load_file(path).items()
    }
    weights = {name: bits(value) for name, value in named_weights(policy.language_model.model)}
    return (*shown, saved, weights)


def bits(tensor: Tensor) -> str:
    return sha256(tensor.numpy().tobytes()).hexdigest()


EXPECTED: dict[str, tuple[Any, ...]] = {}
"""What the plain policy of each case shows, once it was needed."""
