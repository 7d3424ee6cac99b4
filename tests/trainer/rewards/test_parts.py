"""Rewards of several parts in training: the columns of a batch, GDPO, and the metrics."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.trainer.samples import make_sample
from tinyzero_sdk import Completion, Score, load_task
from tinyzero_sdk.records import TASK_PART
from tinyzero_trainer.algorithms.advantages import gdpo, grpo
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.config import AlgorithmConfig
from tinyzero_trainer.rewards.score import part_columns

INFO = """
from tinyzero_sdk import RewardPart, TaskInfo

@hookimpl
def info():
    return TaskInfo(parts={"right": RewardPart(), "short": RewardPart(0.25)})

@hookimpl
def score(answer, ground_truth):
    right = answer == str(ground_truth["sum"])
    return Score.of_parts({"right": float(right), "short": 1.0 / len(answer or "x")}, correct=right)
"""


@pytest.fixture
def parts_task(toy_task: str, tmp_path: Path) -> str:
    text = Path(toy_task).read_text()
    start, end = text.index("@hookimpl\ndef score"), text.index("@hookimpl\ndef difficulty")
    (tmp_path / "parts.py").write_text(text[:start] + INFO + text[end:])
    return str(tmp_path / "parts.py")


def test_scores_are_the_sums_of_their_columns(parts_task: str, toy_task: str) -> None:
    tasks = {
        "parts": load_task(parts_task, options={"weights": {"short": 0.5}}, wrappers=["repetition(size=1)"]),
        "plain": load_task(toy_task),
        "wrapped": load_task(toy_task, wrappers=["overlong(limit=2)", "repetition(size=1)"]),
    }
    rollouts = []
    for name, task in tasks.items():
        for text in ("<answer>7</answer>", "<answer>17</answer>", "a a a", "7 7 <answer>7</answer>"):
            sample = make_sample(2, 3)
            score = task.score_completion(Completion(text, 2), {"sum": 7})
            rollouts.append(replace(sample, prompt=replace(sample.prompt, task=name), score=score))
    columns = part_columns(rollouts, tasks)
    sums = (columns["reward_parts"] * columns["part_weights"]).sum(dim=1)
    torch.testing.assert_close(sums, torch.tensor([rollout.score.value for rollout in rollouts]))
    assert len(sums.unique()) > 6
    columns = part_columns(rollouts[4:8], {"plain": tasks["plain"]})  # one part: GRPO, but for the scale
    batch = TrainingBatch.of(rollouts[4:8], 4, **columns)
    torch.testing.assert_close(gdpo(batch), grpo(batch), rtol=1e-4, atol=1e-4)


def test_what_a_wrapper_takes_off_under_no_name_is_a_part_of_its_own(toy_task: str) -> None:
    scores = [Score(0.5, True, parts={TASK_PART: 1.0}), Score(0.0, False, "wrong", parts={TASK_PART: 0.0})]
    rollouts = [replace(make_sample(1, 1), score=score) for score in scores]
    rollouts = [replace(rollout, prompt=replace(rollout.prompt, task="toy")) for rollout in rollouts]
    columns = part_columns(rollouts, {"toy": load_task(toy_task)})
    assert columns["reward_parts"].tolist() == [[1.0, -0.5], [0.0, 0.0]]
    assert columns["part_weights"].tolist() == [[1.0, 1.0]] * 2


def test_a_kl_in_the_reward_is_refused() -> None:
    with pytest.raises(ValueError, match="leave the KL in the loss"):
        AlgorithmConfig(advantage_estimator="gdpo", kl_coefficient=0.1, kl_placement="reward")
