"""A user's own loss or estimator: found by its file or module, trained like a built-in one, its errors one line."""

import sys
from pathlib import Path

import pytest
import torch

from tests.trainer.runs import lines, short_run
from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import merge
from tinyzero_trainer.algorithms.advantages import find_estimator
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.losses import find_policy_loss
from tinyzero_trainer.algorithms.user_functions import load_function
from tinyzero_trainer.config.algorithm import AlgorithmConfig
from tinyzero_trainer.config.compose import compose, make_config
from tinyzero_trainer.config.resume import resume_config
from tinyzero_trainer.controller.loop import train

OWN = '''
import torch

from tinyzero_trainer.algorithms.kinds import Loss
from tinyzero_trainer.algorithms.losses import PolicyLoss


@Loss(settings=frozenset(), staleness_objection="has no bounds")
def unclipped(logprobs, given):
    return PolicyLoss(-given.advantages * logprobs, logprobs.detach(), logprobs > 0)


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


def whole(batch):
    return torch.ones(len(batch.token_rewards()), dtype=torch.long)


def unknown(batch):
    return torch.full((len(batch.token_rewards()),), torch.nan)


@Estimator(needs={"critic"})
def of_values(batch):
    return batch.values


def later(batch):
    if len(batch.lengths) == 4:
        return batch.token_rewards()
    return {"a": 1}["b"]
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
        ("{own.parent}/broken.py:loss", "imported: ZeroDivisionError: division by zero ({own.parent}/broken.py:1)"),
    ],
)  # fmt: skip
def test_a_missing_loss_is_one_line(own: Path, name: str, message: str) -> None:
    (own.parent / "broken.py").write_text("1 / 0\n")
    with pytest.raises(SettingsError) as caught:
        find_policy_loss(name.format(own=own))
    assert message.format(own=own) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("number", "returned Tensor, expected a PolicyLoss"),
        ("summed", "its loss has the shape (), expected one value for each of 5 tokens"),
        ("raises", "failed: RuntimeError: boom ("),
        ("detached", "has no gradient with respect to log π"),
    ],
)
def test_a_function_that_is_no_loss_is_one_line(own: Path, function: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        find_policy_loss(f"{own}:{function}")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("nonesuch", "own_estimators.py has no function 'nonesuch'"),
        ("undeclared", "failed: AttributeError: 'NoneType' object has no attribute 'repeat_interleave' ("),
        ("by_completion", "returned tensor([1.0000, 0.0000, 0.5000, 0.0000]), expected a float tensor with"),
        ("number", "returned 1.0, expected a float tensor with an advantage for each of 7 tokens"),
        ("whole", "returned tensor([1, 1, 1, 1, 1, 1, 1]), expected a float tensor"),
        ("unknown", "is not finite on a few synthetic tokens: tensor([nan, nan, nan, nan, nan, nan, nan])"),
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
    for own in (declared, {"algorithm": {"advantage_estimator": f"{estimators}:of_values"}}):
        with pytest.raises(SettingsError, match=r"has no effect: .* does not say that it reads it; if it does, .*@Est"):
            compose(merge(own, {"algorithm": {"gae_lambda": 0.9}}), {}, needs_task=False)
    assert compose(merge(plain, {"algorithm": {"gae_lambda": 0.9}}), {}, needs_task=False).config.algorithm.estimator


@pytest.mark.parametrize(
    ("decorator", "message"),
    [
        ("Estimator(needs={'greedyness'})", "@Estimator got needs={'greedyness'}, expected a set such as @Estimator("),
        ("Estimator(needs=['critic'])", "needs=['critic'], expected a set such as @Estimator(needs={'critic'}); known"),
        ("Estimator(needs='critic')", "needs='critic', expected a set such as @Estimator(needs={'critic'})"),
        ("Estimator", "@Estimator got needs=<function f at 0x"),
        ("Estimator(settings={'gamma'})", "got settings={'gamma'}, expected a set such as @Estimator(settings={'algo"),
        ("Estimator(settings={'algorithm.max_accepted'})", "known: algorithm.gamma, algorithm.gae_lambda ("),
        ("Loss", "@Loss got settings=<function f at 0x"),
        ("Loss(settings={'algorithm.gamma'})", "expected a set such as @Loss(settings={'algorithm.clip_ratio_low'})"),
    ],
)
def test_a_wrong_decorator_is_one_line(decorator: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(f"from tinyzero_trainer.algorithms.kinds import *\n\n@{decorator}\ndef f(*given): ...\n")
    with pytest.raises(SettingsError, match=r"wrong\.py:\d\)$") as caught:
        load_function("algorithm.advantage_estimator", f"{file}:f")
    assert message in str(caught.value)


def test_a_loss_says_what_it_reads_as_an_estimator_does(own: Path) -> None:
    declared = {"algorithm": {"policy_loss": f"{own}:unclipped"}, "optimizer": {"update_epochs": 2}}
    loss = compose(declared, {}, needs_task=False).config.algorithm.loss
    assert (loss.settings, loss.staleness_objection) == (frozenset(), "has no bounds")
    with pytest.raises(
        SettingsError, match=r"unclipped' does not say that it reads it; if it does, .*@Loss\(settings="
    ):
        compose(merge(declared, {"algorithm": {"clip_ratio_low": 0.1}}), {}, needs_task=False)
    with pytest.raises(
        SettingsError, match=r"which algorithm.policy_loss='.*unclipped' does not weigh: it has no bound"
    ):
        compose(merge(declared, {"rollout": {"max_async_level": 1, "return_logprobs": "always"}}), {}, needs_task=False)


def test_an_error_later_in_a_run_names_the_function_and_the_line(estimators: Path) -> None:
    batch = TrainingBatch(torch.ones(2), torch.tensor([1, 1]), group_size=2)
    with pytest.raises(SettingsError, match=r":later failed: KeyError: 'b' \(.*own_estimators\.py:\d+\)$"):
        find_estimator(f"{estimators}:later")(batch)


def test_a_file_is_found_from_another_folder(own: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("./own_losses.py:clipped", "own_losses.py:clipped", f"{own}:clipped"):
        assert AlgorithmConfig(policy_loss=name).policy_loss == f"{own}:clipped"
    assert AlgorithmConfig(policy_loss="own_losses:clipped").policy_loss == "own_losses:clipped"


FAILS = """
from tinyzero_trainer.utils import jagged

calls = []


def of_rewards(batch):
    calls.append(len(batch.lengths))
    if calls.count(16) == 2:
        {}["no such key"]
    return jagged.repeat_to_tokens(batch.rewards, batch.lengths)
"""


@pytest.mark.slow
def test_an_estimator_that_fails_in_a_step_costs_no_step_and_may_be_mended(
    warm_model: Path, toy_task: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "fails.py"
    file.write_text(FAILS)
    run = short_run(warm_model, tmp_path / "run", run__task=toy_task, run__steps=2, task__limit=5,
                    checkpoint__every=5, algorithm__advantage_estimator="./fails.py:of_rewards")  # fmt: skip
    failed = r"fails\.py:of_rewards failed: KeyError: 'no such key' \(.*fails\.py:10\); step 1 is saved; resume with: "
    with pytest.raises(SettingsError, match=failed):
        train(run)
    file.write_text(FAILS.replace('{}["no such key"]', "pass"))
    for module in [name for name in sys.modules if name.startswith("tinyzero_own_fails")]:
        monkeypatch.delitem(sys.modules, module)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    capsys.readouterr()
    train(resume_config(tmp_path / "run", {}), resume=True)
    assert [row["step"] for row in lines(tmp_path / "run")] == [0, 1, 2]
    assert f"the file of {file}:of_rewards has changed since step 1 was saved" in capsys.readouterr().err


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
