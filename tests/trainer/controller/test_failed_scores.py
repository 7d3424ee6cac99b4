"""A score that failed counts as wrong if it is the task's own code that failed, and not at all if a judge did."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tinyzero_sdk import Item, Score
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.config import EvalConfig, RolloutConfig, TrainConfig
from tinyzero_trainer.controller import heldout_eval
from tinyzero_trainer.controller.step_metrics import batch_metrics
from tinyzero_trainer.types import Generation, Prompt, Rollout

RIGHT = Score(1.0, True, "ok", parts={"correct": 1.0})
WRONG = Score(0.2, False, "wrong", parts={"correct": 0.0})
FAILED = Score(0.0, False, "timeout", masked=True)
MEANS = {"correct": (1 / 3, 1 / 2), "score": (1.2 / 3, 0.6)}  # of a synchronous scorer, and of an asynchronous one


def rollouts_of(*scores: Score) -> list[Rollout]:
    prompt = Prompt(Item(1), "1", [1], "toy")
    return [Rollout(prompt, Generation([7], None, True), "", score) for score in scores]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("several", [False, True])
def test_in_training_all_means_agree(is_async: bool, several: bool) -> None:
    task = SimpleNamespace(is_async=is_async, difficulties=lambda items: np.zeros(len(items)))
    tasks: Any = {"toy": task} | ({"other": task} if several else {})
    rollouts = rollouts_of(RIGHT, WRONG, FAILED)
    batch = TrainingBatch.of(rollouts, 3, advantages=torch.zeros(3))
    metrics = batch_metrics(tasks, rollouts, batch)
    correct, score = (means[is_async] for means in MEANS.values())
    expected = {"completion/acc_mean": correct, "completion/acc_finished": correct, "reward/part/correct": correct}
    expected |= {"critic/score/mean": score, "critic/rewards/mean": score, "reward/timeout_frac": 1 / 3}
    expected |= {"critic/score/min": 0.2 if is_async else 0.0}
    if several:
        expected |= {"task/toy/acc": correct, "task/toy/score": score, "task/toy/part/correct": correct}
    expected |= {"train/acc_by_difficulty/toy/0" if several else "train/acc_by_difficulty/0": correct}
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    failed = rollouts_of(FAILED, FAILED)  # nothing is known: as wrong ones
    metrics = batch_metrics(tasks, failed, TrainingBatch.of(failed, 2, advantages=torch.zeros(2)))
    assert metrics["completion/acc_mean"] == metrics["critic/score/mean"] == 0


@pytest.mark.parametrize("is_async", [False, True])
def test_held_out_too(is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heldout_eval, "evaluate", lambda *_, **__: rollouts_of(RIGHT, WRONG, FAILED))
    prompts = SimpleNamespace(held_out=lambda count: [rollout.prompt for rollout in rollouts_of(*[RIGHT] * 3)])
    task: Any = SimpleNamespace(task=SimpleNamespace(is_async=is_async), prompts=prompts, pool=None)
    display = SimpleNamespace(
        phase=lambda *_: None, log=lambda _: None, end_phase=lambda: None, held_out=lambda *_: None
    )
    config = TrainConfig(eval=EvalConfig(greedy=False), rollout=RolloutConfig(max_completion_tokens=8))
    evaluation = heldout_eval.HeldOutEvaluation(config, SimpleNamespace(display=display), {"toy": task}, None)  # type: ignore[arg-type]
    metrics = evaluation.run(0, last=9)
    assert metrics["val-core/toy/acc/mean@1"] == metrics["val-aux/toy/part/correct"]
    assert metrics["val-core/toy/acc/mean@1"] == pytest.approx(MEANS["correct"][is_async])
    assert metrics.get("val-aux/toy/error_frac") == (pytest.approx(1 / 3) if is_async else None)
