"""What the user types becomes one configuration, or one line that says what is wrong with it."""

from dataclasses import replace

import pytest

from tests.trainer.configurations import typed
from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import TABLE, build, describe, format_value
from tinyzero_trainer.checkpoint.run_directory import RunDirectory
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.compose import compose, gather, make_config
from tinyzero_trainer.config.resume import resume_command
from tinyzero_trainer.config.sft import SftRunConfig
from tinyzero_trainer.sft.default_model import plan

pytestmark = pytest.mark.usefixtures("built_in_preset")


def test_later_wins_of_defaults_preset_file_and_words(tmp_path, built_in_preset):
    built_in_preset.update(rollout={"max_completion_tokens": 64, "top_k": 5, "temperature": 0.7})
    file = tmp_path / "my.toml"
    file.write_text("[rollout]\nmax_completion_tokens = 128\ntop_k = 9\n[run]\ntask = 'countdown'")
    config = make_config(typed("rollout.top_k=3", file=file))
    assert (config.rollout.temperature, config.rollout.max_completion_tokens, config.rollout.top_k) == (0.7, 128, 3)
    assert compose(typed("rollout.top_k=3", task="countdown")).model_defaults == {
        "rollout.max_completion_tokens": 64, "rollout.temperature": 0.7,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optimizer.learning_rat=1"], "unknown key 'optimizer.learning_rat'; did you mean 'optimizer.learning_rate'?"),
        (["learning_rate=1"], "unknown key 'learning_rate'; did you mean 'optimizer.learning_rate' or"),
        (["run.output=~no_user/x"], "run.output=~no_user/x: ~no_user is no user's home; give the path without it"),
        (["model.path=~no_user/x"], "model.path=~no_user/x: ~no_user is no user's home; give the path without it"),
        (["xyzzy=1"], "unknown key 'xyzzy' (--help lists all keys)"),
        (["optimizer=3"], "'optimizer' is a group of keys; set one of them, such as optimizer.learning_rate=…"),
        (["run.seed=1", "run.seed=2"], "'run.seed' is given twice; give it once"),
        (["run.task=gsm8k"], "run.task is given twice, as a flag and as run.task=gsm8k; give it once"),
        (["run.steps=many"], "run.steps: got 'many'; input should be a valid integer"),
        (["log.trackers=[\"mlflow\"]"], "log.trackers.0: got 'mlflow'; input should be 'wandb', 'trackio' or"),
        (["task.numbers=none"], "task.numbers=none cannot be kept in config.toml; leave it out"),
        (["rollout.group_size=1"], "rollout.group_size=1 leaves algorithm.advantage_estimator='grpo'"),
        (["algorithm.advantage_estimator=gae", "critic.warmup_steps=100"], "leaves none of run.steps=100"),
        (["run.recipe=dapa"], "no recipe 'dapa'; did you mean 'dapo'? known: adaptive, "),
        (["algorithm.policy_loss=grpo"], "'grpo' is unknown; known: ppo, gspo, cispo, reinforce"),
        (["algorithm.policy_loss=./my_loss.py"], "such as ./my_loss.py:my_loss"),
        (["algorithm.advantage_estimator=grop"], "'grop' is unknown; known: grpo, dr_grpo, rloo, gdpo, reinforce_pp"),
        (["rollout_correction.rejection_bounds=[1.5,2]"], "bounds.0: got 1.5; input should be less than 1"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_it(words, message):
    with pytest.raises(SettingsError) as caught:
        make_config(typed(*words, task="countdown"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_config_of_a_run_is_taken_again_for_another_one(tmp_path):
    run = tmp_path / "run"
    first = make_config(typed("data.max_refill_rounds=2", f"run.output={run}", "model.path=tiny", task="countdown"))
    with RunDirectory.open(run) as directory:
        directory.save_config(first)
    again = gather(TrainConfig, {}, [], directory.config)
    assert plan(again) is None  # no default model, and no complaint of default_model
    assert make_config(again) == replace(first, run=replace(first.run, output=""))
    # What another setting leaves without effect is dropped, as a default is.
    single = make_config(
        gather(TrainConfig, {}, ["rollout.group_size=1", "algorithm.advantage_estimator=gae"], directory.config)
    )
    assert single.data.max_refill_rounds == 0
    # A file of one's own is taken at its word.
    mine = tmp_path / "mine.toml"
    mine.write_text(directory.config.read_text())
    with pytest.raises(SettingsError, match=r"data\.max_refill_rounds=2 has no effect"):
        make_config(gather(TrainConfig, {}, ["rollout.group_size=1", "algorithm.advantage_estimator=gae"], mine))


def test_the_home_directory_takes_the_place_of_a_tilde_in_the_output(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "my.toml"
    file.write_text("[run]\noutput = '~/my runs/1'\ntask = 'countdown'")
    expected = f"{tmp_path}/my runs/1"
    config = make_config(gather(TrainConfig, {}, [], file))
    assert (config.run.output, SftRunConfig(output="~/my runs/1").output) == (expected, expected)
    assert resume_command(config) == f"tinyzero train --output '{expected}' --resume"
    assert make_config(typed("run.output=r~/1", task="countdown")).run.output == "r~/1"


def test_every_key_can_be_given_as_help_shows_it():
    words = [
        f"{field.key}={format_value(field.default)}"
        for field in describe(TrainConfig)
        if field.type != TABLE and field.default not in ("", ())
    ]
    assert build(TrainConfig, typed(*words)) == TrainConfig()


@pytest.mark.parametrize("model", ["/nowhere", "./nowhere", "~/nowhere", "a/b/c"])
def test_a_model_that_is_no_directory_is_refused_before_anything_is_loaded(model: str) -> None:
    with pytest.raises(SettingsError, match=f"there is no directory {model}"):
        make_config({"run": {"task": "countdown"}, "model": {"path": model}})
