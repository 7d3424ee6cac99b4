"""Several ranks learn what one learns: the same gradients, norms, bounds and metrics from the same rollouts."""

import copy
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.trainer.distributed.sharded import CASES, CPU, NOW, PLAIN, make_policy, make_up
from tests.trainer.processes import on_ranks
from tests.trainer.samples import ragged_samples
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.config import CriticConfig, OptimizerConfig
from tinyzero_trainer.distributed.dtensor import as_dtensor, full_tensor, local_shard
from tinyzero_trainer.distributed.fsdp import FsdpOptions, process_group
from tinyzero_trainer.distributed.groups import DataParallelGroup
from tinyzero_trainer.models.loading import LanguageModel, load_model, save_model
from tinyzero_trainer.rollout.weight_sync import named_weights
from tinyzero_trainer.training.build import _load
from tinyzero_trainer.training.critic import Critic
from tinyzero_trainer.training.optimizer import Optimizer
from tinyzero_trainer.training.policy import Policy
from tinyzero_trainer.training.update_metrics import MetricAccumulator

OPTIMIZER = OptimizerConfig(micro_batch_tokens=80, num_mini_batches=2, weight_decay=0.1, max_grad_norm=0.05)
TOLERANCE = 1e-5
"""Of a gradient, as a share of the norm of all."""


def gradients(policy: Policy, experience: TrainingBatch, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """Of one mini-batch, on this rank alone."""
    found: dict[str, Tensor] = {}
    parameters = dict(policy.language_model.model.named_parameters())

    def step(rate: float) -> Tensor:
        found.update({name: value.grad.clone() for name, value in parameters.items() if value.grad is not None})
        return torch.tensor(1.0)

    monkeypatch.setattr(policy._optimizer, "step", step)
    policy._update_mini_batch(experience, NOW, MetricAccumulator())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("count", [2, 3, 20])
def test_the_gradients_of_the_ranks_add_up_to_those_of_one(
    count: int, aggregation: str, toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    experience = make_up(toy_model)
    alone = make_policy(toy_model, CASES["KL"], None)
    alone._algorithm = replace(alone._algorithm, loss_aggregation=aggregation)
    expected = gradients(alone, experience, monkeypatch)
    norm = torch.nn.utils.get_total_norm(expected.values())
    total = {name: torch.zeros_like(value) for name, value in expected.items()}
    for rank in range(count):  # of 20 ranks 12 have no sequence
        alone._ranks = DataParallelGroup(count, rank)
        for name, value in gradients(alone, experience, monkeypatch).items():
            total[name] += value
    for name, value in expected.items():
        torch.testing.assert_close(total[name], value, rtol=0, atol=float(TOLERANCE * norm))


def told(shares: list[MetricAccumulator], name: str) -> list[Any]:
    return [getattr(share, name) for share in shares]


def test_what_the_ranks_measured_is_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = []
    for values in ([1.0, 2.0], [], [6.0]):
        metrics = MetricAccumulator()
        if values:
            metrics.add(each=torch.tensor(values))
            metrics.add_weighted_sum(loss=torch.tensor(values))
            metrics.extend(column=torch.tensor(values))
        metrics.end_mini_batch(torch.tensor(1.0))
        shares.append(metrics)

    for index in range(3):
        metrics, asked = copy.deepcopy(shares[index]), iter(["_sums", "_totals", "_columns", "_counts"])
        with monkeypatch.context() as patch:
            patch.setattr(DataParallelGroup, "all_gather", lambda ranks, own, asked=asked: told(shares, next(asked)))
            metrics.gather(DataParallelGroup(3, index))
        assert metrics.means() == {"each": 3.0}
        assert metrics.weighted_sums() == {"loss": 9.0}
        column = metrics.column("column")
        assert column is not None
        assert column.tolist() == [1.0, 2.0, 6.0]


# ---- in processes of their own ---------------------------------------------------------------------------------------


ALL = ("all weights", "exact KL", "LoRA, exact KL to itself")


def learn(
    start: str, experience: TrainingBatch, options: FsdpOptions = PLAIN, names: Sequence[str] = ALL
) -> dict[str, Any]:
    """Everything that two updates of policy and critic show on this rank."""
    shown: dict[str, Any] = {}
    for name in names:
        policy = make_policy(_load(start, options), CASES[name], options)
        policy._optimizer = Optimizer(policy.language_model.model, OPTIMIZER)
        first = watched(policy._optimizer)
        logprobs = policy.logprobs(experience.rollouts, 0.8)
        metrics = [policy.update(experience, NOW) for _ in range(2)]
        shown[name] = (policy.ranks, logprobs, metrics, first, copies(named_weights(policy.language_model.model)))
    critic = Critic(_load(start, options), settings=CriticConfig(), optimizer=OPTIMIZER, options=options)
    first = watched(critic._optimizer)
    metrics = [critic.update(experience) for _ in range(2)]
    weights = copies((name, full_tensor(value.detach())) for name, value in critic.model.named_parameters())
    shown["critic"] = (critic._ranks.world_size, critic.values(experience.rollouts), metrics, first, weights)
    return shown


def watched(optimizer: Optimizer) -> dict[str, Tensor]:
    """Will hold the whole gradients of the first update, as the ranks have added them up, before they are clipped."""
    found: dict[str, Tensor] = {}
    gather = optimizer._gather_gradients

    def gather_and_keep() -> Tensor:
        norm = gather()
        if not found:
            for name, parameter in optimizer._parameters.items():
                gradient = optimizer._shards[name].grad
                if gradient is not None or parameter.grad is not None:
                    found[name] = full_tensor(as_dtensor(local_shard(parameter.grad), parameter)).clone()
            found["norm"] = norm.clone()
        return norm

    optimizer._gather_gradients = gather_and_keep  # type: ignore[method-assign]
    return found


def copies(tensors: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in tensors}


COMBINED = pytest.mark.nightly(reason="combinations of divisions that are tested one by one, and all at once")
IN_LINES: dict[str, int] = {"sequence_parallel": 2}
IN_REPLICAS: dict[str, int] = {"replicas": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "divided", "names"),
    [
        pytest.param(2, {}, ALL, id="2"),
        pytest.param(3, {}, ALL, id="3", marks=COMBINED),
        pytest.param(2, IN_REPLICAS, ("all weights",), id="2 replicas"),
        pytest.param(4, IN_REPLICAS, ("exact KL",), id="2 replicas of 2", marks=COMBINED),
        pytest.param(2, IN_LINES, ALL, id="2 in a line"),
        pytest.param(4, IN_LINES, ("LoRA, exact KL to itself",), id="2 lines of 2", marks=COMBINED),
        pytest.param(4, IN_REPLICAS | IN_LINES, ("exact KL",), id="2 replicas of a line of 2"),
    ],
)
def test_ranks_learn_what_one_learns(
    count: int, divided: dict[str, int], names: Sequence[str], toy_model: LanguageModel, tmp_path: Path
) -> None:
    save_model(tmp_path / "start", toy_model)
    experience = pickle.loads(pickle.dumps(make_up(toy_model)))
    with process_group(CPU):
        assert dist.get_world_size() == 1
        expected = learn(str(tmp_path / "start"), experience, PLAIN, names)
    options = replace(PLAIN, **divided)
    found = on_ranks(count, learn, tmp_path, str(tmp_path / "start"), experience, options, names)
    for name, (ranks, values, metrics, first, weights) in expected.items():
        assert ranks == 1
        norm = float(first["norm"])
        for shown in found:
            assert shown[name][0] == count
            torch.testing.assert_close(shown[name][1], values, rtol=0, atol=1e-5)
            assert shown[name][2] == found[0][name][2]  # every rank tells the same
            for key, weight in found[0][name][4].items():
                assert torch.equal(shown[name][4][key], weight)  # of each replica, too
            for key, gradient in first.items():
                torch.testing.assert_close(shown[name][3][key], gradient, rtol=0, atol=TOLERANCE * norm)
            for key, weight in weights.items():
                torch.testing.assert_close(shown[name][4][key], weight, rtol=0, atol=1e-3)  # Adam's steps are of 1e-2
        for ours, theirs in zip(found[0][name][2], metrics, strict=True):
            shares = {key: value for key, value in theirs.items() if key.endswith("frac")}
            assert ours == pytest.approx(theirs | {key: ours[key] for key in shares}, rel=1e-3, abs=1e-5)
            for key, value in shares.items():  # a token at the border may fall on its other side
                assert ours[key] == pytest.approx(value, abs=0.02), key


@pytest.mark.slow
def test_two_ranks_with_fewer_sequences_than_one_for_each(toy_model: LanguageModel, tmp_path: Path) -> None:
    save_model(tmp_path / "start", toy_model)
    samples = ragged_samples(toy_model, groups=1, samples=1)
    length = len(samples[0].generation.token_ids)
    experience = TrainingBatch.of(samples, advantages=torch.ones(length), engine_logprobs=None)
    with process_group(CPU):
        expected = one_update(str(tmp_path / "start"), experience)
    for found in on_ranks(2, one_update, tmp_path, str(tmp_path / "start"), experience):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)


def one_update(start: str, experience: TrainingBatch) -> dict[str, float]:
    policy = make_policy(load_model(start, CPU), CASES["all weights"], PLAIN)
    policy._settings = OptimizerConfig()
    return policy.update(experience, NOW)
