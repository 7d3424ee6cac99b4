"""Runs of supervised fine-tuning: the files, the loop and the commands of reinforcement learning."""

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from safetensors import SafetensorError

from tests.faults import Faults
from tests.trainer.configurations import call
from tests.trainer.runs import assert_same_weights, killed, lines, short_sft
from tinyzero_sdk.errors import SettingsError, TinyZeroError
from tinyzero_sdk.settings import read_toml
from tinyzero_trainer.checkpoint.run_directory import RunDirectory, newest_model
from tinyzero_trainer.checkpoint.store import USERS
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.model_defaults import other_task, recorded_defaults
from tinyzero_trainer.config.resume import resume_config
from tinyzero_trainer.config.sft import SftConfig, compose_sft
from tinyzero_trainer.sft import train as sft
from tinyzero_trainer.sft.step import SftStep
from tinyzero_trainer.sft.train import fine_tune

Configure = Callable[..., SftConfig]
STEPS = 5


@pytest.fixture
def configure(toy_task: str, tmp_path: Path) -> Configure:
    """Makes the configuration of a short run."""

    return lambda name="run", **groups: short_sft(tmp_path / name, toy_task, **groups)


@pytest.mark.slow
def test_a_run_leaves_what_reinforcement_learning_does_and_its_model_is_trained_further(
    configure: Configure, toy_task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fine_tune(configure())
    rows = lines(tmp_path / "run")
    assert [row["step"] for row in rows] == list(range(STEPS + 1))
    assert [row["step"] for row in rows if "val-core/toy/acc/mean@1" in row] == [2, 4, 5]  # not of random weights
    assert rows[-1]["val/loss"] < rows[0]["val/loss"]
    assert {"train/loss", "train/lr", "train/grad_norm", "tokens/response_total"} <= rows[1].keys()
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["step_4", "step_5"]
    newest = newest_model(str(tmp_path / "run"))
    assert newest.endswith("checkpoints/step_5")
    assert recorded_defaults(newest, {"mine": {"task": toy_task}})["tasks"] == {"mine": {"options": {"limit": 5}}}

    code, _, error = call(capsys, "eval", "--model", str(tmp_path / "run"), "--size", "4", "run.device=cpu")
    assert code == 0, error
    few = ("run.steps=1", "data.prompts_per_step=2", "rollout.group_size=2", "eval.num_problems=2", "run.device=cpu")
    words = ("--task", toy_task, "--model", str(tmp_path / "run"), "--output", str(tmp_path / "rl"))
    code, _, error = call(capsys, "train", *words, *few)
    assert code == 0, error
    assert tomllib.loads((tmp_path / "rl" / "config.toml").read_text())["model"]["path"] == newest


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_metrics_and_weights(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fine_tune(configure("whole"))
    with killed(monkeypatch, SftStep, "take", 4):
        fine_tune(configure())
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    code, _, error = call(capsys, "sft", "--output", str(moved), "--resume")
    assert code == 0, error
    assert "resuming from step 2" in error
    assert lines(moved) == lines(tmp_path / "whole")
    assert_same_weights(moved, tmp_path / "whole", STEPS)


@pytest.mark.slow
def test_a_resumed_run_is_of_its_own_kind_and_learns_the_same(
    configure: Configure, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = str(tmp_path / "run")
    fine_tune(configure(run={"steps": 1}, checkpoint={"every": 1}))
    code, _, error = call(capsys, "train", "--output", output, "--resume")
    assert code == 2
    assert f"{output} holds another kind of run; resume it with: tinyzero sft --output {output} --resume" in error
    code, _, error = call(capsys, "sft", "--output", output, "--resume", "data.batch_size=4")
    assert code == 2
    assert "--resume cannot change data.batch_size from 8 to 4" in error
    code, _, error = call(capsys, "sft", "--output", output, "--task", "countdown")
    assert code == 2
    assert f"resume with: tinyzero sft --output {output} --resume" in error


@pytest.mark.slow
def test_several_tasks_share_a_model_and_its_defaults(
    configure: Configure, toy_task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.py"
    other.write_text(Path(toy_task).read_text())
    tasks = {
        "plus": {"task": toy_task, "weight": 3, "options": {"limit": 5}},
        "more": {"task": str(other), "options": {"limit": 9}},
    }
    made = fine_tune(configure(tasks=tasks, run={"steps": 2}, eval={"pass_at": [2]}, settings={"run": {"steps": 9}}))
    told = capsys.readouterr().err
    assert re.search(r"% of the examples of plus are right\n", told)
    of_plus = r"0\.0% of the problems of plus are solved, and [1-9][0-9.]*% by the examples; "
    assert re.search(of_plus + "[0-9.]*% are cut off; give more than rollout.max_completion_tokens=", told)
    assert list(made.accuracy) == ["plus", "more"]
    assert {change.before for change in made.accuracy.values()} == {None}  # of random weights nothing is generated
    model = Path(newest_model(str(made.output)))
    recorded = recorded_defaults(str(model), {"a": {"task": toy_task}, "b": {"task": str(other)}, "countdown": {}})
    assert recorded["tasks"] == {"a": {"options": {"limit": 5}}, "b": {"options": {"limit": 9}}}
    assert (recorded["run"], recorded["data"]["prompt_template"]) == ({"steps": 9}, "base")
    assert other_task("countdown", model) == f"{toy_task} and {other}"


@pytest.mark.slow
def test_an_adapter_is_fine_tuned(configure: Configure, warm_model: Path, tmp_path: Path) -> None:
    """The rest stays as it was, but for a note that this run needs it."""

    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in warm_model.iterdir() if path.is_file() and path.name != USERS}

    before = files()
    fine_tune(configure("adapted", model={"path": str(warm_model)}, lora={"rank": 2}, run={"steps": 2}))
    rows = lines(tmp_path / "adapted")
    assert rows[0]["model/trained_parameters"] < rows[0]["model/parameters"] / 4
    assert rows[2]["val/loss"] != rows[0]["val/loss"]
    assert files() == before
    assert str(tmp_path / "adapted") in (warm_model / USERS).read_text()


@pytest.mark.parametrize(("epochs", "steps"), [(None, 8), (2, 5), (1, 3)])
def test_epochs_set_the_number_of_steps(
    epochs: int | None, steps: int, configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    opened = list[SftConfig]()

    def open_session(_: TrainConfig, config: SftConfig, *_others: object, **__: object) -> NoReturn:
        opened.append(config)
        raise TinyZeroError

    monkeypatch.setattr(sft, "open_session", open_session)
    rows = [json.dumps({"prompt": f"{number}+0=", "completion": f"{number}"}) for number in range(20)]
    for name, some in {"train": rows, "test": [json.dumps({"prompt": "20+0=", "completion": "20"})]}.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(some))
    data = {"path": str(tmp_path / "train.jsonl"), "test_path": str(tmp_path / "test.jsonl")}
    with pytest.raises(TinyZeroError):
        fine_tune(configure(run={"steps": None, "epochs": epochs}, data=data, tasks={}))
    assert [config.run.steps for config in opened] == [steps]
    with RunDirectory.open(str(tmp_path / "run")) as directory:
        directory.save_config(opened[0])
    with pytest.raises(SettingsError, match=r"--resume cannot change run\.epochs from none to 9"):
        resume_config(tmp_path / "run", {"run": {"epochs": 9}}, SftConfig)
    assert "warning" not in capsys.readouterr().err
    with pytest.raises(TinyZeroError):
        fine_tune(configure(run={"steps": None, "epochs": epochs}, data={**data, "batch_size": 21}, tasks={}))
    assert "warning: data.batch_size=21 is more than the 20 examples; give less" in capsys.readouterr().err


@pytest.mark.parametrize("error", [SafetensorError("I/O error: No space left on device"), OSError(28, "No space left")])
@pytest.mark.fault(
    "F1",
    "The disk is full while a new model is written",
    made="saving it raises ENOSPC, or what safetensors makes of that",
    seen="cannot write …run/new_model: …No space left",
    kept="nothing of the new model, and the one that was there",
    code=2,
)
def test_a_new_model_that_cannot_be_written_leaves_nothing_and_the_one_before_it(
    fault_row: Faults, configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def save_model(directory: Path, _: object) -> NoReturn:
        directory.mkdir()
        (directory / "model.safetensors").touch()
        raise error

    monkeypatch.setattr(sft, "save_model", save_model)
    with pytest.raises(TinyZeroError) as caught:
        fine_tune(configure())
    fault_row.check(caught.value)
    assert not (tmp_path / "run").exists()
    (tmp_path / "run/new_model").mkdir(parents=True)
    with pytest.raises(TinyZeroError, match="No space left"):
        fine_tune(configure())
    assert (tmp_path / "run/new_model").is_dir()
    assert not (tmp_path / "run/new_model.tmp").exists()


def test_the_new_model_of_a_run_in_progress_is_not_replaced(configure: Configure, tmp_path: Path) -> None:
    config = configure()
    with RunDirectory.open(config.run.output):
        config.new_model_directory.mkdir()
        with pytest.raises(TinyZeroError, match="is in use by process"):
            fine_tune(config)
        assert not list(config.new_model_directory.iterdir())


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"run": {"epochs": 2}}, "run.steps=5 and run.epochs=2 both say how long to train; leave out all but one"),
        ({"run": {"steps": None, "epochs": 2}}, "run.epochs counts passes over data.path, and none is given"),
        (
            {"model": {"path": "gpt2"}, "new_model": {"hidden_size": 32}},
            "new_model.hidden_size=32 has no effect: model.path='gpt2' names a model",
        ),
        ({"data": {"max_per_problem": 2}}, "data.max_per_problem=2 has no effect: data.path=none takes the examples"),
        (
            {"data": {"path": "a.jsonl"}, "tasks": {"countdown": {"weight": 3}, "multiply": {}}},
            "weights of tasks have no effect: data.path='a.jsonl' has the examples; leave them out",
        ),
        ({"rollout": {"group_size": 3}}, "unknown key 'rollout.group_size'"),
    ],
)
def test_contradictions_and_settings_without_effect_are_refused(
    configure: Configure, groups: dict[str, Any], message: str
) -> None:
    with pytest.raises(TinyZeroError) as caught:
        configure(**groups)
    assert message in str(caught.value)


def test_impossible_settings_for_the_model_are_refused_before_it_is_made(configure: Configure, tmp_path: Path) -> None:
    with pytest.raises(TinyZeroError, match=r"unknown key 'optimizer\.lr'"):
        fine_tune(configure(settings={"optimizer": {"lr": 1.0}}))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "groups"),
    [("run", {}), ("adapted", {"model": {"path": "gpt2"}}), ("run", {"data": {"path": "a.jsonl", "test_path": "b"}})],
    ids=["new decoder", "pretrained model", "file"],
)
def test_a_recorded_configuration_can_be_given_again(
    configure: Configure, name: str, groups: dict[str, Any], tmp_path: Path
) -> None:
    config = configure(name, **groups)
    RunDirectory(tmp_path).save_config(config)
    assert compose_sft(read_toml(tmp_path / "config.toml")) == config


def test_a_models_prompts_and_options_stay_unless_they_are_given() -> None:
    requested: dict[str, Any] = {"model": {"path": "tiny"}, "tasks": {"countdown": {}}}
    config = compose_sft(requested)
    (spec,) = config.task_specs
    assert (spec.options["numbers"], config.data.prompt_template, config.data.test_fraction) == ([3], "compact", 0.125)
    assert config.rollout.max_completion_tokens == 192
    assert config.optimizer.learning_rate == SftConfig().optimizer.learning_rate
    given = {"data": {"prompt_template": "base"}, "tasks": {"countdown": {"options": {"numbers": [4]}}}}
    config = compose_sft({**requested, **given})
    assert (config.task_specs[0].options["numbers"], config.data.prompt_template) == ([4], "base")
    assert compose_sft({**requested, "tasks": {"multiply": {}}}).task_specs[0].options == {}


@pytest.mark.slow
def test_a_file_that_has_changed_is_not_trained_on_further(configure: Configure, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"{number}+1=", "completion": f"{number + 1}"} for number in range(30)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    few = {"tasks": {}, "data": {"path": str(file)}, "run": {"steps": 2}}
    config = configure(**few, checkpoint={"every": 1})
    fine_tune(config)
    file.write_text(file.read_text().replace("1", "2"))
    with pytest.raises(TinyZeroError, match=r"pairs\.jsonl has changed since the checkpoint was saved; restore it"):
        fine_tune(config, resume=True)


@pytest.mark.slow
def test_examples_that_exceed_the_models_context_are_left_out_with_a_warning(
    configure: Configure, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a task there is no completion whose length the model limits."""
    rows = [{"prompt": f"{number}:", "completion": "c" + "ab" * (40 * (number % 2))} for number in range(20)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"path": str(tmp_path / "rows.jsonl"), "test_fraction": 1e-9}
    fine_tune(configure(tasks={}, data=data, run={"steps": 1}, rollout={"max_completion_tokens": 128}))
    error = capsys.readouterr().err
    assert "% of the examples have more than 64 tokens and are left out; the model's context has no room" in error
    assert lines(tmp_path / "run")[1]["tokens/response_total"] < 2 * 8
