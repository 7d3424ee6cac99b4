"""What `train`, `warmstart` and `eval` pass on to the modules that import torch, and what they print."""

import json
import os
import signal
import sys
import types

import pytest
import tomli_w

from tests.trainer.configurations import call
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.settings import parse_overrides, to_mapping
from tinyzero_trainer.cli import start
from tinyzero_trainer.config.resume import resume_command
from tinyzero_trainer.config.sft import warm_start
from tinyzero_trainer.hardware import nvml
from tinyzero_trainer.utils.signals import Interrupted
from tinyzero_trainer.utils.startup import import_errors_in_one_line

pytestmark = pytest.mark.usefixtures("built_in_preset")


def test_ctrl_c_while_torch_is_imported_is_told(monkeypatch, capsys, tmp_path):
    """Also where the import makes another error of it, as transformers does."""

    def interrupted(module):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ModuleNotFoundError("Could not import module 'PreTrainedModel'") from None

    monkeypatch.setattr(start, "import_module", interrupted)
    words = ("--task", "countdown", "--model", "tiny", "run.device=cpu", "--output", str(tmp_path))
    code, _, error = call(capsys, "train", *words)
    assert (code, error.splitlines()[-1]) == (130, "stopped by SIGINT while the run was being loaded")


@pytest.mark.parametrize("error", [ImportError("cannot import name 'dlopen'"), OSError("libcudart.so.12: not found")])
@pytest.mark.fault(
    "packages",
    "An installed package is broken",
    made="the import of torch raises ImportError, or OSError for a library that is missing",
    seen="error: cannot import torch (…); `tinyzero doctor` looks at the installation",
    kept="nothing has begun",
    code=2,
)
def test_a_broken_package_is_one_line(error, monkeypatch, capsys, tmp_path, fault_row):
    of_torch = {"__name__": "torch._C", "error": error}
    exec("def import_module(name): raise error", of_torch)
    monkeypatch.setattr(start, "import_module", of_torch["import_module"])
    words = ("--task", "countdown", "--model", "tiny", "run.device=cpu", "--output", str(tmp_path))
    code, _, printed = call(capsys, "train", *words)
    expected = f"error: cannot import torch ({error}); `tinyzero doctor` looks at the installation"
    assert (code, printed.splitlines()[-1]) == (2, expected)
    fault_row.check(printed, code)


def test_a_library_that_finds_no_memory_is_not_called_broken():
    of_pyarrow = {"__name__": "pyarrow", "error": ImportError("libarrow.so: failed to map segment")}
    exec("def load(): raise error", of_pyarrow)
    with pytest.raises(TinyZeroError, match="memory is short, or `ulimit -v` limits it"), import_errors_in_one_line():
        of_pyarrow["load"]()


@pytest.fixture
def calls(monkeypatch):
    """Fakes of what imports torch; returns what they were called with."""
    recorded = []

    def fake(module, function, result):
        def called(config, **options):
            recorded.append((config, options, os.environ.get("OMP_WAIT_POLICY")))
            return result

        monkeypatch.setitem(sys.modules, f"tinyzero_trainer.{module}", types.SimpleNamespace(**{function: called}))

    def evaluate(plan, output, observer, pass_at):
        recorded.append((plan, {"output": output}, os.environ.get("OMP_WAIT_POLICY")))
        raise TinyZeroError("enough")

    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    for name in ("import_ray", "start"):
        monkeypatch.setattr(f"tinyzero_trainer.executors.ray.cluster.{name}", lambda *_: None)
    monkeypatch.setattr("tinyzero_trainer.models.hub._require_on_hub", lambda model: None)  # it has every name
    fake("controller.loop", "train", None)
    fake("sft.train", "fine_tune", None)
    monkeypatch.setattr("tinyzero_sdk.evaluation.evaluate.evaluate", evaluate)
    return recorded


# ---- train -----------------------------------------------------------------------------------------------------------


def test_train_passes_one_configuration_on(capsys, calls, built_in_preset, tmp_path):
    built_in_preset.update(rollout={"max_completion_tokens": 64})
    output = str(tmp_path / "run")
    code, out, error = call(capsys, "train", "--task", "countdown", "--output", output, "run.steps=3")
    ((config, options, policy),) = calls
    assert (code, out, policy) == (0, "", "PASSIVE")
    assert (options["resume"], list(options["tasks"])) == (False, ["countdown"])
    assert (config.task_specs[0].task, config.run.output, config.run.steps) == ("countdown", output, 3)
    assert config.model.path == "tiny"  # config.toml names it
    assert error.splitlines() == [
        f"training the tiny model that comes with the trainer on countdown in {output}",
        "defaults of the model: rollout.max_completion_tokens=64",
        "loading PyTorch",
    ]


def test_a_run_on_files_is_repeated_with_the_template_that_its_model_had(capsys, calls, built_in_preset, tmp_path):
    built_in_preset.update(data={"prompt_template": "compact"})
    rows = [{"prompt": f"{n}?", "ground_truth": {"target": n, "numbers": [n]}} for n in range(1, 41)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["train", "--task", "countdown", "--model", "tiny", f"data.path={tmp_path / 'rows.jsonl'}"]
    code, _, error = call(capsys, *words, f"run.output={tmp_path / 'first'}")
    assert code == 0, error
    (tmp_path / "first/checkpoints").mkdir(parents=True)
    (tmp_path / "first/config.toml").write_text(tomli_w.dumps(to_mapping(calls[0][0])))
    words = ["train", "--config", str(tmp_path / "first/config.toml"), f"run.output={tmp_path / 'second'}"]
    code, _, error = call(capsys, *words)
    assert code == 0, error
    assert calls[1][0].data == calls[0][0].data
    code, _, error = call(capsys, *words, "data.prompt_template=base")
    assert (code, "data.prompt_template='base' has no effect" in error) == (2, True)


def test_train_resumes_with_the_saved_configuration(capsys, calls, saved_run):
    code, _, error = call(capsys, "train", "--output", str(saved_run), "--resume", "run.steps=60")
    ((config, options, _),) = calls
    assert (code, options["resume"], config.run.steps) == (0, True, 60)
    assert [spec.options for spec in config.task_specs] == [{"numbers": [3]}]
    assert error.startswith("resuming the training of")


def test_a_number_of_gpus_or_an_address_means_ray(capsys, calls, tmp_path):
    for number, flags in enumerate((["--gpus", "0"], ["--address", "auto"], [])):
        code, _, error = call(capsys, "train", "--task", "countdown", "--output", str(tmp_path / str(number)), *flags)
        assert code == 0, error
    found = [(config.run.executor, config.ray.gpus, config.ray.address) for config, _, _ in calls]
    assert found == [("ray", 0, None), ("ray", 0, "auto"), ("local", 0, None)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--resume", "--resume needs --output, the directory of the run to resume"),
        (
            "--task countdown --model gpt2 model.path=gpt2",
            "model.path is given twice, as a flag and as model.path=gpt2",
        ),
        ("--task countdown --output {run}", "{run} holds a run with checkpoints; resume with: tinyzero train --output"),
        ("--task countdown algorithm.policy_loss=nowhere:loss", "algorithm.policy_loss"),
        ("--task countdown rollout.engine=vllm", "rollout.engine=vllm needs vLLM, which is not installed; pip install"),
    ],
)
def test_mistakes_are_reported_before_anything_is_loaded(capsys, calls, saved_run, words, message):
    code, _, error = call(capsys, "train", *words.format(run=saved_run).split())
    assert (code, calls) == (2, [])
    assert error.startswith(f"error: {message.format(run=saved_run)}")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_exits_by_its_signal(capsys, calls, monkeypatch, number, code):
    def train(config, *, resume, tasks, progress):
        raise Interrupted(number, 40, resume_command(config))

    monkeypatch.setattr(sys.modules["tinyzero_trainer.controller.loop"], "train", train)
    exit_code, _, error = call(capsys, "train", "--task", "countdown", "--output", "runs/my run")
    assert (exit_code, f"stopped by {number.name} after step 40" in error.splitlines()[-1]) == (code, True)


def test_a_run_stands_for_its_newest_checkpoint_wherever_a_model_is_named(capsys, calls, saved_run, tmp_path):
    run, newest = str(saved_run), str(saved_run / "checkpoints" / "step_10")
    words = ["--task", "countdown", "--output", str(tmp_path / "other"), "--model", run]
    assert call(capsys, "train", *words, "--recipe", "distill", f"model.teacher={run}")[0] == 0
    assert call(capsys, "sft", *words)[0] == 0
    (trained, _, _), (tuned, _, _) = calls
    assert (trained.model.path, trained.model.teacher, tuned.model.path) == (newest, newest, newest)


# ---- eval, sft and warmstart -----------------------------------------------------------------------------------------


def test_eval_passes_its_plan_on(capsys, calls):
    code, _, error = call(capsys, "eval", "--task", "countdown", "--size", "64", "--seed", "3", "--temperature", "0")
    ((plan, options, policy),) = calls
    assert (code, error, plan.size, plan.seed, policy) == (2, "error: enough\n", 64, 3, "PASSIVE")
    assert (plan.samples, plan.temperature, options["output"]) == (1, 0.0, None)


def test_sft_passes_its_configuration_on(capsys, calls, tmp_path):
    output = str(tmp_path / "run")
    words = ["--output", output, "--model", "gpt2", "run.steps=5", "settings.run.steps=9"]
    code, out, err = call(capsys, "sft", "--task", "countdown", *words)
    ((config, options, policy),) = calls
    assert (code, out, policy) == (0, "", "PASSIVE")
    assert (options["resume"], list(options["tasks"])) == (False, ["countdown"])
    assert err.splitlines() == [
        f"fine-tuning gpt2 on examples of countdown in {output}",
        "loading PyTorch",
        f"next: tinyzero train --task countdown --model {output}",
    ]
    assert ([spec.task for spec in config.task_specs], config.run.output) == (["countdown"], output)
    assert (config.run.steps, config.settings, config.optimizer.learning_rate) == (5, {"run": {"steps": 9}}, 2e-5)


def test_warmstart_is_sft_of_a_new_decoder(capsys, calls, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = call(capsys, "warmstart", "--task", "countdown", "run.seconds=60")
    ((config, _, _),) = calls
    assert code == 0
    assert err.startswith("fine-tuning a new decoder on examples of countdown in runs/sft-countdown-")
    assert (config.model.path, config.run.steps, config.run.seconds) == (None, None, 60)
    assert (config.optimizer.learning_rate, config.data.prompt_template) == (2e-3, "compact")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("run.device=cpu",), (1000, 32, 100)),
        (("run.device=cuda",), (3000, 256, 100)),
        (("run.device=cpu", "run.steps=50"), (50, 32, 5)),
        (("run.device=cpu", "run.seconds=60", "data.batch_size=8"), (None, 8, 100)),
        (("run.device=cuda", "run.steps=50", "optimizer.warmup_steps=7"), (50, 256, 7)),
    ],
)
def test_a_warm_start_suits_the_machine(words, expected, monkeypatch):
    monkeypatch.setattr(nvml, "sees_gpu", lambda device: device == "cuda")
    config = warm_start(parse_overrides(["tasks.countdown.task=countdown", *words]))
    assert (config.run.steps, config.data.batch_size, config.optimizer.warmup_steps) == expected


@pytest.mark.parametrize("command", ["train", "sft", "warmstart"])
def test_words_without_a_value_are_tasks(capsys, calls, tmp_path, command):
    output = ("--output", str(tmp_path / "run"), "run.steps=3")
    assert call(capsys, command, "multiply:2", "--task", "countdown", *output)[0] == 0
    ((config, _, _),) = calls
    assert {spec.task: spec.weight for spec in config.task_specs} == {"countdown": 1.0, "multiply": 2.0}
    assert "got 'run.seed', expected run.seed=VALUE" in call(capsys, command, "multiply", "run.seed", *output)[2]
