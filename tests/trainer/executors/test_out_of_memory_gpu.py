"""CUDA runs out of memory for real, in the trial or amid an update: on one GPU, and on one of two; the run goes on.

pytest -m gpu tests/trainer/executors/test_out_of_memory_gpu.py
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer import runs
from tests.trainer.configurations import changed
from tests.trainer.conftest import SHAPE
from tests.trainer.executors.test_ray_out_of_memory import LOSS, PASSES, make_config
from tests.trainer.processes import in_own_process
from tinyzero_sdk.settings import read_toml, to_mapping
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.controller.loop import train
from tinyzero_trainer.models.loading import from_parts, save_model
from tinyzero_trainer.models.new_model import build_model, build_tokenizer

pytestmark = pytest.mark.gpu

TOKENS, FITS = 16384, 8192
AFTER = {"trial": 0, "update": 3}
"""Training passes before it: the trial has two, of which the second is short."""


def configure(folder: Path, name: str, gpus: int, **changes: Any) -> TrainConfig:
    alone: dict[str, Any] = {"run__executor": "local", "parallel__world_size": None}
    shared: dict[str, Any] = {"ray__gpus": gpus, "parallel__world_size": None}
    values: dict[str, Any] = {
        "run__device": "auto",
        "data__prompts_per_step": 64 * gpus,
        "data__max_prompt_tokens": 32,
        "rollout__group_size": 8,
        "rollout__max_completion_tokens": 64,
        "optimizer__micro_batch_tokens": TOKENS,
        "algorithm__advantage_estimator": "grpo",
        "algorithm__entropy_coefficient": 0.1,  # a gradient, whatever the rewards
        "model__compile": False,
    }
    base = to_mapping(make_config(folder, name, run__executor="ray"))
    for group in ("critic",):
        base.pop(group)
    return changed(base, values | (alone if gpus == 1 else shared) | changes)


@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("where", AFTER)
def test_a_run_goes_on_with_half_the_tokens(gpus: int, where: str, tmp_path: Path) -> None:
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"needs {gpus} GPUs")
    tokenizer = build_tokenizer()
    save_model(tmp_path / "model", from_parts("toy", build_model(SHAPE, tokenizer, seed=0), tokenizer))
    loss = tmp_path / "loss.py"
    loss.write_text(LOSS.format(fits=FITS, rank=gpus - 1, **PASSES["update"] | {"left": AFTER[where]}))
    half = configure(tmp_path, "half", gpus, optimizer__micro_batch_tokens=FITS)
    halved = configure(tmp_path, "halved", gpus, algorithm__policy_loss=f"{loss}:loss")
    for config in (half, halved):
        in_own_process(train, tmp_path, config)
    assert read_toml(tmp_path / "halved/config.toml")["optimizer"]["micro_batch_tokens"] == FITS
    # Of the first step: what is sampled afterwards differs with the last bit of a weight.
    (_, ours, *_), (_, theirs, *_) = (runs.lines(tmp_path / name) for name in ("halved", "half"))
    for name in ("actor/grad_norm", "actor/entropy"):
        assert ours[name] == pytest.approx(theirs[name], rel=0.05), name
