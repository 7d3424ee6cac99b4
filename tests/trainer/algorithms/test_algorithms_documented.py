"""docs/training/algorithms.md has a row for every choice; its custom loss and estimator do as it says."""

import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch

from tests.trainer.samples import build_policy, ragged_samples
from tinyzero_sdk.rewards import wrappers
from tinyzero_trainer.algorithms.advantages import find_estimator
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.kinds import ESTIMATORS, POLICY_LOSSES
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.config import AlgorithmConfig, RolloutConfig, TrainConfig
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.training.micro_batches import completion_lengths
from tinyzero_trainer.utils import jagged

PAGE = (Path(__file__).parents[3] / "docs/training/algorithms.md").read_text(encoding="utf-8")
HINTS = get_type_hints(AlgorithmConfig)


def rows(heading: str) -> set[str]:
    """The names in code in the first cells of a section's tables."""
    [section] = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return {name.partition("(")[0] for cell in cells for name in re.findall(r"`(.*?)`", cell)}


@pytest.mark.parametrize(
    ("heading", "names"),
    [
        ("Advantages", set(ESTIMATORS)),
        ("Policy losses", set(POLICY_LOSSES)),
        ("Aggregation", set(get_args(HINTS["loss_aggregation"]))),
        ("KL", set(get_args(HINTS["kl_estimator"]))),
        ("Shaping", set(wrappers.BUILT_IN) - {"trace"}),
    ],
)
def test_every_choice_has_a_row_and_every_row_is_one(heading: str, names: set[str]) -> None:
    assert rows(heading) == names


def test_there_is_a_place_for_the_recipes() -> None:
    assert PAGE.index("<!-- recipes: begin -->\n") < PAGE.index("<!-- recipes: end -->")


def test_the_custom_loss_trains(toy_model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [code] = re.findall(r"^```python\n(# soft_gate.py\n.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    Path("soft_gate.py").write_text(code, encoding="utf-8")
    [setting] = re.findall(r"algorithm\.policy_loss=(\S+)$", PAGE, re.MULTILINE)
    samples = ragged_samples(toy_model)
    lengths = completion_lengths(samples)
    policy = build_policy(toy_model, policy_loss=setting)
    old = policy.logprobs(samples, 1.0)
    advantages = jagged.repeat_to_tokens(torch.tensor([1.0, -1.0] * 6), lengths)
    policy.update(TrainingBatch.of(samples, 4, old_logprobs=old, advantages=advantages), StepSettings(1e-3, 1.0, 0.0))
    gains = policy.logprobs(samples, 1.0) - old
    assert (gains * advantages).sum() > 1.0


def test_the_custom_estimator_takes_the_std_of_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [code] = re.findall(r"^```python\n(# lite_ppo.py\n.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    Path("lite_ppo.py").write_text(code, encoding="utf-8")
    [setting] = re.findall(r"algorithm\.advantage_estimator=(\S+:\S+)$", PAGE, re.MULTILINE)
    batch = TrainingBatch(torch.tensor([1.0, 0.0, 1.0, 1.0]), torch.tensor([1, 2, 1, 1]), group_size=2)
    assert find_estimator(setting)(batch).tolist() == pytest.approx([1.0, -1.0, -1.0, 0.0, 0.0], abs=1e-5)
    with pytest.raises(ValueError, match=r"rollout\.group_size=1 leaves .*lite_ppo' nothing to compare"):
        TrainConfig(algorithm=AlgorithmConfig(advantage_estimator=setting), rollout=RolloutConfig(group_size=1))
