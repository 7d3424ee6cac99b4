"""An evaluation takes what makes accuracies comparable from the run of its model, and refuses what has no effect."""

from pathlib import Path

import pytest
import tomli_w

from tinyzero_sdk.errors import SettingsError, TinyZeroError
from tinyzero_sdk.evaluation.openai_endpoint import EndpointOptions, plan_endpoint
from tinyzero_sdk.evaluation.protocol import EvaluationRequest
from tinyzero_sdk.settings import describe, to_mapping
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.config.tasks import TaskSpec
from tinyzero_trainer.controller.eval_config import EVALUATION_KEYS, LocalModels, evaluation_config

pytestmark = pytest.mark.usefixtures("built_in_preset")


@pytest.mark.parametrize("model", [".", "checkpoints/step_10"])
def test_a_runs_model_is_evaluated_on_the_runs_own_problems(saved_run, model):
    config = evaluation_config({"model": {"path": str(saved_run / model)}, "eval": {"num_problems": 64}})
    assert config.model.path == str(saved_run / "checkpoints" / "step_10")
    assert config.task_specs == (TaskSpec("countdown", "countdown", 1.0, {"numbers": [3]}),)
    assert config.data.prompt_template == "compact"
    assert config.eval.num_problems == 64


def test_a_run_without_a_checkpoint_cannot_be_evaluated(saved_run):
    (saved_run / "checkpoints" / "step_10").rename(saved_run / "step_10")
    with pytest.raises(TinyZeroError, match="has no checkpoint yet"):
        evaluation_config({"model": {"path": str(saved_run)}})


def test_a_setting_without_effect_or_of_a_wrong_type_is_refused():
    with pytest.raises(SettingsError, match=r"optimizer\.learning_rate has no effect on an evaluation"):
        evaluation_config({"run": {"task": "countdown"}, "optimizer": {"learning_rate": 1.0}})
    with pytest.raises(SettingsError, match=r": got 3[;,] expected the name"):
        evaluation_config({"run": {"task": 3}})


def test_every_evaluation_key_exists():
    assert set(EVALUATION_KEYS) <= {field.key for field in describe(TrainConfig)}


def test_the_wrappers_of_the_run_are_left_out(toy_task: str, tmp_path: Path) -> None:
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
