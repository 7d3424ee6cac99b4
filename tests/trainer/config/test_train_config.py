"""What the configuration as a whole derives from its groups."""

import pytest

from tinyzero_trainer.config import RewardConfig, RolloutConfig, RunConfig, TrainConfig


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
