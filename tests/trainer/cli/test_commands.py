"""What the commands hand to what imports torch, and what they say before and after."""

import dataclasses
import inspect
import json
import os
import signal
import sys
import types

import pytest

from tests.trainer.configurations import call
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.utils.signals import Interrupted

pytestmark = pytest.mark.usefixtures("built_in_preset")


@pytest.fixture
def stand_ins(monkeypatch):
    """Stand-ins for what imports torch; returns what they were called with."""
    calls = []

    @dataclasses.dataclass
    class Result:
        problems: int = 64
        samples: int = 1
        accuracy: float = 0.49
        standard_error: float = 0.0156
        mean_score: float = 0.49
        by_reason: dict = dataclasses.field(default_factory=lambda: {"wrong": 33, "ok": 31})
        mean_length: float = 57.25
        tokens_per_second: float = 12345.6
        summary: dict = dataclasses.field(default_factory=dict)
        report: None = None

    def evaluate(plan, output, observer):
        calls.append(("evaluate", plan, {"output": output}, os.environ.get("OMP_WAIT_POLICY")))
        return Result()

    def put(module, function, result):
        def stand_in(config, **options):
            calls.append((function, config, options, os.environ.get("OMP_WAIT_POLICY")))
            return result

        monkeypatch.setitem(sys.modules, f"tinyzero_trainer.{module}", types.SimpleNamespace(**{function: stand_in}))

    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    put("controller.loop", "train", None)
    monkeypatch.setattr("tinyzero_sdk.evaluation.evaluate.evaluate", evaluate)
    put("sft.train", "fine_tune", types.SimpleNamespace(summary="model: made"))
    return calls


def test_train_passes_the_configuration_on_and_says_at_once_what_it_does(capsys, stand_ins, built_in_preset, tmp_path):
    built_in_preset.update(rollout={"max_completion_tokens": 64})
    output = str(tmp_path / "run")
    code, shown, told = call(capsys, "train", "--task", "countdown", "--output", output, "run.steps=3")
    ((function, config, options, policy),) = stand_ins
    assert (code, shown, function, policy) == (0, "", "train", "PASSIVE")
    assert (options["resume"], list(options["tasks"])) == (False, ["countdown"])
    assert (list(config.tasks), config.run.output, config.run.steps) == (["countdown"], output, 3)
    assert told.splitlines() == [
        f"training the tiny model that comes with the trainer on countdown in {output}",
        "defaults of the model: rollout.max_completion_tokens=64",
        "loading PyTorch",
    ]


def test_the_configuration_is_built_once(capsys, stand_ins, tmp_path, monkeypatch):
    built, check = [], TrainConfig.__post_init__
    monkeypatch.setattr(TrainConfig, "__post_init__", lambda self: (built.append(self), check(self))[1])
    words = ["--task", "countdown", "--recipe", "dapo", "--output", str(tmp_path / "run"), "run.steps=3"]
    code, _, told = call(capsys, "train", *words)
    assert (code, len(built)) == (0, 1), told
    assert built[0] is stand_ins[0][1]


def test_train_says_what_is_of_the_recipe_and_what_suits_the_model_no_more(
    capsys, stand_ins, built_in_preset, tmp_path
):
    built_in_preset.update(
        algorithm={"kl_coefficient": 0.1, "kl_estimator": "exact"}, rollout={"max_completion_tokens": 64}
    )
    output = str(tmp_path / "run")
    code, _, told = call(capsys, "train", "--task", "countdown", "--output", output, "--recipe", "dr_grpo")
    ((_, config, _, _),) = stand_ins
    assert (code, config.run.recipe, config.algorithm.kl_coefficient) == (0, "dr_grpo", 0.0)
    assert told.splitlines()[1:] == [
        "recipe dr_grpo: algorithm.advantage_estimator=dr_grpo algorithm.loss_aggregation=seq-mean-token-sum-norm "
        "algorithm.kl_coefficient=0.0",
        "defaults of the model: rollout.max_completion_tokens=64",
        "loading PyTorch",
    ]


def test_without_output_a_directory_is_named_after_task_and_time(capsys, stand_ins, toy_task):
    call(capsys, "train", "--task", toy_task, "--model", "gpt2")
    ((_, config, _, _),) = stand_ins
    assert config.run.output.startswith("runs/toy_task-20")
    assert config.model.path == "gpt2"


def test_train_resumes_by_the_saved_configuration(capsys, stand_ins, saved_run):
    code, _, told = call(capsys, "train", "--output", str(saved_run), "--resume", "run.steps=60")
    ((_, config, options, _),) = stand_ins
    assert (code, options["resume"], config.run.steps, config.tasks["countdown"]["options"]) == (
        0,
        True,
        60,
        {"numbers": [3]},
    )
    assert told.startswith("resuming the training of")


def test_a_number_of_gpus_or_an_address_means_ray(capsys, stand_ins, tmp_path):
    for number, flags in enumerate((["--gpus", "0"], ["--address", "auto"], [])):
        code, _, told = call(capsys, "train", "--task", "countdown", "--output", str(tmp_path / str(number)), *flags)
        assert code == 0, told
    found = [(config.run.executor, config.ray.gpus, config.ray.address) for _, config, _, _ in stand_ins]
    assert found == [("ray", 0, None), ("ray", 0, "auto"), ("local", 0, None)]


def test_a_vllm_that_is_missing_is_told_before_anything_is_loaded(capsys, stand_ins, tmp_path):
    words = ["--task", "countdown", "--output", str(tmp_path / "run"), "rollout.engine=vllm"]
    code, _, told = call(capsys, "train", *words)
    assert (code, stand_ins) == (2, [])
    assert "rollout.engine=vllm needs vLLM, which is not installed; pip install 'tinyzero-trainer[vllm]'" in told
    assert not (tmp_path / "run").exists()
    assert call(capsys, "train", *words, "--address", "auto")[0] == 0  # there it is the workers' matter


def test_a_run_with_checkpoints_is_refused_before_anything_is_loaded(capsys, stand_ins, saved_run):
    code, _, told = call(capsys, "train", "--task", "countdown", "--output", str(saved_run))
    assert (code, stand_ins) == (2, [])
    assert told.startswith(
        f"error: {saved_run} holds a run with checkpoints; resume with: tinyzero train --output {saved_run} --resume"
    )


def test_resume_without_output_is_one_line(capsys, stand_ins):
    code, _, told = call(capsys, "train", "--resume")
    assert (code, told) == (2, "error: --resume needs --output, the directory of the run to resume\n")
    assert stand_ins == []


def test_a_mistake_stops_before_anything_is_loaded(capsys, stand_ins):
    code, _, told = call(capsys, "train", "--task", "countdown", "--model", "gpt2", "model.path=gpt2")
    assert (code, stand_ins) == (2, [])
    assert told == "error: model.path is given twice, as a flag and as model.path=gpt2; give it once\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_exits_by_its_signal_and_says_how_to_go_on(capsys, stand_ins, monkeypatch, number, code):
    def train(config, *, resume, tasks):
        raise Interrupted(number, 40, config.run.output)

    monkeypatch.setattr(sys.modules["tinyzero_trainer.controller.loop"], "train", train)
    left, _, told = call(capsys, "train", "--task", "countdown", "--output", "runs/x")
    assert left == code
    assert told.splitlines()[-1] == (
        f"stopped by {number.name} after step 40, which is saved; resume with: tinyzero train --output runs/x --resume"
    )


def test_eval_prints_what_it_found(capsys, stand_ins):
    code, shown, _ = call(capsys, "eval", "--task", "countdown", "--size", "64", "--seed", "3", "--temperature", "0")
    ((_, plan, options, policy),) = stand_ins
    assert (code, plan.size, plan.seed, policy) == (0, 64, 3, "PASSIVE")
    assert (plan.samples, plan.temperature, options["output"]) == (1, 0.0, None)
    assert shown.splitlines() == [
        "task        countdown",
        "model       the tiny model that comes with the trainer",
        "problems    64 held out, 1 sample each, greedy",
        "accuracy    49.0 % ± 1.6 (one standard error)",
        "mean score  0.490",
        "mean length 57.2 tokens",
        "reasons     ok 31 · wrong 33",
        "speed       12,346 tokens/s",
    ]


def test_eval_prints_json_and_nothing_else_on_stdout(capsys, stand_ins, tmp_path):
    output = tmp_path / "outputs.jsonl"
    code, shown, _ = call(capsys, "eval", "--task", "countdown", "--json", "--output", str(output))
    assert code == 0
    assert json.loads(shown)["by_reason"] == {"ok": 31, "wrong": 33}
    assert stand_ins[0][2]["output"] == output


def test_warmstart_passes_its_own_configuration_on(capsys, stand_ins, tmp_path):
    output = str(tmp_path / "model")
    code, shown, _ = call(
        capsys, "warmstart", "--task", "countdown", "--output", output, "training.steps=5", "settings.run.steps=9"
    )
    ((_, config, _, policy),) = stand_ins
    assert (code, shown, policy) == (0, "model: made\n", "PASSIVE")
    assert (list(config.tasks), config.run.output, config.training.steps) == (["countdown"], output, 5)
    assert config.settings == {"run": {"steps": 9}}


def test_warmstart_needs_an_output(capsys, stand_ins):
    code, _, told = call(capsys, "warmstart", "--task", "countdown")
    assert (code, told) == (2, "error: a warm start needs --output\n")


def test_the_stand_ins_take_what_the_real_ones_take():
    from tinyzero_sdk.evaluation.evaluate import evaluate
    from tinyzero_trainer.controller.loop import train
    from tinyzero_trainer.sft.train import fine_tune

    assert list(inspect.signature(train).parameters) == ["config", "resume", "tasks"]
    assert list(inspect.signature(evaluate).parameters) == ["plan", "output", "observer"]
    assert list(inspect.signature(fine_tune).parameters) == ["config", "progress", "stop"]
