"""A setting without effect is refused with the reason; a default without effect is dropped."""

import re
from functools import reduce

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import build, flatten, merge, parse_overrides, unflatten
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.compose import compose
from tinyzero_trainer.config.settings import ReadBy, UsedIf, default_settings, drop_unused, metadata, unused_settings

UNUSED = [
    ("algorithm.policy_loss=reinforce algorithm.clip_ratio_low=0.1", "clips nothing"),
    ("algorithm.policy_loss=cispo algorithm.dual_clip_c=3", "algorithm.policy_loss='cispo' has no dual clip"),
    ("algorithm.gamma=0.9", "algorithm.advantage_estimator='grpo' discounts nothing"),
    ("algorithm.max_accepted=4", "algorithm.advantage_estimator='grpo' trains on wrong completions too; take raft"),
    ("algorithm.advantage_estimator=raft algorithm.kl_coefficient=0.1 algorithm.kl_placement=reward",
     "uses no rewards"),
    ("model.teacher=tiny", "algorithm.advantage_estimator='grpo' has no teacher; take on_policy_distillation"),
    ("critic.learning_rate=1e-3", "estimator='grpo' has no critic; take gae, or your own that needs one"),
    ("algorithm.kl_estimator=k1", "algorithm.kl_coefficient=0 leaves the KL out"),
    ("algorithm.kl_coefficient=0.1 algorithm.kl_placement=reward algorithm.kl_estimator=k3+", "only the value counts"),
    ("algorithm.clip_ratio_high=0.3", "a single update per batch has nothing to clip"),
    ("rollout.return_logprobs=always rollout_correction.is_level=token algorithm.clip_ratio_low=0.1",
     "a single update per batch"),
    ("rollout.max_completion_tokens=32 length_control.mode=adaptive",
     "length_control.min_tokens=32 is no less than rollout.max_completion_tokens=32"),
    ("optimizer.warmup_steps=9 run.steps=9 optimizer.lr_schedule=cosine",
     "optimizer.warmup_steps=9 takes all of run.steps=9"),
    ("rollout.num_engines=2", "run.executor='local' has no such setting; give --gpus N (0 = on the CPU)"),
    ("parallel.world_size=2", "run.executor='local' has no such setting; give --gpus N (0 = on the CPU)"),
    ("vllm.gpu_memory_gb=10", "rollout.engine='torch' has no such setting; give rollout.engine=vllm"),
    ("optimizer.num_mini_batches=64", "it is more than data.prompts_per_step=32; lower it or raise the batch"),
]  # fmt: skip
"""Settings, the last of which has no effect, and a part of the reason."""


@pytest.mark.parametrize(("line", "reason"), UNUSED)
def test_a_setting_without_effect_is_refused_with_the_reason_and_dropped_as_a_default(line: str, reason: str) -> None:
    words = parse_overrides(line.split())
    key = line.split()[-1].partition("=")[0]
    with pytest.raises(SettingsError) as caught:
        compose(words, {}, needs_task=False)
    assert re.fullmatch(rf"{re.escape(key)}=.* has no effect: .*{re.escape(reason)}.*", str(caught.value))
    settings = dict(flatten(words))
    default = unflatten({key: settings.pop(key)})
    composition = compose(unflatten(settings), default, needs_task=False)
    assert composition.model_defaults == {}
    assert composition.config == build(TrainConfig, unflatten(settings))


def test_every_condition_can_be_asked_and_every_reason_told() -> None:
    config = TrainConfig()
    for key, said in metadata(TrainConfig).items():
        for entry in said:
            if isinstance(entry, UsedIf | ReadBy):
                assert isinstance(entry.holds(config, key), bool)
                assert "{" not in entry.reason.format_map(vars(config))


def test_the_defaults_and_whatever_equals_them_are_never_refused() -> None:
    assert compose(default_settings(TrainConfig), {}, needs_task=False).config == TrainConfig()


VALUES = {
    "algorithm": {"kl_coefficient": 0.1, "kl_estimator": "exact", "kl_target": 0.1, "kl_horizon": 99, "gamma": 0.9},
    "critic": {"learning_rate": 1e-3, "value_clip_range": 0.2},
    "length_control": {"mode": "adaptive", "warmup_steps": 200, "step_tokens": 16, "slack_tokens": 8},
    "rollout_correction": {"is_level": "token", "is_threshold": 3.0},
    "eval": {"num_problems_during": 64, "every": 5},
    "optimizer": {"lr_schedule": "cosine", "min_lr_ratio": 0.1, "warmup_steps": 100, "num_mini_batches": 4},
    "curriculum": {"buckets": 1, "ema_decay": 0.7},
    "log": {"project": "mine", "rollouts_count": 3},
}
SWITCHES = [
    {"algorithm": {"kl_coefficient": 0.0}}, {"algorithm": {"kl_placement": "reward", "kl_coefficient": 0.1}},
    {"algorithm": {"advantage_estimator": "gae"}}, {"length_control": {"mode": "adaptive"}}, {"eval": {"every": 0}},
    {"optimizer": {"lr_schedule": "constant"}}, {"log": {"rollouts_every": 0}}, {"data": {"prompts_per_step": 2}},
    {"rollout": {"return_logprobs": "always"}},
]  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(st.sets(st.sampled_from([key for key, _ in flatten(VALUES)])), st.lists(st.sampled_from(SWITCHES), max_size=3))
def test_without_what_has_no_effect_all_the_rest_has_one(chosen: set[str], switches: list[dict]) -> None:
    """For any defaults, and any switches that go together: what has no effect leaves nothing else without one."""
    defaults = unflatten({key: value for key, value in flatten(VALUES) if key in chosen})
    requested = reduce(merge, switches, {})
    if list(unused_settings(build(TrainConfig, requested))):
        reject()  # one switch leaves another without effect: the user's own mistake
    config = compose(requested, defaults, needs_task=False).config
    assert list(unused_settings(config)) == []


def test_what_is_requested_is_kept_for_the_error_to_name() -> None:
    values = {"optimizer": {"lr_schedule": "cosine", "warmup_steps": 9}, "run": {"steps": 9}}
    assert drop_unused(values, {}, TrainConfig) == {"optimizer": {"warmup_steps": 9}, "run": {"steps": 9}}
    assert drop_unused(values, {"optimizer": {"lr_schedule": "cosine"}}, TrainConfig) == values
