"""Shaping changes what is trained on; what an evaluation reports stays as the task gave it."""

from pathlib import Path

import pytest
import tomli_w

from tinyzero_sdk.evaluation.openai_endpoint import EndpointOptions, plan_endpoint
from tinyzero_sdk.evaluation.protocol import EvaluationRequest
from tinyzero_sdk.settings import to_mapping
from tinyzero_trainer.config import RewardConfig, RolloutConfig, RunConfig, TrainConfig
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.controller.heldout_eval import evaluate
from tinyzero_trainer.controller.local_sampler import LocalModels
from tinyzero_trainer.executors.build import build_workers
from tinyzero_trainer.monitoring.progress import Progress
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.utils.signals import StopFlag


@pytest.mark.parametrize(
    ("given", "completed"),
    [
        ("overlong", "overlong(limit=64)"),
        ("overlong(buffer=9)", "overlong(limit=64, buffer=9)"),
        ("overlong(limit=50)", "overlong(limit=50)"),
        ("cosine", "cosine(limit=64)"),
        ("mask_truncated", "mask_truncated"),
    ],
)
def test_a_limit_that_is_not_given_is_the_runs(given: str, completed: str) -> None:
    config = TrainConfig(
        run=RunConfig(), reward=RewardConfig(wrappers=(given,)), rollout=RolloutConfig(max_completion_tokens=64)
    )
    assert config.wrappers_with_limit() == (completed,)
    assert config.reward.wrappers == (given,)  # what the user said is what config.toml keeps


def roles_and_evaluation(toy_task: str, model: Path, wrappers: list[str]):
    config = make_config(
        {
            "run": {"task": toy_task, "device": "cpu"},
            "reward": {"wrappers": wrappers},
            "model": {"path": str(model)},
            "task": {"limit": 5},
            "data": {"prompt_template": "base", "test_fraction": 0.4},
            "rollout": {"max_completion_tokens": 8},
        }
    )
    with Progress() as display, build_workers(config, display=display, training=True) as roles:
        (role,) = roles.tasks.values()
        params = SamplingParams(8, 1.0)
        result, samples = evaluate(roles, role.prompts.held_out(12), params, samples=2, seed=1, stop=StopFlag())
        return role.task.wrappers, result, samples


@pytest.mark.slow
def test_an_evaluation_in_training_reports_what_the_task_gave(toy_task: str, toy_model_path: Path) -> None:
    none, plain, plainly = roles_and_evaluation(toy_task, toy_model_path, [])
    wrappers, shaped, rewarded = roles_and_evaluation(toy_task, toy_model_path, ["cosine", "mask_truncated"])
    assert (none, wrappers) == ((), ("cosine(limit=8)", "mask_truncated"))
    assert [sample.text for sample in plainly] == [sample.text for sample in rewarded]
    assert [sample.score.value for sample in plainly] != [sample.score.value for sample in rewarded]
    assert plain.mean_score == shaped.mean_score
    assert (plain.accuracy, plain.by_reason) == (shaped.accuracy, shaped.by_reason)


def test_eval_shapes_nothing_whatever_the_run_was_shaped_by(toy_task: str, tmp_path: Path) -> None:
    config = make_config(
        {
            "run": {"task": toy_task},
            "reward": {"wrappers": ["overlong"]},
            "model": {"path": "gpt2"},
            "rollout": {"max_completion_tokens": 9},
        }
    )
    (tmp_path / "checkpoints" / "step_1").mkdir(parents=True)
    (tmp_path / "config.toml").write_text(tomli_w.dumps(to_mapping(config)))
    plan = LocalModels().plan(EvaluationRequest(model=str(tmp_path / "checkpoints" / "step_1")))
    assert (plan.task.wrappers, plan.max_tokens) == ((), 9)
    at_endpoint = plan_endpoint(EvaluationRequest(task=toy_task, model="x"), EndpointOptions("http://localhost:1"))
    assert at_endpoint.task.wrappers == ()
