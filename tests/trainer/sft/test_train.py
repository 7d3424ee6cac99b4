import json
import re
import tomllib
from pathlib import Path
from typing import Any

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
from tinyzero_trainer.sft.train import SftResult, _loss, fine_tune, learning_rate
from tinyzero_trainer.utils.signals import StopFlag

SMALL = {"hidden_size": 32, "layers": 1, "head_size": 16, "mlp_size": 48, "context": 64}
TRAINING = {"batch_size": 4, "max_tokens": 8, "eval_size": 5, "test_fraction": 0.4, "template": "base"}


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


def train(tasks: dict[str, Any], output: Path, **groups: Any) -> SftResult:
    with Progress() as progress:
        values = {"tasks": tasks, "run": {"output": str(output), "device": "cpu"}, **groups}
        return fine_tune(build(SftConfig, values), progress=progress, stop=StopFlag())


@pytest.mark.slow
def test_what_cannot_be_trained_is_refused_and_leaves_nothing(tmp_path, toy_task, mute_task):
    toy, output = {"toy": {"task": toy_task}}, tmp_path / "out"
    with pytest.raises(TinyZeroError, match="exists already"):
        train(toy, tmp_path)
    with pytest.raises(TinyZeroError, match="gives no demonstrations"):
        train({"mute": {"task": mute_task}}, output)
    with pytest.raises(TinyZeroError, match=r"unknown key 'optimizer\.lr'"):
        train(toy, output, settings={"optimizer": {"lr": 1.0}})
    assert not output.exists()


@pytest.mark.slow
def test_several_tasks_share_a_model_a_preset_and_a_model_card(tmp_path: Path, toy_task: str) -> None:
    other = tmp_path / "other.py"
    other.write_text(Path(toy_task).read_text())
    tasks = {
        "plus": {"task": toy_task, "weight": 3, "options": {"limit": 5}},
        "more": {"task": str(other), "options": {"limit": 9}},
    }
    made = train(tasks, tmp_path / "out", model=SMALL, training=TRAINING | {"steps": 2}, settings={"run": {"steps": 9}})
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
    again = build(SftConfig, tomllib.loads((made.output / "warmstart.toml").read_text()))
    assert again.tasks == build(SftConfig, {"tasks": tasks, "run": {"output": "again"}}).tasks


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
    tasks, training = {"toy": {"task": toy_task}}, TRAINING | {"seconds": 0.2, "batch_size": 8}
    with pytest.raises(TinyZeroError, match=r"steps=9 has no effect with seconds=0\.2"):
        train(tasks, tmp_path / "out", training=training | {"steps": 9})
    made = train(tasks, tmp_path / "out", model=SMALL, training=training)
    again = build(SftConfig, tomllib.loads((made.output / "warmstart.toml").read_text()))
    assert again.training.seconds == 0.2
    drawn = re.search(r"of ([\d,]+) demonstrations", (made.output / "README.md").read_text())
    assert int(drawn[1].replace(",", "")) % 8 == 0


def test_the_learning_rate_warms_up_and_falls_to_a_tenth_by_steps_or_by_time() -> None:
    training = SftTrainingConfig(steps=100, batch_size=1, learning_rate=1.0, warmup_steps=10)
    rates = [learning_rate(training, step) for step in range(1, 101)]
    assert rates[:10] == pytest.approx([step / 10 for step in range(1, 11)])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)
    timed = SftTrainingConfig(seconds=60.0, learning_rate=1.0, warmup_steps=10)
    rates = [learning_rate(timed, 1000, share) for share in (0.0, 0.25, 0.5, 1.0)]
    assert rates == pytest.approx([1.0, 0.868, 0.55, 0.1], abs=1e-3)
    assert learning_rate(timed, 1, 0.01) == pytest.approx(0.1)
