"""What test_ranks.py shows on the CPU, on as many GPUs as there are: through NCCL, in half precision, with kernels.

A division that takes more GPUs than there are is not collected.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.distributed.sharded import CASES, NOW, OPTIMIZER, make_policy, synthetic_batch
from tests.trainer.distributed.test_ranks import watched
from tests.trainer.processes import on_ranks
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.config import CriticConfig, NewModelConfig
from tinyzero_trainer.distributed.fsdp import FsdpOptions
from tinyzero_trainer.models.loading import from_parts, save_model
from tinyzero_trainer.models.new_model import build_model, build_tokenizer
from tinyzero_trainer.rollout.weight_source import named_weights
from tinyzero_trainer.training.build import _load
from tinyzero_trainer.training.critic import Critic

pytestmark = pytest.mark.gpu

SHAPE = NewModelConfig(hidden_size=256, layers=3, head_size=64, kv_heads=1, mlp_size=512, context=256)
"""Heads of keys and values that have to be repeated."""

SMALL_RATE = 1e-4
"""Of the updates: in half precision a larger one makes another model of the noise."""

DIVISIONS: dict[str, tuple[int, dict[str, Any]]] = {
    "1": (1, {}),
    "2": (2, {}),
    "2 offloaded while idle": (2, {"offload": "idle"}),
    "2 offloaded always": (2, {"offload": "always"}),
    "2 replicas": (2, {"replicas": 2}),
    "2 in a line": (2, {"sequence_parallel": 2}),
    "2 in a line, offloaded while idle": (2, {"sequence_parallel": 2, "offload": "idle"}),
    "2 in a line, all of it": (2, {"sequence_parallel": 2, "offload": "idle", "activation_checkpointing": True}),
    "2 replicas of a line of 2": (4, {"replicas": 2, "sequence_parallel": 2}),
    "4 in a line": (4, {"sequence_parallel": 4}),
}
EXACT = ("2", "2 replicas", "2 in a line")
"""Those that are compared in float32 as well."""

FITTING = [
    (name, dtype)
    for name, (count, _) in DIVISIONS.items()
    for dtype in (torch.float32, torch.bfloat16)
    if 1 < count <= torch.cuda.device_count() and (dtype == torch.bfloat16 or name in EXACT)
]

POLICIES = ("all weights", "exact KL", "LoRA, exact KL to itself")


def learn(start: str, experience: TrainingBatch, dtype: torch.dtype, divided: dict[str, Any]) -> dict[str, Any]:
    """On this rank: values, the first gradients, metrics of two updates, the weights after them."""
    torch.backends.cuda.matmul.allow_tf32 = False
    rank = torch.distributed.get_rank()
    options = replace(FsdpOptions(torch.device("cuda", rank), dtype, compile=False), **divided)
    shown: dict[str, Any] = {}
    for case in POLICIES:
        print(f"rank {rank}, {dtype}, {divided}: {case}", flush=True)
        policy = make_policy(_load(start, options), CASES[case], options)
        first, now = watched(policy._optimizer), replace(NOW, learning_rate=SMALL_RATE)
        policy.warm_up(now)
        logprobs = policy.logprobs(experience.rollouts, 0.8)
        metrics = [policy.update(experience, now) for _ in range(2)]
        shown[case] = (logprobs, on_host(first), metrics, on_host(dict(named_weights(policy.language_model.model))))
    print(f"rank {rank}, {dtype}, {divided}: critic", flush=True)
    critic = Critic(_load(start, options), settings=CriticConfig(), optimizer=OPTIMIZER, options=options)
    first = watched(critic._optimizer)
    metrics = [critic.update(experience) for _ in range(2)]
    shown["critic"] = (critic.values(experience.rollouts), on_host(first), metrics, {})
    return shown


def on_host(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.float().cpu().clone() for name, tensor in tensors.items()}


class _Runs:
    """What the ranks of each division show, in processes of their own, once it is asked for."""

    def __init__(self, directory: Path) -> None:
        tokenizer = build_tokenizer()
        language_model = from_parts("small", build_model(SHAPE, tokenizer, seed=0), tokenizer)
        save_model(directory / "start", language_model)
        self._directory, self._experience = directory, synthetic_batch(language_model)
        self._known: dict[Any, Any] = {}

    def of(self, division: str, dtype: torch.dtype) -> list[dict[str, Any]]:
        """On each rank; what failed fails again."""
        key = (division, dtype)
        if key not in self._known:
            directory, (count, divided) = self._directory / f"{len(self._known)}", DIVISIONS[division]
            directory.mkdir()
            given = (str(self._directory / "start"), self._experience, dtype, divided)
            try:
                self._known[key] = on_ranks(count, learn, directory, *given, gpus=True)
            except Exception as error:
                self._known[key] = error
        if isinstance(self._known[key], Exception):
            raise self._known[key]
        return self._known[key]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> _Runs:
    return _Runs(tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("which", [*POLICIES, "critic"])
@pytest.mark.parametrize(("division", "dtype"), FITTING, ids=str)
def test_gpus_learn_what_one_learns(division: str, dtype: torch.dtype, which: str, runs: _Runs) -> None:
    values, first, metrics, _ = runs.of("1", dtype)[0][which]
    norm, exact = float(first["norm"]), dtype == torch.float32
    found = [shown[which] for shown in runs.of(division, dtype)]
    for shown in found:
        torch.testing.assert_close(shown[0], values, rtol=0, atol=1e-4 if exact else 0.1)
        assert shown[2] == found[0][2]  # every rank tells the same
        for key, weight in found[0][3].items():
            assert torch.equal(shown[3][key], weight), key  # and has the same, to the bit
        error = torch.stack([(shown[1][key] - gradient).norm() for key, gradient in first.items()]).norm() / norm
        assert error < (1e-4 if exact else 0.05)
    for ours, theirs in zip(found[0][2], metrics, strict=True):
        assert ours.keys() == theirs.keys()
        for key in ("actor/grad_norm", "actor/entropy", "critic/grad_norm", "critic/vf_loss"):
            if key in theirs:
                assert ours[key] == pytest.approx(theirs[key], rel=1e-3 if exact else 0.05), key


def test_one_gpu_alone_is_one_rank(runs: _Runs) -> None:
    (shown,) = runs.of("1", torch.bfloat16)
    assert shown.keys() == {*POLICIES, "critic"}
    assert all(first["norm"] > 0 for _, first, _, _ in shown.values())
