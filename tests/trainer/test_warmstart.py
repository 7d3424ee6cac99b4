import json
import tomllib
from pathlib import Path

import pytest

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.settings import build
from tinyzero_trainer.display import Display
from tinyzero_trainer.interrupts import StopFlag
from tinyzero_trainer.models import LanguageModel
from tinyzero_trainer.presets import PRESET_FILE, other_task, preset
from tinyzero_trainer.task_shares import load_shares
from tinyzero_trainer.warmstart import _batches, learning_rate, warm_start
from tinyzero_trainer.warmstart_config import WarmStartConfig, WarmStartTraining


def test_it_leaves_a_model_that_attempts_the_task(warm_model: Path) -> None:
    card = (warm_model / "README.md").read_text()
    assert "held-out accuracy" in card
    assert (warm_model / "model.safetensors").stat().st_size < 8e6
    architecture = json.loads((warm_model / "config.json").read_text())
    assert architecture["model_type"] == "qwen2"


def test_the_preset_is_for_its_own_task_only(warm_model: Path, toy_task: str) -> None:
    content = tomllib.loads((warm_model / PRESET_FILE).read_text())
    assert content["task"] == toy_task
    own = preset(toy_task, warm_model)
    assert own["task"] == {"limit": 5}
    assert own["optimizer"] == {"learning_rate": 0.001}
    other = preset("toy_task", warm_model)  # an installed task of that name is another
    assert "task" not in other
    assert other["optimizer"] == own["optimizer"]


def test_an_existing_directory_is_never_overwritten(tmp_path: Path, toy_task: str) -> None:
    config = build(WarmStartConfig, {"run": {"task": toy_task, "output": str(tmp_path)}})
    with Display() as display, pytest.raises(TinyZeroError, match="exists already"):
        warm_start(config, display=display, stop=StopFlag())


def test_a_task_without_demonstrations_is_refused(tmp_path: Path, toy_task: str) -> None:
    mute = tmp_path / "mute.py"
    source = Path(toy_task).read_text()
    mute.write_text(source[: source.index("@hookimpl\ndef demonstrate")])
    config = build(WarmStartConfig, {"run": {"task": str(mute), "output": str(tmp_path / "out")}})
    with Display() as display, pytest.raises(TinyZeroError, match="gives no demonstrations"):
        warm_start(config, display=display, stop=StopFlag())
    assert not (tmp_path / "out").exists()


def test_impossible_settings_for_later_stop_it_at_once(tmp_path: Path, toy_task: str) -> None:
    values = {"run": {"task": toy_task, "output": str(tmp_path / "out")}, "settings": {"optimizer": {"lr": 1.0}}}
    with Display() as display, pytest.raises(TinyZeroError, match=r"unknown key 'optimizer\.lr'"):
        warm_start(build(WarmStartConfig, values), display=display, stop=StopFlag())


def test_several_tasks_share_a_model_a_preset_and_a_card(tmp_path: Path, toy_task: str) -> None:
    other = tmp_path / "other.py"
    other.write_text(Path(toy_task).read_text())
    values = {
        "run": {"output": str(tmp_path / "out"), "device": "cpu"},
        "tasks": {
            "plus": {"task": toy_task, "weight": 3, "options": {"limit": 5}},
            "more": {"task": str(other), "options": {"limit": 9}},
        },
        "model": {"hidden_size": 32, "layers": 1, "head_size": 16, "mlp_size": 48, "context": 64},
        "training": {"steps": 2, "batch_size": 4, "max_tokens": 8, "eval_size": 5, "test_share": 0.4}
        | {"template": "base"},
        "settings": {"run": {"steps": 9}},
    }
    with Display() as display:
        made = warm_start(build(WarmStartConfig, values), display=display, stop=StopFlag())
    assert [(name, result.problems) for name, result in made.evaluations.items()] == [("plus", 5), ("more", 5)]
    assert "on 5 problems of plus, " in made.summary
    assert (preset(toy_task, made.output)["task"], preset(str(other), made.output)["task"]) == (
        {"limit": 5},
        {"limit": 9},
    )
    assert preset("countdown", made.output)["run"] == {"steps": 9}
    assert "task" not in preset("countdown", made.output)
    assert other_task("countdown", made.output) == f"{toy_task} and {other}"
    card = (made.output / "README.md").read_text()
    assert "of 8 demonstrations, 3 : 1" in card
    assert card.count("held-out accuracy, ") == 2
    again = tomllib.loads((made.output / "warmstart.toml").read_text())
    again["run"] |= {"output": str(tmp_path / "again"), "device": "cpu"}
    assert build(WarmStartConfig, again).tasks == build(WarmStartConfig, values).tasks


@pytest.mark.slow
def test_a_batch_has_the_tasks_in_their_shares(toy_task: str, toy_model: LanguageModel) -> None:
    tasks = {"one": {"task": toy_task, "weight": 2}, "two": {"task": toy_task, "options": {"limit": 9}}}
    config = build(WarmStartConfig, {"tasks": tasks, "training": {"batch_size": 4, "template": "base"}})
    asked: list[str] = []
    loaded = load_shares(config.task_shares())
    for name, task in loaded.items():
        demonstrate = task.demonstrate
        task.demonstrate = lambda item, seed, name=name, make=demonstrate: (asked.append(name), make(item, seed))[1]
    batches = _batches(config, loaded.values(), toy_model)
    assert [len(next(batches)) for _ in range(3)] == [4, 4, 4]
    assert (asked.count("one"), asked.count("two")) == (8, 4)


def test_the_learning_rate_warms_up_and_falls_to_a_tenth() -> None:
    rates = [learning_rate(WarmStartTraining(100, 1, 1.0, 10), step) for step in range(1, 101)]
    assert rates[:10] == pytest.approx([step / 10 for step in range(1, 11)])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)
