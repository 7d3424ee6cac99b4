"""What the configuration as a whole derives from its groups."""

import pytest

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import merge, parse_overrides
from tinyzero_trainer.config import RewardConfig, RolloutConfig, RunConfig, TrainConfig
from tinyzero_trainer.config.compose import make_config

ASYNCHRONOUS = (
    "run.executor=ray run.task=toy run.output=run rollout.num_engines=1 rollout.max_async_level=1 "
    "rollout.return_logprobs=always rollout_correction.is_level=token"
)


@pytest.mark.parametrize(
    ("given", "completed"),
    [
        ("overlong", "overlong(limit=64)"),
        ("overlong(buffer=9)", "overlong(limit=64, buffer=9)"),
        ("overlong(limit=50)", "overlong(limit=50)"),
        ("mask_truncated", "mask_truncated"),
    ],
)
def test_wrappers_without_a_limit_get_that_of_the_run(given: str, completed: str) -> None:
    config = TrainConfig(
        run=RunConfig(), reward=RewardConfig(wrappers=(given,)), rollout=RolloutConfig(max_completion_tokens=64)
    )
    assert config.wrappers_with_limit() == (completed,)
    assert config.reward.wrappers == (given,)  # config.toml keeps what the user gave


def changed(words: str) -> TrainConfig:
    return make_config(merge(*(parse_overrides(line.split()) for line in (ASYNCHRONOUS, words))))


@pytest.mark.parametrize(
    "words",
    [
        "",
        "rollout_correction.is_level=sequence",
        # The ratio of these losses is to the engine's probabilities, which are the old ones, and they bound it.
        "rollout_correction.is_level=none algorithm.policy_loss=ppo",
        "rollout_correction.is_level=none algorithm.policy_loss=cispo",
        "algorithm.policy_loss=reinforce",
        "rollout.engine=vllm",
        "run.executor=local rollout.num_engines=0",
        "rollout.max_async_level=9",
    ],
)
def test_old_samples_are_allowed_where_they_are_weighed(words: str) -> None:
    assert changed(words).rollout.max_async_level in (1, 9)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("run.executor=local rollout.num_engines=0 rollout.engine=vllm",
         "'vllm' needs GPUs of its own for that; set run.executor=ray and rollout.num_engines=1 (or more), or take"),
        ("rollout.num_engines=0 rollout.engine=vllm", "GPUs of its own for that; set rollout.num_engines=1"),
        ("rollout.engine=vllm rollout.max_async_level=2",
         "rollout.max_async_level=2 is more than rollout.engine='vllm' can sample ahead of the update"),
        ("rollout.max_async_level=3 rollout_correction.is_level=none algorithm.policy_loss=reinforce",
         "rollout.max_async_level=3 trains on samples of older weights, which"),
        ("rollout_correction.is_level=none rollout.return_logprobs=sample",
         "nothing here weighs; set rollout.return_logprobs=always and rollout_correction.is_level=token"),
        ("rollout_correction.is_level=none algorithm.policy_loss=reinforce", "it has no ratio; set"),
        ("rollout_correction.is_level=none algorithm.policy_loss=gspo", "it has bounds narrower than"),
    ],
)  # fmt: skip
def test_where_old_samples_cannot_be_trained_on_the_message_says_what_to_set(words: str, reason: str) -> None:
    with pytest.raises(SettingsError) as rejected:
        changed(words)
    assert reason in str(rejected.value)
