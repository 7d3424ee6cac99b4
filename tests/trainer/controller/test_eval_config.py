"""An evaluation takes what makes its figures comparable from the run of its model, and refuses what has no effect."""

import pytest

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import describe
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.tasks import TaskSpec
from tinyzero_trainer.controller.eval_config import EVALUATION_KEYS, evaluation_config

pytestmark = pytest.mark.usefixtures("built_in_preset")


@pytest.mark.parametrize("model", [".", "checkpoints/step_10"])
def test_a_runs_model_is_evaluated_on_the_runs_own_problems(saved_run, model):
    config = evaluation_config({"model": {"path": str(saved_run / model)}, "eval": {"num_problems": 64}})
    assert config.model.path == str(saved_run / "checkpoints" / "step_10")
    assert (config.task_specs, config.data.prompt_template) == (
        (TaskSpec("countdown", "countdown", 1.0, {"numbers": [3]}),),
        "compact",
    )
    assert config.eval.num_problems == 64


def test_a_runs_model_can_be_evaluated_on_another_task(saved_run):
    config = evaluation_config({"model": {"path": str(saved_run)}, "run": {"task": "multiply"}})
    assert config.task_specs == (TaskSpec("multiply", "multiply", 1.0, {}),)


def test_a_run_without_a_checkpoint_cannot_be_evaluated(saved_run):
    (saved_run / "checkpoints" / "step_10").rename(saved_run / "step_10")
    with pytest.raises(SettingsError, match="has no checkpoint yet"):
        evaluation_config({"model": {"path": str(saved_run)}})


def test_a_setting_without_effect_on_an_evaluation_is_refused():
    with pytest.raises(SettingsError, match=r"optimizer\.learning_rate has no effect on an evaluation"):
        evaluation_config({"run": {"task": "countdown"}, "optimizer": {"learning_rate": 1.0}})


@pytest.mark.parametrize("values", [{"model": {"path": 3}}, {"run": {"task": 3}}])
def test_values_of_a_wrong_type_are_one_line(values: dict):
    with pytest.raises(SettingsError, match=r": got 3[;,] (input should be a valid string|expected the name)"):
        evaluation_config({"run": {"task": "countdown"}, **values})


def test_what_bears_on_an_evaluation_exists():
    assert set(EVALUATION_KEYS) <= {field.key for field in describe(TrainConfig)}
