"""On a GPU where no model is named, one is made for the task, once. The GPU is pretended; what is made is real."""

import os
import shutil
import signal
from pathlib import Path

import pytest
import tomli_w

from tests.trainer.configurations import call, typed
from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import read_toml
from tinyzero_trainer import fine_tune
from tinyzero_trainer.config.compose import compose
from tinyzero_trainer.config.model_defaults import BUILT_IN_MODEL, PRESET_FILE, recorded_content
from tinyzero_trainer.config.sft import SftConfig
from tinyzero_trainer.hardware import nvml
from tinyzero_trainer.hardware.nvml import sees_gpu
from tinyzero_trainer.sft import default_model
from tinyzero_trainer.sft import train as sft
from tinyzero_trainer.sft.default_model import DefaultModel, plan
from tinyzero_trainer.utils.signals import Interrupted


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is the CPU."""
    monkeypatch.setattr(nvml, "sees_gpu", lambda device: device != "cpu")
    monkeypatch.setattr(default_model, "on_gpu", lambda device, display: True)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def planned(toy_task: str, *words: str) -> DefaultModel:
    return plan(typed(*words, task=toy_task))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    "words", [("model.path=gpt2",), ("model.path=tiny",), ("run.device=cpu",), ("run.executor=ray",)]
)
def test_none_is_made_where_one_is_named_or_the_run_has_no_gpu(words: tuple[str, ...], toy_task: str) -> None:
    assert plan(typed(*words, task=toy_task)) is None


@pytest.mark.usefixtures("gpu", "cache")
def test_settings_of_a_model_that_is_not_made_are_refused(monkeypatch: pytest.MonkeyPatch, toy_task: str) -> None:
    ray = ("run.executor=ray", "ray.gpus=0", "run.device=cuda")
    with pytest.raises(SettingsError, match=r"default_model has no effect: Ray with ray\.gpus=0 has no GPU"):
        plan(typed(*ray, "default_model.steps=3", task=toy_task))
    assert planned(toy_task, *ray[:1], "ray.gpus=2").directory
    monkeypatch.setattr(nvml, "sees_gpu", lambda device: False)
    with pytest.raises(SettingsError, match=r"default_model has no effect: run\.device=auto finds no GPU"):
        plan(typed("default_model.steps=3", task=toy_task))
    assert plan(typed(task=toy_task)) is None


@pytest.mark.usefixtures("gpu")
def test_a_task_without_demonstrations_needs_a_model(mute_task: str) -> None:
    with pytest.raises(SettingsError, match=r"no demonstrations .* give --model DIR, or model\.path=tiny"):
        plan(typed(task=mute_task))


@pytest.mark.slow
@pytest.mark.usefixtures("gpu", "cache")
def test_another_recipe_another_model(toy_task: str) -> None:
    recipe = (
        "default_model.steps=3",
        "default_model.seconds=3",
        "default_model.layers=2",
        "task.limit=7",
        "data.test_fraction=0.3",
    )
    words = [(), *((word,) for word in (*recipe, "data.prompt_template=base"))]
    directories = {planned(toy_task, *each).directory for each in words}
    assert len(directories) == len(words)
    assert planned(toy_task, "run.seed=3").directory in directories  # a run's seed is not the model's


@pytest.mark.usefixtures("gpu", "cache")
def test_the_users_settings_take_precedence_over_its_defaults(toy_task: str) -> None:
    model = planned(toy_task, "optimizer.learning_rate=1e-3", "data.prompt_template=base")
    assert model.recipe.data.prompt_template == "base"
    assert (model.config.optimizer.learning_rate, model.config.data.prompts_per_step) == (1e-3, 128)
    with pytest.raises(SettingsError, match=r"optimizer\.lr"):
        plan({"run": {"task": toy_task}, "optimizer": {"lr": 1}})


@pytest.mark.usefixtures("gpu", "cache")
def test_a_cache_that_cannot_be_written_is_one_line(capsys, tmp_path, toy_task):
    (tmp_path / "file").touch()
    words = (f"default_model.directory={tmp_path / 'file' / 'in'}", "--output", str(tmp_path / "run"))
    code, _, err = call(capsys, "train", "--task", toy_task, *words)
    assert code == 2
    assert "cannot keep a model in" in err
    assert err.rstrip().endswith("give default_model.directory")


def test_the_gpu_is_looked_for_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "count_gpus", lambda: 1)
    for installed, seen in (("2.9.0+cpu", False), ("2.9.0", True)):
        monkeypatch.setattr(nvml, "version", lambda _, installed=installed: installed)
        assert sees_gpu("auto") is seen
    assert sees_gpu("cuda:1")
    assert not sees_gpu("cpu")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("before_the_loop", "number", "code"),
    [(True, signal.SIGINT, 130), (True, signal.SIGTERM, 143), (False, signal.SIGINT, 130)],
)
def test_a_signal_while_it_is_made_is_one_line_and_leaves_nothing(
    before_the_loop, number, code, toy_task, cache, tmp_path, capsys, monkeypatch
):
    def fine_tune(config: SftConfig, **_: object) -> None:
        Path(config.run.output).mkdir()
        if before_the_loop:
            os.kill(os.getpid(), number)
            raise AssertionError("a signal ends it at once")
        raise Interrupted(number, 3, "tinyzero sft --resume")

    monkeypatch.setattr(sft, "fine_tune", fine_tune)
    left, _, err = call(capsys, "train", "--task", toy_task, "--output", str(tmp_path / "run"))
    assert left == code
    assert err.splitlines()[-1] == f"stopped by {number.name} before the small model was made; nothing is left of it"
    assert [path.suffix for path in (cache / "tinyzero" / "models").iterdir()] == [".lock"]


@pytest.mark.usefixtures("gpu", "cache")
@pytest.mark.parametrize(
    "words", [("data.prompts_per_step=2",), ("optimizer.update_epochs=2", "data.prompts_per_step=1")]
)
def test_its_defaults_yield_where_the_users_settings_contradict_them(words: tuple[str, ...], toy_task: str) -> None:
    model = planned(toy_task, *words)
    shutil.copytree(BUILT_IN_MODEL, model.directory)
    file = model.directory / PRESET_FILE
    file.write_text(tomli_w.dumps(recorded_content({toy_task: {}}, default_model.SETTINGS)))
    for one in (model.config, compose(model.settle(fine_tune)).config):
        assert one.optimizer.num_mini_batches == 1
        assert one.data.prompts_per_step < default_model.SETTINGS["optimizer"]["num_mini_batches"]
        assert one.optimizer.beta2 == 0.99  # the rest holds


@pytest.mark.slow
@pytest.mark.usefixtures("gpu")
def test_it_is_made_trained_resumed_and_found_again(capsys, cache, tmp_path, toy_task, monkeypatch):
    for group, values in {"model": {}, "data": {"batch_size": 16, "num_workers": 0}}.items():
        monkeypatch.setitem(default_model.PRESET["sft"], group, values)
    model = "default_model.hidden_size=32 default_model.layers=1 default_model.head_size=16 default_model.mlp_size=48"
    few = (
        "run.steps=2 data.prompts_per_step=4 rollout.group_size=2 eval.num_problems=4 eval.every=0 model.compile=false"
    )
    few += " optimizer.micro_batch_tokens=256 rollout.max_completion_tokens=8 reward.num_workers=1"
    few += " optimizer.lr_schedule=constant"  # one that has ended could not be lengthened
    words = ("train", "--task", toy_task, "task.limit=5", "data.test_fraction=0.4", *model.split(), *few.split())
    words += ("default_model.steps=2",)
    code, _, err = call(capsys, *words, "--output", str(tmp_path / "first"))
    assert code == 0, err
    assert err.startswith("no --model: fine-tuning a small model on examples of toy_task first, for 2 steps on the GPU")
    (made,) = [path for path in (cache / "tinyzero" / "models").iterdir() if path.is_dir()]
    saved = read_toml(tmp_path / "first" / "config.toml")
    assert saved["model"]["path"] == str(made)
    assert saved["default_model"] == {"hidden_size": 384, "layers": 6, "head_size": 64, "kv_heads": 2} | {
        "mlp_size": 1024,
        "steps": 1600,
    }
    assert (saved["optimizer"]["num_mini_batches"], saved["optimizer"]["micro_batch_tokens"]) == (4, 256)
    before = os.stat(made / "model.safetensors").st_mtime_ns
    code, _, err = call(capsys, *words, "--output", str(tmp_path / "second"))
    assert code == 0, err
    assert err.startswith(f"no --model: using the small model made here before, {made}")
    assert os.stat(made / "model.safetensors").st_mtime_ns == before
    code, _, err = call(capsys, "train", "--output", str(tmp_path / "second"), "--resume", "run.steps=3")
    assert code == 0, err
    code, _, err = call(capsys, "eval", "--model", str(tmp_path / "second"), "--samples", "1")
    assert code == 0, err
