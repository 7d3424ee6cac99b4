"""CUDA runs out of memory for real, on one GPU and on one of two: a run starts with half, or ends and is resumed so.

pytest -m gpu tests/trainer/executors/test_out_of_memory_gpu.py
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.executors.test_ray import make_config
from tests.trainer.executors.test_ray_out_of_memory import LOSS, TWO_STEPS, run_out_and_resume, save_toy_model
from tests.trainer.processes import in_own_process, needs_ray
from tinyzero_sdk.settings import read_toml
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.controller.loop import train

TOKENS, FITS = 16384, 8192
IN_THE_TRIAL, IN_AN_UPDATE = "model", "run/checkpoints/step_1"
"""What exists from then on."""

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.parametrize(
        "gpus",
        [
            1,
            pytest.param(
                2, marks=[needs_ray, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs 2 GPUs")]
            ),
        ],
    ),
]


def configure(folder: Path, gpus: int, after: str) -> TrainConfig:
    """A run of which the last rank has too little memory once a file exists."""
    save_toy_model(folder)
    (loss := folder / "loss.py").write_text(LOSS.format(fits=FITS, rank=gpus - 1, after=folder / after))
    values: dict[str, Any] = TWO_STEPS | {
        "run__device": "auto",
        "run__executor": "local" if gpus == 1 else "ray",
        "parallel__world_size": None,
        "data__prompts_per_step": 64 * gpus,
        "data__max_prompt_tokens": 32,
        "rollout__group_size": 8,
        "rollout__max_completion_tokens": 64,
        "optimizer__micro_batch_tokens": TOKENS,
        "algorithm__entropy_coefficient": 0.1,  # a gradient, whatever the rewards
        "algorithm__policy_loss": f"{loss}:loss",
        "model__compile": False,
    }
    return make_config(folder, "run", **values, **({} if gpus == 1 else {"ray__gpus": gpus}))


def recorded_tokens(folder: Path) -> int:
    return int(read_toml(folder / "run/config.toml")["optimizer"]["micro_batch_tokens"])


def test_in_the_trial_the_run_starts_with_half_the_tokens(gpus: int, tmp_path: Path) -> None:
    in_own_process(train, tmp_path, configure(tmp_path, gpus, IN_THE_TRIAL), gpus=True)
    assert recorded_tokens(tmp_path) == FITS


def test_in_an_update_the_run_ends_and_is_resumed_with_half(gpus: int, tmp_path: Path) -> None:
    line = in_own_process(run_out_and_resume, tmp_path, configure(tmp_path, gpus, IN_AN_UPDATE), gpus=True)
    assert f"with --resume optimizer.micro_batch_tokens={FITS}" in line
    assert recorded_tokens(tmp_path) == FITS
