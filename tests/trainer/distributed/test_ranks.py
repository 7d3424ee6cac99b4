"""Several ranks train as one does: the same gradients, norms, weights and metrics from the same rollouts."""

import math
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp._fully_shard import _fsdp_param_group

from tests.trainer.conftest import SHAPE
from tests.trainer.distributed.sharded import CASES, CPU, NOW, PLAIN, make_policy, synthetic_batch
from tests.trainer.processes import on_ranks
from tests.trainer.samples import ragged_samples
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.losses import token_weights
from tinyzero_trainer.config import CriticConfig, OptimizerConfig
from tinyzero_trainer.distributed.dtensor import as_dtensor, full_tensor, local_shard
from tinyzero_trainer.distributed.fsdp import FsdpOptions, process_group
from tinyzero_trainer.distributed.groups import DataParallelGroup
from tinyzero_trainer.models.loading import LanguageModel, from_parts, load_model, save_model
from tinyzero_trainer.models.new_model import build_model, build_tokenizer
from tinyzero_trainer.rollout.weight_source import named_weights
from tinyzero_trainer.training.build import _load
from tinyzero_trainer.training.critic import Critic
from tinyzero_trainer.training.optimizer import Optimizer
from tinyzero_trainer.training.policy import Policy
from tinyzero_trainer.training.update_metrics import MetricAccumulator

OPTIMIZER = OptimizerConfig(micro_batch_tokens=80, num_mini_batches=2, weight_decay=0.1, max_grad_norm=0.05)
SMALL = 30
"""Tokens of a micro-batch, so that each rank has several."""

TOLERANCE = 1e-5
"""Of a gradient, as a fraction of the norm of all."""


def gradients(policy: Policy, experience: TrainingBatch, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """Of one mini-batch, on this rank alone."""
    found: dict[str, Tensor] = {}
    parameters = dict(policy.language_model.model.named_parameters())

    def gather(loss: Tensor) -> Tensor:
        found.update({name: value.grad.clone() for name, value in parameters.items() if value.grad is not None})
        return torch.tensor(1.0)

    monkeypatch.setattr(policy._optimizer, "gather_gradients", gather)
    monkeypatch.setattr(policy._optimizer, "step", lambda *_, **__: None)
    weights_of = partial(token_weights, mode=policy._algorithm.loss_aggregation, max_tokens=policy._max_tokens)
    losses_of = partial(policy._token_losses, NOW)
    policy._update_mini_batch(experience, NOW.learning_rate, weights_of, losses_of, MetricAccumulator())
    return found


@pytest.mark.parametrize(("count", "aggregation"), [(3, "seq-mean-token-mean"), (20, "token-mean")])
def test_the_gradients_of_the_ranks_add_up_to_those_of_one(
    count: int, aggregation: str, toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    experience = synthetic_batch(toy_model)
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


ALL = ("all weights", "exact KL", "LoRA, exact KL to itself")


def learn(
    start: str, experience: TrainingBatch, options: FsdpOptions = PLAIN, names: Sequence[str] = ALL
) -> dict[str, Any]:
    """Everything that two updates of policy and critic show on this rank."""
    shown: dict[str, Any] = {}
    for name in names:
        policy = make_policy(_load(start, options), CASES[name], options)
        policy._optimizer = Optimizer(policy.language_model.model, OPTIMIZER)
        policy.micro_batch_tokens = SMALL
        first = watched(policy._optimizer)
        logprobs = policy.logprobs(experience.rollouts, 0.8)
        metrics, entropies = [policy.update(experience, NOW)], policy.entropies()
        metrics.append(policy.update(experience, NOW))
        shown[name] = (
            policy.world_size,
            (logprobs, entropies),
            metrics,
            first,
            copies(named_weights(policy.language_model.model)),
        )
    critic = Critic(_load(start, options), settings=CriticConfig(), optimizer=OPTIMIZER, options=options)
    critic.micro_batch_tokens = SMALL
    first = watched(critic._optimizer)
    metrics = [critic.update(experience) for _ in range(2)]
    weights = copies((name, full_tensor(value.detach())) for name, value in critic.model.named_parameters())
    shown["critic"] = (critic._ranks.world_size, critic.values(experience.rollouts), metrics, first, weights)
    return shown


def watched(optimizer: Optimizer) -> dict[str, Tensor]:
    """The full gradients of the first update, summed over the ranks and not yet clipped; filled by the update."""
    found: dict[str, Tensor] = {}
    gather = optimizer.gather_gradients

    def gather_and_keep(loss: Tensor) -> Tensor:
        norm = gather(loss)
        if not found:
            for name, parameter in optimizer._parameters.items():
                gradient = optimizer._shards[name].grad
                if gradient is not None or parameter.grad is not None:
                    found[name] = full_tensor(as_dtensor(local_shard(parameter.grad), parameter)).clone()
            found["norm"] = norm.clone()
        return norm

    optimizer.gather_gradients = gather_and_keep  # type: ignore[method-assign]
    return found


def copies(tensors: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in tensors}


SLICES: dict[str, int] = {"sequence_parallel": 2}
REPLICAS: dict[str, int] = {"replicas": 2}
DIVISIONS: dict[str, tuple[int, dict[str, int], Sequence[str]]] = {
    "2": (2, {}, ALL),
    "2, gathered once": (2, {"reshard_after_forward": False}, ALL),
    "2 replicas": (2, REPLICAS, ("all weights",)),
    "2 slices": (2, SLICES, ("LoRA, exact KL to itself",)),
    "2 replicas of 2 slices": (4, REPLICAS | SLICES, ("exact KL",)),
    "3": (3, {}, ALL),
    "2 replicas of 2": (4, REPLICAS, ("exact KL",)),
    "2 shards of 2 slices": (4, SLICES, ("LoRA, exact KL to itself",)),
}
"""World size, its division, and the policies that are trained with it."""
COMBINED = pytest.mark.nightly(reason="combinations of divisions that are tested one by one")
NIGHTLY = ["3", "2 replicas of 2", "2 shards of 2 slices"]


def train(start: str, divisions: Sequence[str], rollouts: TrainingBatch, few: TrainingBatch) -> dict[str, Any]:
    """Everything that a rank shows with each division, in one process."""
    shown: dict[str, Any] = {}
    for division in divisions:
        _, divided, names = DIVISIONS[division]
        with counted_reductions() as shown["reductions", division]:
            shown[division] = learn(start, rollouts, replace(PLAIN, **divided), names)
    policy = make_policy(load_model(start, CPU), CASES["all weights"], PLAIN)
    policy._settings = OptimizerConfig()
    shown["few"] = policy.update(few, NOW)
    before, loss = copies(policy.language_model.model.named_parameters()), policy._policy_loss
    if dist.get_rank() == dist.get_world_size() - 1:
        policy._policy_loss = lambda *inputs: replace(found := loss(*inputs), loss=found.loss + torch.inf)
    policy.diagnose()
    skipped = policy.update(rollouts, NOW)["actor/skipped_updates"]
    same = [torch.equal(before[name], value) for name, value in policy.language_model.model.named_parameters()]
    return shown | {"skipped": skipped, "unchanged": all(same), "diagnosis": policy.diagnosis()}


@contextmanager
def counted_reductions() -> Iterator[list[Any]]:
    """One entry for each reduction of the gradients of a layer, or of embedding and head."""
    found: list[Any] = []
    reduce = _fsdp_param_group.foreach_reduce

    def counting(*arguments: Any, **options: Any) -> Any:
        found.append(None)
        return reduce(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_fsdp_param_group, "foreach_reduce", counting)
        yield found


class _Ranks:
    """What the ranks show; each number of ranks is started once."""

    def __init__(self, directory: Path, language_model: LanguageModel) -> None:
        self._directory, self._shown = directory, dict[int, list[dict[str, Any]]]()
        save_model(directory / "start", language_model)
        samples = ragged_samples(language_model, groups=1, samples=1)
        few = TrainingBatch.of(
            samples, advantages=torch.ones(len(samples[0].generation.token_ids)), engine_logprobs=None
        )
        self._arguments = (pickle.loads(pickle.dumps(synthetic_batch(language_model))), few)

    def of(self, count: int, *, nightly: bool = False) -> list[dict[str, Any]]:
        key = -count if nightly else count
        if key not in self._shown:
            divisions = [
                name for name, (ranks, *_) in DIVISIONS.items() if ranks == count and (name in NIGHTLY) == nightly
            ]
            given = (str(self._directory / "start"), divisions or ["2"], *self._arguments)
            if count == 1:
                with process_group(CPU):
                    self._shown[key] = [train(*given)]
            else:
                directory = self._directory / str(key)
                directory.mkdir()
                self._shown[key] = on_ranks(count, train, directory, *given)
        return self._shown[key]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> _Ranks:
    tokenizer = build_tokenizer()
    return _Ranks(tmp_path_factory.mktemp("ranks"), from_parts("toy", build_model(SHAPE, tokenizer, seed=0), tokenizer))


@pytest.mark.slow
@pytest.mark.parametrize(
    "division", [pytest.param(name, marks=COMBINED if name in NIGHTLY else ()) for name in DIVISIONS]
)
def test_ranks_learn_what_one_learns(division: str, ranks: _Ranks) -> None:
    (alone,) = ranks.of(1)
    count, _, names = DIVISIONS[division]
    found = [shown[division] for shown in ranks.of(count, nightly=division in NIGHTLY)]
    for name in (*names, "critic"):
        world_size, values, metrics, first, weights = alone["2"][name]
        assert world_size == 1
        norm = float(first["norm"])
        for shown in found:
            assert shown[name][0] == count
            torch.testing.assert_close(shown[name][1], values, rtol=0, atol=1e-5, equal_nan=True)
            assert shown[name][2] == found[0][name][2]  # every rank returns the same
            for key, weight in found[0][name][4].items():
                assert torch.equal(shown[name][4][key], weight)  # of each replica, too
            for key, gradient in first.items():
                torch.testing.assert_close(shown[name][3][key], gradient, rtol=0, atol=TOLERANCE * norm)
            for key, weight in weights.items():
                torch.testing.assert_close(shown[name][4][key], weight, rtol=0, atol=1e-3)  # Adam's steps are of 1e-2
        for ours, theirs in zip(found[0][name][2], metrics, strict=True):
            fractions = {key: value for key, value in theirs.items() if key.endswith("frac")}
            assert ours == pytest.approx(theirs | {key: ours[key] for key in fractions}, rel=1e-3, abs=1e-5)
            for key, value in fractions.items():  # a token at the bound may fall on its other side
                assert ours[key] == pytest.approx(value, abs=0.02), key


@pytest.mark.slow
def test_ranks_that_gather_once_reduce_once_a_mini_batch(ranks: _Ranks) -> None:
    for shown in ranks.of(2):
        once, each = (len(shown["reductions", division]) for division in ("2, gathered once", "2"))
        assert 0 < once <= each / 2


@pytest.mark.slow
def test_two_ranks_with_fewer_sequences_than_one_for_each(ranks: _Ranks) -> None:
    (alone,) = ranks.of(1)
    for shown in ranks.of(2):
        assert shown["few"] == pytest.approx(alone["few"], rel=1e-4, abs=1e-6)


@pytest.mark.slow
def test_all_ranks_skip_an_update_if_the_loss_of_one_is_not_finite(ranks: _Ranks) -> None:
    (of_one,) = ranks.of(1)[0]["diagnosis"].updates
    for shown in ranks.of(2):
        assert shown["skipped"] == 1
        assert shown["unchanged"]
        (update,) = shown["diagnosis"].updates
        assert update.skipped
        assert update.group_norms == pytest.approx(of_one.group_norms, rel=1e-4)
        per_rank, found = len(update.micro_batches) // 2, update.micro_batches
        assert [math.isfinite(each.loss) for each in found] == [True] * per_rank + [False] * per_rank
        assert [len(each.nonfinite) for each in found[per_rank:]] == [each.completions for each in found[per_rank:]]
        assert sum(each.completions for each in found) == sum(each.completions for each in of_one.micro_batches) == 8
