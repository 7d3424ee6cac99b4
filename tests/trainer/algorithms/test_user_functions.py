"""A user's own loss or estimator: found by its file or module, trained like a built-in one, its errors one line."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.trainer.configurations import call
from tests.trainer.runs import lines, short_run
from tests.trainer.samples import build_policy, ragged_samples, with_advantages
from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import merge
from tinyzero_trainer.algorithms.advantages import find_estimator
from tinyzero_trainer.algorithms.kinds import Estimator
from tinyzero_trainer.algorithms.losses import find_policy_loss
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.algorithms.user_functions import load_function
from tinyzero_trainer.config import OptimizerConfig
from tinyzero_trainer.config.compose import compose, make_config
from tinyzero_trainer.controller.loop import train
from tinyzero_trainer.executors.local import build as local

OWN = '''
import torch

from tinyzero_trainer.algorithms.losses import PolicyLoss


def clipped(logprobs, given):
    """PPO's surrogate, written anew."""
    ratio = (logprobs - given.old_logprobs).exp()
    bounded = ratio.clamp(1 - given.clip_ratio_low, 1 + given.clip_ratio_high)
    plain, cut = -given.advantages * ratio, -given.advantages * bounded
    return PolicyLoss(torch.maximum(plain, cut), ratio.detach(), (cut > plain).detach())


def number(logprobs, given):
    return logprobs.sum()


def summed(logprobs, given):
    return PolicyLoss(logprobs.sum(), logprobs.detach(), logprobs > 0)


def raises(logprobs, given):
    raise RuntimeError("boom")


def detached(logprobs, given):
    return PolicyLoss(-logprobs.detach(), logprobs.detach(), logprobs > 0)


not_a_function = 3
'''
OWN_ESTIMATORS = """
import torch

from tinyzero_trainer.algorithms.kinds import Estimator
from tinyzero_trainer.utils import jagged


@Estimator(needs={"greedy"}, settings={"algorithm.gamma"})
def above_greedy(batch):
    baseline = batch.greedy_rewards.repeat_interleave(batch.group_size)
    return jagged.repeat_to_tokens((batch.rewards - baseline) * batch.gamma, batch.lengths)


def undeclared(batch):
    return jagged.repeat_to_tokens(batch.rewards - batch.greedy_rewards.repeat_interleave(2), batch.lengths)


def plain(batch):
    return jagged.repeat_to_tokens(batch.rewards * batch.gae_lambda, batch.lengths)


def by_completion(batch):
    return batch.rewards


def number(batch):
    return 1.0
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A user's file of losses."""
    (tmp_path / "own_losses.py").write_text(OWN)
    return tmp_path / "own_losses.py"


@pytest.fixture
def estimators(tmp_path: Path) -> Path:
    """A user's file of estimators."""
    (tmp_path / "own_estimators.py").write_text(OWN_ESTIMATORS)
    return tmp_path / "own_estimators.py"


def weights_after_update(language_model, policy_loss: str) -> torch.Tensor:
    policy = build_policy(
        replace(language_model, model=copy.deepcopy(language_model.model)),
        optimizer=OptimizerConfig(num_mini_batches=2, update_epochs=2),
        policy_loss=policy_loss,
    )
    experience = with_advantages(ragged_samples(language_model), [1.0, -1.0, 0.5, -0.5] * 3)
    policy.update(experience, StepSettings(1e-2, 1.0, 0.0))
    return torch.cat([parameter.flatten() for parameter in policy.language_model.model.parameters()])


@pytest.mark.slow
def test_a_custom_loss_trains_as_a_built_in_one(toy_model, own: Path) -> None:
    built_in, from_file = (weights_after_update(toy_model, name) for name in ("ppo", f"{own}:clipped"))
    assert torch.equal(built_in, from_file)
    assert not torch.equal(built_in, weights_after_update(toy_model, "reinforce"))


def test_it_may_be_in_a_module_or_in_a_task_file(own: Path, toy_task: str, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(own.parent)
    assert load_function("algorithm.policy_loss", "own_losses:clipped").__doc__ == "PPO's surrogate, written anew."
    task = tmp_path / "task_with_loss.py"
    task.write_text(Path(toy_task).read_text() + "\n\ndef mine(logprobs, given): ...\n")
    assert load_function("algorithm.policy_loss", f"{task}:mine").__name__ == "mine"
    config = make_config(
        {"run": {"task": str(task)}, "model": {"path": "gpt2"}, "algorithm": {"policy_loss": f"{task}:mine"}}
    )
    assert config.algorithm.policy_loss == f"{task}:mine"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{own}:nonesuch", "own_losses.py has no function 'nonesuch'"),
        ("{own}:not_a_function", "own_losses.py has no function 'not_a_function'"),
        ("./nowhere.py:loss", "there is no file or module ./nowhere.py"),
        ("no_such_module:loss", "there is no file or module no_such_module; a file is named by its path"),
        ("{own.parent}/broken.py:loss", "cannot be imported: ZeroDivisionError('division by zero')"),
    ],
)  # fmt: skip
def test_a_missing_loss_is_one_line(own: Path, name: str, message: str) -> None:
    (own.parent / "broken.py").write_text("1 / 0\n")
    with pytest.raises(SettingsError) as caught:
        find_policy_loss(name.format(own=own))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("number", "returned Tensor, expected a PolicyLoss"),
        ("summed", "its loss has the shape (), expected one value for each of 5 tokens"),
        ("raises", "failed on a few synthetic tokens: RuntimeError('boom')"),
        ("detached", "has no gradient with respect to log π"),
    ],
)
def test_a_function_that_is_no_loss_is_one_line(own: Path, function: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        find_policy_loss(f"{own}:{function}")
    assert message in str(caught.value)


def test_the_command_refuses_it_before_a_model_is_loaded(
    capsys, own: Path, toy_task: str, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(local, "load_model", lambda *args: pytest.fail("the model was loaded"))
    words = ("train", "--task", toy_task, "--output", str(tmp_path / "run"), "--model", "tiny", "run.device=cpu")
    code, _, error = call(capsys, *words, f"algorithm.policy_loss={own}:nonesuch")
    assert code == 2
    assert error.splitlines()[-1].startswith("error: algorithm.policy_loss")
    assert "no function" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("nonesuch", "own_estimators.py has no function 'nonesuch'"),
        ("undeclared", "failed on a few synthetic tokens: AttributeError(\"'NoneType' object has no"),
        ("by_completion", "returned tensor([1.0000, 0.0000, 0.5000, 0.0000]), expected a tensor with one"),
        ("number", "returned 1.0, expected a tensor with one advantage for each of 7 tokens"),
    ],
)
def test_a_function_that_is_no_estimator_is_one_line(estimators: Path, function: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        find_estimator(f"{estimators}:{function}")
    assert str(caught.value).startswith(f"algorithm.advantage_estimator={estimators}:{function}")
    assert message in str(caught.value)


def test_what_an_estimator_says_it_needs_holds_for_its_settings(estimators: Path) -> None:
    declared, plain = (
        {"algorithm": {"advantage_estimator": f"{estimators}:{name}"}} for name in ("above_greedy", "plain")
    )
    algorithm = compose(merge(declared, {"algorithm": {"gamma": 0.9}}), {}, needs_task=False).config.algorithm
    assert algorithm.needs("greedy")
    assert not algorithm.needs("critic")
    with pytest.raises(SettingsError, match=r"algorithm\.gae_lambda=0\.9 has no effect: algorithm.adv"):
        compose(merge(declared, {"algorithm": {"gae_lambda": 0.9}}), {}, needs_task=False)
    assert compose(merge(plain, {"algorithm": {"gae_lambda": 0.9}}), {}, needs_task=False).config.algorithm.estimator
    with pytest.raises(ValueError, match=r"an estimator cannot need \['greedyness'\]; known: critic, teacher, greedy"):
        Estimator(needs={"greedyness"})  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_custom_estimator_trains_as_a_built_in_one(
    estimators: Path, warm_model: Path, toy_task: str, tmp_path: Path
) -> None:
    """ReMax without discount is the reward above the greedy completion's."""
    runs = {}
    for name in ("remax", f"{estimators}:above_greedy"):
        directory = tmp_path / name[:5].replace("/", "_")
        settings = {"run__task": toy_task, "run__steps": 1, "task__limit": 5}
        train(short_run(warm_model, directory, **settings, algorithm__advantage_estimator=name))
        runs[name] = {key: value for key, value in lines(directory)[1].items() if key.startswith(("actor/", "critic/"))}
    built_in, own = runs.values()
    assert own == built_in
