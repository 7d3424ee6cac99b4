"""A setting without effect is refused with the reason; a default without effect is dropped."""

import re
from functools import reduce
from typing import get_args

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import build, describe, flatten, merge, parse_overrides, unflatten
from tinyzero_trainer.config import KlEstimator, TrainConfig
from tinyzero_trainer.config.compose import compose, drop_unused
from tinyzero_trainer.config.unused import RULES, default_settings, unused_settings

UNUSED = [
    ("algorithm.policy_loss=reinforce algorithm.clip_ratio_low=0.1", "clips nothing"),
    ("algorithm.policy_loss=cispo algorithm.dual_clip_c=3", "bounds the ratio on both sides"),
    ("run.device=cpu memory.cpu_offload=idle", "has no GPU whose memory it would save"),
    ("algorithm.gamma=0.9", "algorithm.advantage_estimator='grpo' discounts nothing"),
    ("algorithm.max_accepted=4", "algorithm.advantage_estimator='grpo' trains on wrong completions too; take raft"),
    ("algorithm.advantage_estimator=raft algorithm.kl_coefficient=0.1 algorithm.kl_placement=reward",
     "uses no rewards"),
    ("algorithm.advantage_estimator=raft data.max_refill_rounds=2", "needs no rewards that differ"),
    ("model.teacher=tiny", "algorithm.advantage_estimator='grpo' has no teacher; take on_policy_distillation"),
    ("algorithm.advantage_estimator=on_policy_distillation model.teacher=tiny algorithm.gamma=0.9",
     "discounts nothing"),
    ("algorithm.gae_lambda=0.9", "algorithm.advantage_estimator='grpo' has no critic"),
    ("algorithm.kl_estimator=k1", "algorithm.kl_coefficient=0 leaves the KL out"),
    ("algorithm.kl_coefficient_end=0.1", "leaves the KL out"),
    ("algorithm.kl_coefficient=0.1 algorithm.kl_horizon=5", "the coefficient is fixed"),
    ("algorithm.kl_coefficient=0.1 algorithm.kl_target=0.1 algorithm.kl_coefficient_end=0.0", "the coefficient adapts"),
    ("algorithm.kl_coefficient=0.1 algorithm.kl_placement=reward algorithm.kl_estimator=k3+", "only the value counts"),
    ("algorithm.kl_coefficient=0.1 algorithm.kl_placement=reward algorithm.kl_estimator=exact",
     "only the value counts"),
    ("critic.learning_rate=1e-3", "algorithm.advantage_estimator='grpo' has no critic; take gae"),
    ("rollout.group_size=1 algorithm.advantage_estimator=gae data.max_refill_rounds=2", "always all equal"),
    ("model.path=gpt2 default_model.layers=3", "model.path='gpt2' names a model, so none is made"),
    ("rollout.temperature_end=1.0", "it is rollout.temperature itself"),
    ("length_control.every=3", "it is not used with length_control.mode='full'"),
    ("length_control.mode=fixed length_control.max_tokens=64 length_control.min_tokens=8",
     "is not used with length_control.mode='fixed'"),
    ("length_control.mode=adaptive length_control.max_tokens=64", "it is not used with length_control.mode='adaptive'"),
    ("length_control.mode=fixed", "length_control.max_tokens=256 is no less than rollout.max_completion_tokens=256"),
    ("rollout.max_completion_tokens=32 length_control.mode=adaptive",
     "length_control.min_tokens=32 is no less than rollout.max_completion_tokens=32"),
    ("optimizer.min_lr_ratio=0.1", "stays at the peak"),
    ("optimizer.warmup_steps=9 run.steps=9 optimizer.lr_schedule=cosine",
     "optimizer.warmup_steps=9 takes all of run.steps=9"),
    ("rollout.max_completion_tokens=64 run.steps=9 length_control.mode=adaptive",
     "length_control.warmup_steps=10 takes all of run.steps=9"),
    ("optimizer.lr_schedule=cosine optimizer.min_lr_ratio=1", "stays at the peak"),
    ("algorithm.clip_ratio_high=0.3", "with one update a batch nothing has moved yet"),
    ("rollout.return_logprobs=always rollout_correction.is_level=token algorithm.clip_ratio_low=0.1",
     "with one update a batch"),
    ("algorithm.advantage_estimator=gae critic.value_clip_range=0.2", "with one update a batch"),
    ("eval.every=0 eval.num_problems_during=64", "evaluates before and after training only"),
    ("log.project=mine", "only the trackers wandb and trackio"),
    ("rollout.num_engines=2", "run.executor='local' has no such setting; give --gpus N (0 = on the CPU)"),
    ("parallel.world_size=2", "run.executor='local' has no such setting; give --gpus N (0 = on the CPU)"),
    ("ray.max_restarts=1", "run.executor='local' has no such setting"),
    ("vllm.gpu_memory_gb=10", "rollout.engine='torch' has no such setting; give rollout.engine=vllm"),
    ("log.rollouts_every=0 log.rollouts_count=3", "log.rollouts_every=0 writes none"),
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


def test_the_defaults_and_whatever_equals_them_are_never_refused() -> None:
    assert compose(default_settings(), {}, needs_task=False).config == TrainConfig()


def test_one_setting_less_may_leave_another_without_effect() -> None:
    lower = {"optimizer": {"lr_schedule": "cosine", "min_lr_ratio": 0.1, "warmup_steps": 9}}
    assert drop_unused(lower, {"run": {"steps": 9}}) == {"optimizer": {"warmup_steps": 9}}


def test_a_default_of_more_mini_batches_than_prompts_yields() -> None:
    lower = {"optimizer": {"num_mini_batches": 4, "beta2": 0.99}}
    assert drop_unused(lower, {"data": {"prompts_per_step": 2}}) == {"optimizer": {"beta2": 0.99}}


@pytest.mark.parametrize("values", [{"run": {"steps": "many"}}, {"algorithm": 3}, {"eval": {"nonesuch": 1}}])
def test_values_of_a_wrong_type_are_left_to_the_check_of_types(values: dict) -> None:
    with pytest.raises(SettingsError):
        compose(values, {"eval": {"num_problems_during": 3}}, needs_task=False)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_whatever_suits_a_model_composes_without_what_has_no_effect(data: st.DataObject) -> None:
    """For any part of a preset, and any switches that go together, the configuration stands."""
    preset = {
        "algorithm": {"kl_coefficient": 0.1, "kl_estimator": "exact", "kl_target": 0.1, "kl_horizon": 99},
        "critic": {"learning_rate": 1e-3},
        "length_control": {"step_tokens": 16, "slack_tokens": 8},
        "eval": {"num_problems_during": 64, "every": 5},
        "optimizer": {"lr_schedule": "cosine", "min_lr_ratio": 0.1},
        "log": {"project": "mine", "rollouts_count": 3},
    }
    chosen = data.draw(st.sets(st.sampled_from([key for key, _ in flatten(preset)])))
    lower = unflatten({key: value for key, value in flatten(preset) if key in chosen})
    switches = [
        {}, {"algorithm": {"kl_coefficient": 0.0}}, {"algorithm": {"kl_placement": "reward", "kl_coefficient": 0.1}},
        {"algorithm": {"advantage_estimator": "gae"}}, {"length_control": {"mode": "adaptive"}}, {"eval": {"every": 0}},
        {"optimizer": {"lr_schedule": "constant"}}, {"log": {"rollouts_every": 0}},
    ]  # fmt: skip
    upper = reduce(merge, data.draw(st.lists(st.sampled_from(switches), max_size=3)), {})
    try:
        compose(upper, {}, needs_task=False)
    except SettingsError:
        reject()  # one switch leaves another without effect: the user's own mistake
    assert list(unused_settings(compose(upper, lower, needs_task=False).config)) == []


def test_rules_name_settings_that_exist() -> None:
    keys = {field.key for field in describe(TrainConfig)}
    for group, names, _, reason in RULES:
        named = re.findall(r"(?<![\w.])[a-z_]+\.[a-z_]+(?![\w.:/])", reason)
        assert {f"{group}.{name}" for name in names.split() if name != "*"} | set(named) <= keys


def test_the_names_that_settings_take_are_those_of_functions() -> None:
    from tinyzero_trainer.algorithms.advantages import find_estimator
    from tinyzero_trainer.algorithms.kinds import ESTIMATORS, POLICY_LOSSES
    from tinyzero_trainer.algorithms.kl import SAMPLED
    from tinyzero_trainer.algorithms.losses import find_policy_loss

    assert all(find_estimator(name).__name__ == name for name in ESTIMATORS)
    assert all(find_policy_loss(name).__name__ == name for name in POLICY_LOSSES)
    assert set(get_args(KlEstimator)) == {*SAMPLED, "exact"}
