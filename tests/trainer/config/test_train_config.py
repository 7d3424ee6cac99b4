"""What the configuration as a whole derives from its groups."""

from typing import Any

import pytest

from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.config import RewardConfig, RolloutConfig, RunConfig, TrainConfig
from tinyzero_trainer.config.compose import make_config

DEDICATED = {"run": {"executor": "ray", "task": "toy", "output": "run"}, "rollout": {"num_engines": 1}}
ONE_STEP_OFF: dict[str, dict[str, Any]] = {
    "rollout": {"num_engines": 1, "max_async_level": 1, "return_logprobs": "always"},
    "rollout_correction": {"is_level": "token"},
}


@pytest.mark.parametrize(
    ("given", "completed"),
    [
        ("overlong", "overlong(limit=64)"),
        ("overlong(buffer=9)", "overlong(limit=64, buffer=9)"),
        ("overlong(limit=50)", "overlong(limit=50)"),
        ("cosine", "cosine(limit=64)"),
        ("mask_truncated", "mask_truncated"),
    ],
)
def test_wrappers_without_a_limit_get_that_of_the_run(given: str, completed: str) -> None:
    config = TrainConfig(
        run=RunConfig(), reward=RewardConfig(wrappers=(given,)), rollout=RolloutConfig(max_completion_tokens=64)
    )
    assert config.wrappers_with_limit() == (completed,)
    assert config.reward.wrappers == (given,)  # config.toml keeps what the user gave


def configured(**groups: dict[str, Any]) -> TrainConfig:
    values = {**DEDICATED, **ONE_STEP_OFF}
    return make_config({**values, **{name: {**values.get(name, {}), **group} for name, group in groups.items()}})


def test_one_step_off_policy_is_allowed_where_old_samples_are_weighed() -> None:
    assert configured().rollout.max_async_level == 1
    assert configured(rollout_correction={"is_level": "sequence"}).rollout.max_async_level == 1
    # The ratio of these losses is to the engine's probabilities, which are the old ones, and they bound it.
    for loss in ("ppo", "cispo"):
        assert (
            configured(rollout_correction={"is_level": None}, algorithm={"policy_loss": loss}).rollout.max_async_level
            == 1
        )
    assert configured(algorithm={"policy_loss": "reinforce"}).rollout.max_async_level == 1


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        (
            {"run": {"executor": "local"}, "rollout": {"num_engines": 0}},
            "set run.executor=ray and rollout.num_engines=1",
        ),
        ({"rollout": {"num_engines": 0}}, "the trainer's processes cannot do both at once; set rollout.num_engines=1"),
        (
            {"rollout_correction": {"is_level": None}, "rollout": {"return_logprobs": "sample"}},
            "nothing here weighs; set rollout.return_logprobs=always and rollout_correction.is_level=token",
        ),
        (
            {"rollout_correction": {"is_level": None, "rejection_bounds": [0.5, 2.0]}},
            "nothing here weighs; set rollout.return_logprobs=always",
        ),
        ({"rollout_correction": {"is_level": None}, "algorithm": {"policy_loss": "reinforce"}}, "it has no ratio; set"),
        (
            {"rollout_correction": {"is_level": None}, "algorithm": {"policy_loss": "gspo"}},
            "it has bounds narrower than",
        ),
        ({"run": {"steps": 1}}, "rollout.max_async_level=1 has no effect: run.steps=1 has no next batch"),
        (
            {"rollout": {"engine": "vllm"}, "vllm": {"sleep_mode": True}},
            "vllm.sleep_mode=True has no effect: with rollout.max_async_level=1 engines never sleep",
        ),
    ],
)
def test_where_one_step_off_policy_cannot_work_the_message_says_what_to_set(
    groups: dict[str, Any], reason: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        configured(**groups)
    assert reason in str(refused.value)
