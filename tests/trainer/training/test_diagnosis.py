"""What is recorded of an update for `tinyzero replay`; with several ranks: tests/trainer/distributed/test_ranks.py."""

from dataclasses import replace

import pytest
import torch

from tests.trainer.samples import build_policy, flat_gradient, ragged_samples, with_advantages
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.config import OptimizerConfig
from tinyzero_trainer.models.loading import LanguageModel

NOW = StepSettings(learning_rate=1e-3)
ADVANTAGES = [1.0, -1.0, 0.5, -0.5] * 3


def experience(model: LanguageModel) -> TrainingBatch:
    return with_advantages(ragged_samples(model), ADVANTAGES)


@pytest.mark.slow
def test_losses_and_norms_are_those_of_the_update(toy_model: LanguageModel) -> None:
    policy = build_policy(toy_model, optimizer=OptimizerConfig(max_grad_norm=1e9, micro_batch_tokens=60))
    policy.diagnose()
    metrics = policy.update(experience(toy_model), NOW)
    diagnosis = policy.diagnosis()
    assert diagnosis.nonfinite_weights == []
    (update,) = diagnosis.updates
    assert not update.skipped
    assert len(update.micro_batches) > 2
    assert sum(each.loss for each in update.micro_batches) == pytest.approx(metrics["actor/pg_loss"], abs=1e-6)
    assert sum(each.completions for each in update.micro_batches) == 12
    assert update.grad_norm == pytest.approx(metrics["actor/grad_norm"], rel=1e-6)
    assert update.grad_norm == pytest.approx(flat_gradient(toy_model.model).norm().item(), rel=1e-5)
    assert {"model.embed_tokens", "model.layers.0", "model.norm"} <= update.group_norms.keys()
    policy.update(experience(toy_model), NOW)  # no longer recorded
    assert len(diagnosis.updates) == 1


@pytest.mark.parametrize("column", ["advantages", "old_logprobs", "loss"])
def test_the_first_column_that_is_not_finite_is_named(column: str, toy_model: LanguageModel) -> None:
    policy, batch = build_policy(toy_model, optimizer=OptimizerConfig(num_mini_batches=2)), experience(toy_model)
    token = int(batch.lengths[:9].sum()) + 1  # the second of completion 9, in the second mini-batch
    values = {name: getattr(batch, name).clone() for name in ("advantages", "old_logprobs")}
    if column == "loss":
        values["advantages"][token] = 3e38  # finite, but not its weighted loss
        values["old_logprobs"][token] = -30.0
    else:
        values[column][token] = torch.nan
        values["advantages"][token] = torch.nan  # a later one
    policy.diagnose()
    policy.update(replace(batch, **values), NOW)
    first, second = policy.diagnosis().updates
    assert (first.skipped, second.skipped) == (False, True)
    (completion,) = second.micro_batches[0].nonfinite
    assert (completion.index, completion.value, completion.token) == (9, column, 1)


def test_weights_that_are_not_finite_from_the_start_are_named(toy_model: LanguageModel) -> None:
    policy, name = build_policy(toy_model), "model.layers.0.mlp.down_proj.weight"
    with torch.no_grad():
        toy_model.model.get_parameter(name)[0, 0] = torch.inf
    policy.diagnose()
    policy.update(experience(toy_model), NOW)
    diagnosis = policy.diagnosis()
    assert diagnosis.nonfinite_weights == [name]
    (update,) = diagnosis.updates
    assert len(update.micro_batches[0].nonfinite) == 12
    assert update.skipped
