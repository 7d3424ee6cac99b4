"""Recipes: each builds a configuration wherever it is used, and sets no more than what defines it."""

from dataclasses import replace
from pathlib import Path

import pytest

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import build, flatten, merge
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config import model_defaults as presets
from tinyzero_trainer.config.compose import compose, gather, make_config
from tinyzero_trainer.config.recipes import find_recipe, recipe_names
from tinyzero_trainer.config.settings import default_settings

ROOT = Path(__file__).parents[3]
NAMES = recipe_names()
TINY = {"run": {"task": "countdown"}}
LARGE = {"run": {"task": "countdown"}, "model": {"path": "Qwen/Qwen2.5-7B"}}
EXPLICIT_DEFAULTS = {
    "algorithm.advantage_estimator",  # what an algorithm is named for
    "algorithm.loss_aggregation",
    "algorithm.kl_coefficient",  # the rest stand against what suits the tiny model
    "algorithm.kl_estimator",
    "optimizer.num_mini_batches",
}


TEACHER = {"model": {"teacher": "tiny"}}


def with_recipe(values, name):
    return merge(merge(values, TEACHER if name == "distill" else {}), {"run": {"recipe": name}})


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_stands_alone_with_the_tiny_model_and_with_one_that_nothing_suits(name: str) -> None:
    recipe = find_recipe(name)
    alone = build(TrainConfig, merge(TEACHER if name == "distill" else {}, merge(recipe.full_size, recipe.settings)))
    large, tiny = make_config(with_recipe(LARGE, name)), make_config(with_recipe(TINY, name))
    assert (large.algorithm, large.optimizer, large.rollout) == (alone.algorithm, alone.optimizer, alone.rollout)
    for key, value in flatten(recipe.settings):
        for config in (large, tiny):
            held = getattr(getattr(config, key.split(".")[0]), key.split(".")[1])
            assert (list(held) if isinstance(held, tuple) else held) == value
    assert tiny.rollout.max_completion_tokens == 192  # figures for another size yield to what suits the model
    assert tiny.optimizer.learning_rate == 2e-4
    assert (tiny.run.recipe, large.run.recipe) == (name, name)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_sets_no_more_than_it_means(name: str) -> None:
    recipe, defaults = find_recipe(name), dict(flatten(default_settings(TrainConfig)))
    settings = dict(flatten(recipe.settings))
    assert settings
    assert {key for key, value in settings.items() if value == defaults.get(key)} <= EXPLICIT_DEFAULTS
    assert [key for key, value in flatten(recipe.full_size) if value == defaults.get(key)] == []
    assert settings.keys().isdisjoint(dict(flatten(recipe.full_size)))
    sizes = {"run.steps", "rollout.max_completion_tokens", "optimizer.learning_rate", "optimizer.micro_batch_tokens"}
    assert settings.keys().isdisjoint(sizes)


def test_there_is_one_for_each_algorithm_and_no_two_are_the_same() -> None:
    named = "adaptive cispo dapo dr_grpo gspo grpo ppo reinforce_pp rloo tinyzero-grpo tinyzero-ppo"
    named += " distill expert_iteration"
    assert set(named.split()) <= set(NAMES)
    configs = [make_config(with_recipe(LARGE, name)) for name in NAMES]
    assert len({repr(replace(config, run=replace(config.run, recipe=None))) for config in configs}) == len(NAMES)


def test_recipes_mean_what_their_papers_say() -> None:
    dapo, gspo = (make_config(with_recipe(LARGE, name)) for name in ("dapo", "gspo"))
    assert (dapo.algorithm.clip_ratio_low, dapo.algorithm.clip_ratio_high) == (0.2, 0.28)
    assert dapo.algorithm.loss_aggregation == "token-mean"
    assert (dapo.wrappers_with_limit(), dapo.data.max_refill_rounds > 0) == (("overlong(limit=256)",), True)
    assert (gspo.algorithm.clip_ratio_low, gspo.algorithm.clip_ratio_high) == (3e-4, 4e-4)
    assert gspo.algorithm.loss_aggregation == "seq-mean-token-mean"
    for name in ("dapo", "gspo", "dr_grpo", "cispo", "ppo"):
        assert make_config(with_recipe(TINY, name)).algorithm.kl_coefficient == 0


# ---- layers ----------------------------------------------------------------------------------------------------------


def test_what_suits_the_model_yields_to_the_recipe_and_both_to_the_user(monkeypatch) -> None:
    preset = {"algorithm": {"kl_coefficient": 0.1, "kl_estimator": "exact"}, "optimizer": {"num_mini_batches": 2}}
    monkeypatch.setattr(presets, "_read", lambda model: {"settings": preset, "warmed_on": []})
    composition = compose({"run": {"task": "x", "recipe": "gspo"}, "algorithm": {"clip_ratio_high": 0.1}})
    algorithm = composition.config.algorithm
    assert (algorithm.policy_loss, algorithm.loss_aggregation) == ("gspo", "seq-mean-token-mean")
    assert (algorithm.clip_ratio_low, algorithm.clip_ratio_high) == (3e-4, 0.1)
    assert (algorithm.kl_coefficient, algorithm.kl_estimator) == (0.0, "k3")
    assert composition.config.optimizer.num_mini_batches == 2  # against 4 for full size
    assert composition.model_defaults == {"optimizer.num_mini_batches": 2}


def test_a_setting_against_the_recipe_says_whose_it_is() -> None:
    with pytest.raises(SettingsError) as caught:
        make_config(merge(with_recipe(LARGE, "ppo"), {"algorithm": {"advantage_estimator": "grpo"}}))
    assert str(caught.value) == (
        "algorithm.gae_lambda=0.95 of the recipe ppo has no effect: algorithm.advantage_estimator='grpo' has no "
        "critic; give algorithm.gae_lambda=1.0 too, or leave the recipe out"
    )
    settings = {"algorithm": {"advantage_estimator": "grpo", "gae_lambda": 1.0}}
    assert make_config(merge(with_recipe(LARGE, "ppo"), settings)).algorithm.advantage_estimator == "grpo"


def test_a_recipe_may_be_a_file_of_the_users_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[algorithm]\nentropy_coefficient = 0.5\n[full_size.rollout]\nmax_completion_tokens = 999\n")
    large, tiny = make_config(with_recipe(LARGE, str(file))), make_config(with_recipe(TINY, str(file)))
    assert (large.algorithm.entropy_coefficient, large.rollout.max_completion_tokens) == (0.5, 999)
    assert (tiny.algorithm.entropy_coefficient, tiny.rollout.max_completion_tokens) == (0.5, 192)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[algorithm]\nclip_ratio_hig = 0.5", "mine.toml: unknown key 'algorithm.clip_ratio_hig'; "
         "did you mean 'algorithm.clip_ratio_hi"),
        ("[full_size.rollot]\nmax_completion_tokens = 5", "mine.toml: unknown key 'rollot.max_completion_tokens'; "
         "did you mean"),
        ("about = 3", "mine.toml: about: got 3; input should be a valid string"),
        ("[run]\nrecipe = 'grpo'", "a recipe cannot name another in run.recipe"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_recipe_names_its_file(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(content)
    with pytest.raises(SettingsError) as caught:
        make_config(with_recipe(TINY, str(file)))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_of_one_recipe_is_not_taken_with_another(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[run]\ntask = 'countdown'\nrecipe = 'dapo'\n")
    assert make_config(gather(TrainConfig, {}, [], file)).algorithm.clip_ratio_high == 0.28
    assert make_config(gather(TrainConfig, {"run.recipe": "dapo"}, [], file)).algorithm.clip_ratio_high == 0.28
    with pytest.raises(SettingsError, match=r"config\.toml was made with the recipe dapo, .* give the recipe grpo"):
        gather(TrainConfig, {"run.recipe": "grpo"}, [], file)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_recipe_trains(name: str, warm_model: Path, toy_task: str, tmp_path: Path) -> None:
    from tinyzero_trainer.controller.loop import train
    from tinyzero_trainer.monitoring.metrics_log import read_metrics

    values = {
        "run": {"task": toy_task, "output": str(tmp_path / "run"), "steps": 2, "device": "cpu"},
        "task": {"limit": 5},
        "model": {"path": str(warm_model)},
        "data": {"prompt_template": "base", "test_fraction": 0.4, "prompts_per_step": 8},
        "rollout": {"max_completion_tokens": 8},
        "eval": {"num_problems": 8, "greedy": False, "every": 0},
    }
    if name == "adaptive":
        values["length_control"] = {"min_tokens": 4, "warmup_steps": 1, "every": 1, "step_tokens": 1, "slack_tokens": 1}
    train(make_config(with_recipe(values, name)))
    last = list(read_metrics(tmp_path / "run" / "metrics.jsonl"))[-1]
    assert last["step"] == 2
    assert last["actor/grad_norm"] > 0
    assert ("critic/vf_loss" in last) == ("ppo" in name)
    assert ("actor/kl_loss" in last or "actor/reward_kl_penalty" in last) == (last["actor/kl_coef"] > 0)
