"""One of two ranks runs out of memory while the other waits for it: both are replaced, and the run goes on."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.trainer import runs
from tests.trainer.configurations import changed
from tests.trainer.conftest import SHAPE, TOY_TASK
from tests.trainer.processes import in_own_process
from tinyzero_sdk.settings import read_toml
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.controller.loop import train
from tinyzero_trainer.models.loading import from_parts, save_model
from tinyzero_trainer.models.new_model import build_model, build_tokenizer

pytestmark = pytest.mark.nightly(
    reason="starts Ray twice; halving and the exchange of ranks are tested with every change"
)

TOKENS, FITS = 40, 20
LOSS = """
import torch
import torch.distributed as dist
from tinyzero_trainer.algorithms.losses import find_policy_loss
from tinyzero_trainer.training.{module} import {model}

loss = find_policy_loss("ppo")
forward, left = {model}.forward, {left}


def too_much(self, batch, *args, **options):
    global left
    if dist.get_rank() == {rank} and batch.tokens.numel() > {fits} and torch.is_grad_enabled() == {training}:
        left -= 1
        if left < 0 and not batch.tokens.is_cuda:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.64 GiB. GPU 1 has a total capacity")
        if left < 0:
            torch.cuda.empty_cache()
            held = torch.empty(torch.cuda.mem_get_info()[0] - 2**21, dtype=torch.uint8, device="cuda")
    return forward(self, batch, *args, **options)


{model}.forward = too_much
"""
"""A loss of the user's own, in whose module the second rank's memory is too small for a kind of pass, after some."""

PASSES = {
    "logprobs": {"module": "logprobs", "model": "PolicyModel", "training": False, "left": 0},
    "update": {"module": "logprobs", "model": "PolicyModel", "training": True, "left": 5},
    "values": {"module": "critic", "model": "ValueModel", "training": False, "left": 0},
    "update_critic": {"module": "critic", "model": "ValueModel", "training": True, "left": 5},
}


def make_config(folder: Path, name: str, **changes: Any) -> TrainConfig:
    values: dict[str, Any] = {
        "run": {"task": str(TOY_TASK), "output": str(folder / name), "steps": 2, "device": "cpu", "executor": "ray"},
        "parallel": {"world_size": 2},
        "task": {"limit": 5},
        "model": {"path": str(folder / "model")},
        "data": {"prompt_template": "base", "test_fraction": 0.4, "prompts_per_step": 8},
        "rollout": {"group_size": 4, "max_completion_tokens": 8, "return_logprobs": "sample"},
        "optimizer": {"learning_rate": 1e-3, "num_mini_batches": 2, "micro_batch_tokens": TOKENS},
        "algorithm": {"advantage_estimator": "gae"},
        "critic": {"learning_rate": 1e-3},
        "eval": {"num_problems": 8, "every": 0},
        "checkpoint": {"every": 1},
    }
    return changed(values, changes)


def train_with_too_little_memory(folder: Path, names: tuple[str, ...]) -> None:
    """A run for each kind of pass, and one with half the tokens from the start."""
    from ray.cluster_utils import Cluster

    given: dict[str, Any] = {"num_cpus": 4, "num_gpus": 0, "object_store_memory": 2**28}
    cluster = Cluster(initialize_head=True, head_node_args=given | {"include_dashboard": False})
    try:
        configure = partial(make_config, folder, ray__address=cluster.address)
        train(configure("half", optimizer__micro_batch_tokens=FITS))
        for name in names:
            loss = folder / f"{name}_loss.py"
            loss.write_text(LOSS.format(fits=FITS, rank=1, **PASSES[name]))
            train(configure(name, algorithm__policy_loss=f"{loss}:loss"))
    finally:
        cluster.shutdown()


@pytest.mark.parametrize("names", [("update",), ("logprobs", "values", "update_critic")])
def test_the_metrics_are_those_of_a_run_with_half_the_tokens(names: tuple[str, ...], tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    save_model(tmp_path / "model", from_parts("toy", build_model(SHAPE, tokenizer, seed=0), tokenizer))
    in_own_process(train_with_too_little_memory, tmp_path, tmp_path, names)  # since Ray leaves much open
    for name in names:
        for ours, theirs in zip(runs.lines(tmp_path / name), runs.lines(tmp_path / "half"), strict=True):
            assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)
        assert read_toml(tmp_path / name / "config.toml")["optimizer"]["micro_batch_tokens"] == FITS
        assert not list((tmp_path / name / "checkpoints").glob("*tmp*"))
