"""Names of other trainers are answered with the key here."""

import pytest

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import TABLE, describe
from tinyzero_trainer.config import SftConfig, TrainConfig
from tinyzero_trainer.config.compose import gather
from tinyzero_trainer.config.foreign_keys import FOREIGN_KEYS, FOREIGN_WORDS, foreign_names

KEYS = {field.key for field in describe(TrainConfig) if field.type != TABLE}


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("lr=1e-5", "optimizer.learning_rate"),
        ("actor_rollout_ref.actor.optim.lr=1e-5", "optimizer.learning_rate"),
        ("batch_size=4", "data.prompts_per_step"),
        ("beta=0.1", "algorithm.kl_coefficient"),
        ("num_generations=4", "rollout.group_size"),
        ("rollout.n=4", "rollout.group_size"),
        ("max_steps=3", "run.steps"),
        ("trainer.nnodes=2", "parallel.world_size"),
    ],
)
def test_a_name_of_another_trainer_is_answered_with_ours_and_its_meaning(word: str, ours: str) -> None:
    help = next(field.help for field in describe(TrainConfig) if field.key == ours)
    with pytest.raises(SettingsError) as caught:
        gather(TrainConfig, {}, [word])
    assert str(caught.value) == f"unknown key {word.partition('=')[0]!r}; here it is {ours}: {help}"


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("custom_reward_function.path=x.py", "the option --task"),
        ("trainer.resume_mode=auto", "the option --resume"),
        ("logging_steps=1", "nothing to set"),
    ],
)
def test_a_name_of_another_trainer_may_be_answered_by_something_else_than_a_key(word: str, ours: str) -> None:
    with pytest.raises(SettingsError, match=f"unknown key '{word.partition('=')[0]}'; here it is {ours}"):
        gather(TrainConfig, {}, [word])


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
