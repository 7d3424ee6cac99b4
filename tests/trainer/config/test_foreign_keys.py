"""Names of other trainers are answered with the key here."""

import random

import pytest

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import TABLE, describe
from tinyzero_trainer.config import SftConfig, TrainConfig
from tinyzero_trainer.config.compose import gather
from tinyzero_trainer.config.foreign_keys import FOREIGN_KEYS, FOREIGN_WORDS, foreign_names

KEYS = {field.key for field in describe(TrainConfig) if field.type != TABLE}


@pytest.mark.parametrize("table", ["", "actor_rollout_ref.actor."])
@pytest.mark.parametrize("cls", [TrainConfig, SftConfig])
def test_each_name_of_another_trainer_is_answered_with_ours_and_its_meaning(cls: type, table: str) -> None:
    meanings = {field.key: f"{field.key}: {field.help}" for field in describe(cls)}
    answers = {name: meanings[ours] for ours, names in foreign_names(cls).items() for name in names}
    answers |= {name: words for words, names in FOREIGN_WORDS.items() for name in names.split()}
    answers = {f"{table}{name}": answer for name, answer in answers.items() if table or name not in meanings}
    for name in random.sample(sorted(answers), 9):
        with pytest.raises(SettingsError) as caught:
            gather(cls, {}, [f"{name}=1"])
        assert str(caught.value) == f"unknown key {name!r}; here it is {answers[name]}"


def test_no_name_of_another_trainer_is_a_key_or_has_two_answers() -> None:
    for cls in (TrainConfig, SftConfig):
        known = {field.key for field in describe(cls)}
        names = [name for names in foreign_names(cls).values() for name in names]
        names += " ".join(FOREIGN_WORDS.values()).split()
        assert len(set(names)) == len(names)
        assert not [key for key in known if any(f".{key}".endswith(f".{name}") and key == name for name in names)]
    assert {key for keys in FOREIGN_KEYS for key in keys.split()} <= KEYS | {f.key for f in describe(SftConfig)}


def test_a_task_may_call_its_options_what_it_likes() -> None:
    assert gather(TrainConfig, {}, ["task.beta=1", "run.task=countdown"])["tasks"]["countdown"]["options"] == {
        "beta": 1
    }
