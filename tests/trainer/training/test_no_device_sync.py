"""The update's inner loop never makes the host wait for a GPU; counted on the CPU."""

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainer.distributed.sharded import NOW, shared_batch
from tests.trainer.samples import build_policy
from tinyzero_trainer.algorithms.losses import token_weights
from tinyzero_trainer.config import CriticConfig, OptimizerConfig
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.training.critic import Critic
from tinyzero_trainer.training.update_metrics import MetricAccumulator

WAIT = ("nonzero", "_local_scalar_dense", "masked_select", "is_nonzero")


class Waits(TorchDispatchMode):
    """Lists this project's lines that fetch a number (transformers does for masks, which packed rows do not need)."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, function.overloadpacket.__name__
        masked = name.startswith("index") and any(
            isinstance(place, torch.Tensor) and place.dtype == torch.bool
            for places in args
            if isinstance(places, list | tuple)
            for place in places
        )
        if name in WAIT or masked or (name == "repeat_interleave" and kwargs.get("output_size") is None):
            frame = sys._getframe()
            while frame.f_back and "tinyzero_trainer" not in frame.f_code.co_filename:
                if "transformers" in frame.f_code.co_filename:
                    return function(*args, **kwargs)
                frame = frame.f_back
            self.lines.append(f"{name} at {frame.f_code.co_filename}:{frame.f_lineno}")
        return function(*args, **kwargs)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize(("loss", "kl"), [("ppo", "exact"), ("gspo", "k3"), ("cispo", None)])
def test_no_micro_batch_of_the_policy_makes_the_host_wait(
    loss: str, kl: Any, layout: Any, toy_model: LanguageModel
) -> None:
    policy = build_policy(
        toy_model,
        reference=toy_model.model if kl else None,
        optimizer=OptimizerConfig(micro_batch_tokens=80, packing=layout),
        policy_loss=loss,
        **({"kl_coefficient": 0.1, "kl_estimator": kl} if kl else {}),
    )
    experience, metrics = shared_batch(toy_model), MetricAccumulator()
    for batch in policy._micro_batches(experience.rollouts):
        part, weight = experience.select(batch.indices), torch.ones(len(batch.targets))
        with Waits() as waits:
            policy._token_losses(NOW, batch, part, weight, metrics).sum().backward()
        assert waits.lines == []


def test_the_critic_makes_the_host_wait_for_the_norm_alone(toy_model: LanguageModel) -> None:
    critic = Critic(toy_model, settings=CriticConfig(), optimizer=OptimizerConfig(micro_batch_tokens=80))
    experience = shared_batch(toy_model)
    with Waits() as waits:
        critic._update(experience, 1e-3, partial(token_weights, mode="token-mean", max_tokens=1), critic._token_losses)
    of_device = [line for line in waits.lines if "jagged.py" not in line]  # lengths are the host's
    assert sorted(line.split("/")[-1].split(":")[0] for line in of_device) == ["optimizer.py", "update_metrics.py"]


def test_waits_are_seen() -> None:
    values = torch.arange(4.0)
    with Waits() as waits:
        values[values > 1].sum().item()
    assert [line.split()[0] for line in waits.lines] == ["index", "_local_scalar_dense"]
