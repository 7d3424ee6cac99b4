"""The recipes that imitate learn: expert iteration from right completions, distillation from a teacher."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from tests.trainer.conftest import TOY_TASK
from tests.trainer.runs import lines, short_run
from tests.trainer.training.test_update_formulas import nudged
from tinyzero_trainer.controller import loop
from tinyzero_trainer.models.loading import load_model, save_model
from tinyzero_trainer.monitoring.metrics_log import ACCURACY

pytestmark = pytest.mark.slow

STEPS = 24
SETTINGS: dict[str, Any] = {
    "run__task": str(TOY_TASK),
    "task__limit": 5,
    "run__steps": STEPS,
    "data__prompts_per_step": 16,
    "eval__every": 2 * STEPS,
    "checkpoint__every": 2 * STEPS,
}


def ends(output: Path, metric: str) -> tuple[float, float]:
    """The mean of a metric over the first third of the steps, and over the last."""
    found = [row[metric] for row in lines(output)[1:]]
    return fmean(found[: STEPS // 3]), fmean(found[-STEPS // 3 :])


def test_expert_iteration_raises_the_accuracy(warm_model: Path, tmp_path: Path) -> None:
    settings = {**SETTINGS, "run__recipe": "expert_iteration", "optimizer__learning_rate": 3e-3}
    loop.train(short_run(warm_model, tmp_path, **settings))
    before, after = ends(tmp_path, ACCURACY)
    assert after > before + 0.06  # five standard errors of a thousand completions


ADAPTER = pytest.mark.nightly(reason="trains a second time; every change tests adapters with other losses")


@pytest.mark.parametrize("rank", [0, pytest.param(8, marks=ADAPTER)])
def test_a_student_approaches_its_teacher(rank: int, warm_model: Path, tmp_path: Path) -> None:
    """The teacher with noise on its weights, trained whole or with an adapter."""
    warm = load_model(str(warm_model), torch.device("cpu"))
    save_model(tmp_path / "student", replace(warm, model=nudged(warm, 0, 0.05)))
    settings = {**SETTINGS, "run__recipe": "distill", "model__teacher": str(warm_model), "lora__rank": rank}
    settings["optimizer__learning_rate"] = 1e-2 if rank else 2e-3
    loop.train(short_run(tmp_path / "student", tmp_path / "run", **settings))
    before, after = ends(tmp_path / "run", "teacher/reverse_kl")
    assert 0 < after < 0.8 * before
