"""One of two ranks runs out of memory in an update while the other waits for it: the run ends, and can be resumed."""

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.conftest import SHAPE
from tests.trainer.executors.test_ray import RANKS, make_config
from tests.trainer.processes import in_own_process
from tinyzero_sdk.settings import read_toml
from tinyzero_trainer.cli.oom_advice import advise_on_out_of_memory
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.resume import resume_config
from tinyzero_trainer.controller.loop import train
from tinyzero_trainer.models.loading import from_parts, save_model
from tinyzero_trainer.models.new_model import build_model, build_tokenizer
from tinyzero_trainer.utils.oom import OutOfMemoryError

TOKENS, FITS = 40, 20
TWO_STEPS: dict[str, Any] = {"run__steps": 2, "data__prompts_per_step": 8, "rollout__return_logprobs": "sample"}
TWO_STEPS |= {"algorithm__kl_coefficient": 0.0}
LOSS = """
from pathlib import Path

import torch
import torch.distributed as dist
from tinyzero_trainer.algorithms.losses import find_policy_loss
from tinyzero_trainer.training.logprobs import PolicyModel

loss = find_policy_loss("ppo")
forward = PolicyModel.forward


def too_much(self, batch, *args, **options):
    is_large = batch.tokens.numel() > {fits} and torch.is_grad_enabled()
    if is_large and dist.get_rank() == {rank} and Path("{after}").exists():
        if not batch.tokens.is_cuda:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.64 GiB. GPU 1 has a total capacity")
        torch.cuda.empty_cache()
        held = torch.empty(torch.cuda.mem_get_info()[0] - 2**21, dtype=torch.uint8, device="cuda")
    return forward(self, batch, *args, **options)


PolicyModel.forward = too_much
"""
"""A loss of the user's own, in whose module a rank has too little memory for large passes once a file exists."""


def save_toy_model(folder: Path) -> None:
    tokenizer = build_tokenizer()
    save_model(folder / "model", from_parts("toy", build_model(SHAPE, tokenizer, seed=0), tokenizer))


def run_out_and_resume(config: TrainConfig) -> str:
    """The error that ends the run, which is resumed with what it says."""
    with pytest.raises(OutOfMemoryError) as error, advise_on_out_of_memory(config):
        train(config)
    half = config.optimizer.token_budget // 2
    train(resume_config(Path(config.run.output), {"optimizer": {"micro_batch_tokens": half}}), resume=True)
    return str(error.value)


@pytest.mark.nightly(reason="starts Ray twice; every change tests the advice, and that a rank's error is raised")
def test_the_run_ends_and_says_how_it_goes_on(tmp_path: Path) -> None:
    save_toy_model(tmp_path)
    (loss := tmp_path / "loss.py").write_text(LOSS.format(fits=FITS, rank=1, after=tmp_path / "run/checkpoints/step_1"))
    config = make_config(tmp_path, "run", **TWO_STEPS, **RANKS, algorithm__policy_loss=f"{loss}:loss")
    line = in_own_process(run_out_and_resume, tmp_path, config)  # since Ray leaves much open
    assert line == (
        "the GPU's memory ran out while the weights were updated (Tried to allocate 4.64 GiB); resume from the last "
        f"checkpoint with --resume optimizer.micro_batch_tokens={TOKENS // 2}"
    )
    assert read_toml(tmp_path / "run/config.toml")["optimizer"]["micro_batch_tokens"] == TOKENS // 2
    assert (tmp_path / "run/checkpoints/step_2").is_dir()
