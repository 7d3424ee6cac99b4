"""`tinyzero recipes` lists, shows and compares recipes."""

import json

import pytest

from tests.trainer.configurations import call
from tinyzero_sdk.settings import describe, flatten
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.recipes import find_recipe, recipe_names

NAMES = recipe_names()


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    code, out, _ = call(capsys, "recipes", *words)
    assert code == 0
    assert all(len(line.rstrip()) <= 80 for line in out.splitlines())
    return out


def test_all_are_listed_with_their_sources(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys)
    for recipe in map(find_recipe, NAMES):
        assert f"{recipe.name} " in out
        assert recipe.about in out
        assert recipe.source in out


@pytest.mark.parametrize("name", NAMES)
def test_one_is_shown_with_its_settings_and_their_help(capsys: pytest.CaptureFixture[str], name: str) -> None:
    out, recipe = shown(capsys, name), find_recipe(name)
    help = {field.key: field.help for field in describe(TrainConfig)}
    for key, _ in [*flatten(recipe.settings), *flatten(recipe.full_size)]:
        assert key in out
        assert help[key].split()[0] in out


def test_two_are_compared_with_the_defaults_of_settings_that_one_does_not_have(capsys):
    out = shown(capsys, "diff", "grpo", "dapo")
    assert ["algorithm.clip_ratio_high", "0.2", "0.28"] in [line.split() for line in out.splitlines()]
    assert shown(capsys, "diff", "grpo", "grpo") == "grpo and grpo have the same settings\n"


def test_recipes_as_json(capsys) -> None:
    listed = json.loads(call(capsys, "recipes", "--json")[1])
    assert [entry["name"] for entry in listed] == NAMES
    assert json.loads(call(capsys, "recipes", "gspo", "--json")[1])["settings"]["algorithm.policy_loss"] == "gspo"
    found = json.loads(call(capsys, "recipes", "diff", "ppo", "tinyzero-ppo", "--json")[1])
    assert found["algorithm.gae_lambda"] == {"ppo": 0.95, "tinyzero-ppo": 1.0}


@pytest.mark.parametrize("words", [["a", "b"], ["diff", "grpo"], ["diff"], ["diff", "a", "b", "c"]])
def test_words_that_make_no_sense_are_one_line(capsys, words: list[str]) -> None:
    code, _, error = call(capsys, "recipes", *words)
    assert (code, len(error.splitlines())) == (2, 1)
    assert "expected nothing, NAME, or diff NAME NAME" in error
