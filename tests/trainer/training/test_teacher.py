"""On-policy distillation: the gradient of the reverse KL, whatever the teacher, and a student that approaches it."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.configurations import typed
from tests.trainer.conftest import TOY_TASK
from tests.trainer.runs import short_run
from tests.trainer.samples import build_policy, flat_gradient, make_rollout, ragged_samples, with_dropout
from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.algorithms.advantages import on_policy_distillation
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.config import OptimizerConfig
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.controller import loop
from tinyzero_trainer.models.loading import LanguageModel, ModelError, from_parts, save_model
from tinyzero_trainer.training.policy import Policy
from tinyzero_trainer.training.teacher import Teacher
from tinyzero_trainer.types import Rollout

TEMPERATURE = 0.8


def student(toy_model: LanguageModel) -> Policy:
    return build_policy(toy_model, optimizer=OptimizerConfig(max_grad_norm=1e9, micro_batch_tokens=4096))


def distilled(policy: Policy, teacher: Teacher, rollouts: list[Rollout], **columns: Tensor) -> TrainingBatch:
    """The batch of a step with advantages."""
    batch = TrainingBatch.of(rollouts, engine_logprobs=None, **columns)
    batch.old_logprobs = policy.logprobs(rollouts, TEMPERATURE)
    batch.teacher_logprobs = teacher.logprobs(rollouts, TEMPERATURE)
    batch.advantages = on_policy_distillation(batch)
    return batch


@pytest.mark.slow
def test_over_all_tokens_the_gradient_is_that_of_the_reverse_kl(toy_model: LanguageModel) -> None:
    """Each token of the vocabulary once, weighed with its probability: the expectation over samples, written out."""
    other, twin, prompt = with_dropout(toy_model), copy.deepcopy(toy_model.model).double(), [5, 9, 2]
    own, theirs = (
        torch.log_softmax(model(torch.tensor([prompt])).logits[0, -1].double() / TEMPERATURE, dim=-1)
        for model in (twin, other.model)
    )
    kl = (own.exp() * (own - theirs.detach())).sum()
    kl.backward()
    policy, rollouts = student(toy_model), [make_rollout(prompt, [token]) for token in range(len(own))]
    weights = (own.exp() * len(own)).detach().float()  # the mini-batch's mean divides by their number
    batch = distilled(policy, Teacher(other, 4096), rollouts, is_weights=weights)
    assert -(batch.advantages.double() * own.exp()).sum().item() == pytest.approx(kl.item(), rel=1e-4)
    policy.update(batch, StepSettings(1e-9, TEMPERATURE, 0.0))
    ours, expected = flat_gradient(toy_model.model).double(), flat_gradient(twin)
    assert (ours - expected).norm() < 1e-5 * expected.norm()


def test_a_teacher_that_is_the_student_teaches_nothing(toy_model: LanguageModel) -> None:
    policy, rollouts = student(toy_model), ragged_samples(toy_model)
    batch = distilled(policy, Teacher(copy.deepcopy(toy_model), 64), rollouts)
    assert batch.advantages.abs().max() < 1e-5
    assert policy.update(batch, StepSettings(1e-9, TEMPERATURE, 0.0))["actor/grad_norm"] < 1e-5


def test_a_token_beyond_the_teachers_embedding_counts_as_padding(toy_model: LanguageModel) -> None:
    small = copy.deepcopy(toy_model)
    small.model.resize_token_embeddings(1000)
    at_end, as_padding = (make_rollout([5, 9], [7, token]) for token in (1200, toy_model.pad_id))
    found = Teacher(small, 64).logprobs([at_end, as_padding], 1.0)
    assert found[:2].equal(found[2:])


# ---- runs ------------------------------------------------------------------------------------------------------------

DISTILL: dict[str, Any] = {
    "run__task": str(TOY_TASK),
    "algorithm__advantage_estimator": "on_policy_distillation",
    "task__limit": 5,
}


def test_a_teacher_has_to_be_named(toy_task: str) -> None:
    with pytest.raises(SettingsError, match=r"learns from a teacher; give model\.teacher=DIR"):
        make_config(typed("algorithm.advantage_estimator=on_policy_distillation", task=toy_task))
    with pytest.raises(SettingsError, match=r"there is no directory \./gone"):
        make_config(typed("model.teacher=./gone", task=toy_task, recipe="distill"))


@pytest.mark.slow
def test_a_teacher_has_the_tokens_of_the_policy(toy_model: LanguageModel, toy_model_path: Path, tmp_path: Path) -> None:
    tokenizer, teacher = copy.deepcopy(toy_model.tokenizer), tmp_path / "teacher"
    tokenizer.add_tokens(["<extra>"], special_tokens=True)
    save_model(teacher, toy_model)
    (teacher / "model.safetensors").unlink()  # no weights are read before the tokenizers are
    save_model(toy_model_path, from_parts("policy", toy_model.model, tokenizer))
    with pytest.raises(ModelError) as caught:
        loop.train(short_run(toy_model_path, tmp_path / "run", model__teacher=str(teacher), **DISTILL))
    assert str(caught.value) == (
        f"model.teacher={teacher} has another tokenizer than the policy: 1 of 1,253 tokens differ, the first is "
        "'<extra>', 1252 to the policy and None to the teacher; give a teacher of the policy's family"
    )
