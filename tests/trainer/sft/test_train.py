import json
import re
import tomllib
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.settings import build
from tinyzero_trainer.config.model_defaults import PRESET_FILE, other_task, recorded_defaults
from tinyzero_trainer.config.sft import SftConfig, SftTrainingConfig
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.monitoring.progress import Progress
from tinyzero_trainer.sft.dataset import Example, pack
from tinyzero_trainer.sft.train import _loss, fine_tune, learning_rate
from tinyzero_trainer.utils.signals import StopFlag


def test_it_leaves_a_model_that_attempts_the_task(warm_model: Path) -> None:
    card = (warm_model / "README.md").read_text()
    assert "held-out accuracy" in card
    assert (warm_model / "model.safetensors").stat().st_size < 8e6
    architecture = json.loads((warm_model / "config.json").read_text())
    assert architecture["model_type"] == "qwen2"


def test_the_preset_is_for_its_own_task_only(warm_model: Path, toy_task: str) -> None:
    content = tomllib.loads((warm_model / PRESET_FILE).read_text())
    assert content["warmed_on"] == [{"task": toy_task, "options": {"limit": 5}}]
    own = recorded_defaults(str(warm_model), {"mine": {"task": toy_task}})
    assert own["tasks"] == {"mine": {"options": {"limit": 5}}}
    assert own["optimizer"] == {"learning_rate": 0.001}
    other = recorded_defaults(str(warm_model), {"toy_task": {}})  # an installed task of that name is another
    assert other == {key: value for key, value in own.items() if key != "tasks"}


def test_an_existing_directory_is_never_overwritten(tmp_path: Path, toy_task: str) -> None:
    config = build(SftConfig, {"tasks": {"toy": {"task": toy_task}}, "run": {"output": str(tmp_path)}})
    with Progress() as progress, pytest.raises(TinyZeroError, match="exists already"):
        fine_tune(config, progress=progress, stop=StopFlag())


@pytest.mark.slow
def test_a_task_without_demonstrations_is_refused(tmp_path: Path, toy_task: str) -> None:
    mute = tmp_path / "mute.py"
    source = Path(toy_task).read_text()
    mute.write_text(source[: source.index("@hookimpl\ndef demonstrate")])
    config = build(SftConfig, {"tasks": {"mute": {"task": str(mute)}}, "run": {"output": str(tmp_path / "out")}})
    with Progress() as progress, pytest.raises(TinyZeroError, match="gives no demonstrations"):
        fine_tune(config, progress=progress, stop=StopFlag())
    assert not (tmp_path / "out").exists()


def test_impossible_settings_for_later_stop_it_at_once(tmp_path: Path, toy_task: str) -> None:
    values = {
        "tasks": {"toy": {"task": toy_task}},
        "run": {"output": str(tmp_path / "out")},
        "settings": {"optimizer": {"lr": 1.0}},
    }
    with Progress() as progress, pytest.raises(TinyZeroError, match=r"unknown key 'optimizer\.lr'"):
        fine_tune(build(SftConfig, values), progress=progress, stop=StopFlag())


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
        "training": {"steps": 2, "batch_size": 4, "max_tokens": 8, "eval_size": 5, "test_fraction": 0.4}
        | {"template": "base"},
        "settings": {"run": {"steps": 9}},
    }
    with Progress() as progress:
        made = fine_tune(build(SftConfig, values), progress=progress, stop=StopFlag())
    assert [(name, result.problems) for name, result in made.evaluations.items()] == [("plus", 5), ("more", 5)]
    assert "on 5 problems of plus, " in made.summary
    recorded = recorded_defaults(
        str(made.output), {"a": {"task": toy_task}, "b": {"task": str(other)}, "countdown": {}}
    )
    assert recorded["tasks"] == {"a": {"options": {"limit": 5}}, "b": {"options": {"limit": 9}}}
    assert recorded["run"] == {"steps": 9}
    assert other_task("countdown", made.output) == f"{toy_task} and {other}"
    card = (made.output / "README.md").read_text()
    assert "of 8 demonstrations, 3 : 1" in card
    assert card.count("held-out accuracy, ") == 2
    again = tomllib.loads((made.output / "warmstart.toml").read_text())
    again["run"] |= {"output": str(tmp_path / "again"), "device": "cpu"}
    assert build(SftConfig, again).tasks == build(SftConfig, values).tasks


def test_the_loss_of_packed_examples_is_that_of_each_by_itself(toy_model: LanguageModel) -> None:
    examples = [Example([5, 6, 7][: 1 + row % 3], list(range(10, 13 + 2 * row))) for row in range(7)]
    batch = pack(examples, length=24, pad_id=toy_model.pad_id, multiple=4)
    model = toy_model.model.eval()
    head = model.get_output_embeddings()
    found = _loss(model.base_model, head, batch, model.device)
    losses = []
    for example in examples:
        whole = torch.tensor([example.prompt + example.demonstration])
        logits = model(input_ids=whole).logits[0, len(example.prompt) - 1 : -1]
        losses.append(F.cross_entropy(logits, torch.tensor(example.demonstration), reduction="none"))
    assert found.item() == pytest.approx(torch.cat(losses).mean().item(), abs=1e-5)


@pytest.mark.slow
def test_seconds_take_the_place_of_steps(tmp_path: Path, toy_task: str) -> None:
    training = {"seconds": 0.2, "batch_size": 8, "max_tokens": 8, "eval_size": 5, "test_fraction": 0.4}
    values = {
        "run": {"output": str(tmp_path / "out"), "device": "cpu"},
        "tasks": {"toy": {"task": toy_task}},
        "model": {"hidden_size": 32, "layers": 1, "head_size": 16, "mlp_size": 48, "context": 64},
        "training": training | {"template": "base"},
    }
    with pytest.raises(TinyZeroError, match=r"steps=9 has no effect with seconds=0\.2"):
        build(SftConfig, values | {"training": training | {"steps": 9}})
    with Progress() as progress:
        made = fine_tune(build(SftConfig, values), progress=progress, stop=StopFlag())
    again = tomllib.loads((made.output / "warmstart.toml").read_text())
    again["run"]["output"] = "again"
    assert build(SftConfig, again).training.seconds == 0.2
    drawn = re.search(r"of ([\d,]+) demonstrations", (made.output / "README.md").read_text())
    assert drawn is not None
    assert int(drawn[1].replace(",", "")) % 8 == 0


def test_the_learning_rate_warms_up_and_falls_to_a_tenth() -> None:
    rates = [
        learning_rate(SftTrainingConfig(steps=100, batch_size=1, learning_rate=1.0, warmup_steps=10), step)
        for step in range(1, 101)
    ]
    assert rates[:10] == pytest.approx([step / 10 for step in range(1, 11)])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)


def test_with_a_time_the_learning_rate_follows_its_share() -> None:
    training = SftTrainingConfig(seconds=60.0, learning_rate=1.0, warmup_steps=10)
    rates = [learning_rate(training, 1000, share) for share in (0.0, 0.25, 0.5, 1.0)]
    assert rates == pytest.approx([1.0, 0.868, 0.55, 0.1], abs=1e-3)
    assert learning_rate(training, 1, 0.01) == pytest.approx(0.1)
