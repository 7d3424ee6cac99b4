"""A run goes on by its saved configuration; only what is not learnt from may be changed."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest
import tomli_w

import tinyzero_trainer
from tests.trainer.configurations import typed
from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import to_mapping
from tinyzero_trainer.config import SftConfig, TrainConfig
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.config.resume import check_fingerprint, fingerprint, resume_config
from tinyzero_trainer.config.settings import metadata, resumable

pytestmark = pytest.mark.usefixtures("built_in_preset")


def save(directory, *words):
    config = make_config(typed(*words, task="countdown"))
    (directory / "config.toml").write_text(tomli_w.dumps(to_mapping(config)))
    return config


def test_resuming_takes_the_saved_configuration_and_may_repeat_it(saved_run):
    config = resume_config(saved_run, typed("task.numbers=[3]", task="countdown"))
    assert (config.run.steps, config.run.output) == (50, str(saved_run))
    assert config.tasks["countdown"]["options"] == {"numbers": [3]}


def test_the_directory_may_be_given_by_a_tilde(saved_run, monkeypatch):
    monkeypatch.setenv("HOME", str(saved_run.parent))
    assert resume_config(Path("~", saved_run.name), {}).run.output == str(saved_run)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("optimizer.learning_rate=1e-3", "--resume cannot change optimizer.learning_rate from 1e-06 to 0.001"),
        ("task.numbers=[3, 4]", "--resume cannot change tasks.countdown.options.numbers from [3] to [3, 4]"),
        ("task.maximum=9", "--resume cannot change tasks.countdown.options.maximum from none to 9"),
        ("run.steps=49", "--resume can raise run.steps=50, but not lower it"),
        ("data.prompt_template=none", "--resume cannot change data.prompt_template from compact to none"),
    ],
)
def test_resuming_refuses_to_learn_something_else(saved_run, word, message):
    with pytest.raises(SettingsError) as caught:
        resume_config(saved_run, typed(word))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("words", "ends"),
    [
        (["optimizer.lr_schedule=cosine"], "optimizer.lr_schedule=cosine ends"),
        (["rollout.temperature_end=0.6"], "rollout.temperature_end=0.6 ends"),
        (["algorithm.kl_coefficient=0.1", "algorithm.kl_coefficient_end=0.0"], "algorithm.kl_coefficient_end=0.0"),
        (["optimizer.lr_schedule=linear", "rollout.temperature_end=0.6"], "optimizer.lr_schedule=linear and rollout."),
        (["optimizer.warmup_steps=3"], None),
        ([], None),
    ],
)  # fmt: skip
def test_more_steps_are_refused_where_a_schedule_would_jump(tmp_path, words, ends):
    config = save(tmp_path, "run.steps=50", *words)
    assert resume_config(tmp_path, typed("run.steps=50")) == dataclasses.replace(
        config, run=dataclasses.replace(config.run, output=str(tmp_path))
    )
    if ends is None:
        assert resume_config(tmp_path, typed("run.steps=80")).run.steps == 80
        return
    with pytest.raises(SettingsError) as caught:
        resume_config(tmp_path, typed("run.steps=80"))
    assert f"--resume cannot raise run.steps=50, where {ends}" in str(caught.value)


def test_resuming_leaves_out_what_a_change_leaves_without_effect(tmp_path):
    save(tmp_path, "eval.num_problems_during=64", "log.rollouts_count=3")
    resumed = resume_config(tmp_path, typed("eval.every=0"))
    assert (resumed.eval.every, resumed.eval.num_problems_during, resumed.log.rollouts_count) == (0, 256, 3)
    with pytest.raises(SettingsError, match=r"eval\.num_problems_during=32 has no effect: eval\.every=0"):
        resume_config(tmp_path, typed("eval.every=0", "eval.num_problems_during=32"))


def test_resuming_names_the_change_and_not_what_it_would_leave_without_effect(tmp_path):
    save(tmp_path, "algorithm.kl_coefficient=0.1", "algorithm.kl_estimator=exact")
    with pytest.raises(SettingsError, match=r"--resume cannot change algorithm\.kl_coefficient from 0\.1 to 0\.0"):
        resume_config(tmp_path, typed("algorithm.kl_coefficient=0.0"))


def test_resuming_where_there_is_no_run_is_one_line(tmp_path):
    with pytest.raises(SettingsError, match="holds no run to resume"):
        resume_config(tmp_path, {})


def test_the_fingerprint_changes_with_what_is_learnt_and_only_with_that():
    config = make_config(typed("task.numbers=[3]", task="countdown"))
    same = make_config(typed("task.numbers=[3]", "run.steps=7", "log.rollouts_every=0", task="countdown"))
    check_fingerprint(same, fingerprint(config))
    for word in ("task.numbers=[4]", "run.seed=1", "optimizer.beta2=0.9"):
        with pytest.raises(SettingsError, match=r"config\.toml has changed since the checkpoint was saved"):
            check_fingerprint(make_config(typed(word, task="countdown")), fingerprint(config))


TRAINER = Path(tinyzero_trainer.__file__).parent
UNDER_WAY = (
    "controller",
    "data",
    "distributed",
    "executors",
    "models",
    "rewards",
    "rollout",
    "sft",
    "training",
    "utils",
)
"""Packages whose errors may end a run after its first step."""

BEFORE_THE_FIRST_STEP = {  # each is raised where a model, its data or an engine is made; resuming changes nothing there
    *("curriculum.buckets", "data.prompt_template", "model.teacher", "model.path", "lora.target_modules", "lora.rank"),
    *("rollout.quantization", "rollout.return_logprobs", "rollout.temperature", "rollout.top_p", "data.test_fraction"),
    *("default_model.layers", "default_model.mlp_size", "default_model.directory", "data.batch_size"),
    *("model.float8", "model.float8_modules"),
    "optimizer.learning_rate",  # says that the run has to start again
}


def strings(file):
    """The texts of a module, docstrings left out, and in f-strings `{}` for each value."""
    tree = ast.parse(file.read_text())
    left_out = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    left_out |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        if id(node) not in left_out and isinstance(node, ast.JoinedStr | ast.Constant):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)


@pytest.mark.slow
def test_what_an_error_of_a_run_under_way_names_can_be_changed_on_resume():
    known = metadata(TrainConfig).keys() | metadata(SftConfig).keys()
    changeable = resumable(TrainConfig) | resumable(SftConfig)
    named = {
        key
        for package in UNDER_WAY
        for file in (TRAINER / package).rglob("*.py")
        for text in strings(file)
        if " " in text
        for key in re.findall(r"(?<![\w.])[a-z_]+\.[a-z_0-9]+", text)
        if key in known
    }
    assert {"data.max_prompt_tokens", "data.max_length", "reward.timeout", "rollout.engine"} <= named
    assert named - changeable == BEFORE_THE_FIRST_STEP
