"""What a run chooses for the memory settings that are left to it."""

import tomllib
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.advisor.planned import (
    GRPO_1024,
    H200,
    HALF_B,
    MODELS,
    SETTINGS,
    SEVEN_B,
    SPECS,
    TYPED,
    config_of,
    on,
    target_of,
)
from tinyzero_sdk.settings import merge, read_toml
from tinyzero_trainer.advisor import target_gpu
from tinyzero_trainer.advisor.auto import MEMORY_SETTINGS, choose, left_open, resolve_auto
from tinyzero_trainer.advisor.fit import predict_within, settle
from tinyzero_trainer.advisor.memory import predict_memory
from tinyzero_trainer.advisor.target_gpu import TargetGpu
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.compose import compose
from tinyzero_trainer.config.resume import resume_config
from tinyzero_trainer.config.settings import setting, with_settings
from tinyzero_trainer.distributed.sizes import usable
from tinyzero_trainer.hardware.gpu import GIB

BATCH = ("data.prompts_per_step=128", "rollout.group_size=8", "rollout.max_completion_tokens=1024")
CARD_24GB = TargetGpu("a card", 24 * 10**9, H200, host=128 * GIB)
ONE, TWO = "Qwen/Qwen2.5-3B", SEVEN_B
CHOSEN_BY_PLAN = [key for key, trade in MEMORY_SETTINGS.items() if trade.chosen_by == "plan" and "dp_" not in key]


@pytest.mark.parametrize(
    ("model", "gpus", "recipe", "target", "micro_batch", "recomputes", "offload"),
    [
        (ONE, 0, None, target_of("H200"), 16384, False, "none"),
        (TWO, 2, None, target_of("H200"), 8192, False, "none"),
        # Recomputing takes less time than launching eight times as many micro-batches.
        (HALF_B, 0, None, CARD_24GB, 65536, True, "none"),
        (HALF_B, 0, "tinyzero-ppo", CARD_24GB, 65536, True, "idle"),
        (HALF_B, 0, None, target_of("RTX 4090"), 8192, False, "none"),
        (HALF_B, 0, None, target_of("H200"), 65536, False, "none"),
    ],
)
def test_a_run_fits_without_any_memory_setting(
    model: str, gpus: int, recipe: str | None, target: TargetGpu, micro_batch: int, recomputes: bool, offload: str
) -> None:
    config = config_of(*BATCH, model=model, recipe=recipe)
    config = on(config, gpus) if gpus else config
    found, line = resolve_auto(config, SPECS[model], target)
    assert predict_within(SPECS[model], found, usable(target.free)).peak <= usable(target.free)
    chosen = (found.optimizer.micro_batch_tokens, found.memory.activation_checkpointing, found.memory.cpu_offload)
    assert chosen == (micro_batch, recomputes, offload)
    assert left_open(found) == []
    assert resolve_auto(found, SPECS[model], target) == (found, "")
    assert f"optimizer.micro_batch_tokens={micro_batch}" in line
    assert target.name in line
    assert "\n" not in line
    assert with_settings(found, dict.fromkeys(left_open(config), "auto")) == config  # nothing else is changed


@pytest.mark.parametrize(("model", "reshards"), [(HALF_B, False), (SEVEN_B, True)])
def test_ranks_keep_gathered_weights_where_they_fit(model: str, reshards: bool) -> None:
    config, limit = on(config_of(*BATCH, model=model), 2), usable(target_of("H200").free)
    found, line = resolve_auto(config, SPECS[model], target_of("H200"))
    assert found.memory.reshard_after_forward is reshards
    assert f"memory.reshard_after_forward={str(reshards).lower()}" in line
    keeping = replace(found, memory=replace(found.memory, reshard_after_forward=False))
    assert (predict_within(SPECS[model], keeping, limit).peak > limit) == reshards


@pytest.mark.parametrize(
    "word",
    [
        *("optimizer.micro_batch_tokens=4096", "memory.activation_checkpointing=true", "memory.cpu_offload=always"),
        *("memory.recompute_logits=false", "memory.recompute_logits=true"),
        *("rollout.max_num_seqs=24", "vllm.gpu_memory_gb=40.0", "vllm.sleep_mode=true"),
    ],
)
def test_what_the_user_gives_stands(word: str) -> None:
    words = (*BATCH, "rollout.engine=vllm", word)
    found, line = resolve_auto(config_of(*words), SPECS[HALF_B], target_of("H200"))
    key = word.partition("=")[0]
    assert setting(found, key) == setting(config_of(*words), key) != "auto"
    assert f" {key}=" not in line
    assert not left_open(found)


def test_where_all_is_given_or_nothing_is_known_nothing_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    given_ = config_of(*TYPED, "rollout.max_num_seqs=64", "rollout.engine=vllm", "vllm.gpu_memory_gb=9")
    given_ = with_settings(given_, {"vllm.sleep_mode": True})
    monkeypatch.setattr(target_gpu, "present_gpu", lambda device: None if device == "cpu" else target_of("H200"))
    on_cpus = config_of("run.executor=ray", "ray.gpus=0", "ray.address=head:6379")
    for config in (given_, on_cpus, config_of("run.device=cpu"), config_of(model="nobody/nothing")):
        assert resolve_auto(config) == (config, "")
    plain = config_of("run.device=cpu")
    assert (plain.optimizer.token_budget, plain.memory.offload) == (16384, None)
    assert not left_open(resolve_auto(config_of())[0])


def test_a_resumed_run_keeps_what_was_chosen_unless_auto_is_typed(tmp_path: Path) -> None:
    from tinyzero_trainer.checkpoint.run_directory import RunDirectory

    chosen, _ = resolve_auto(config_of(*GRPO_1024, "run.output=" + str(tmp_path)), SPECS[HALF_B], CARD_24GB)
    RunDirectory(tmp_path).save_config(chosen)
    saved = tomllib.loads((tmp_path / "config.toml").read_text())
    assert saved["memory"] == {
        "activation_checkpointing": True,
        "recompute_logits": True,
        "cpu_offload": "none",
        "reshard_after_forward": "auto",  # of several ranks
    }
    assert resume_config(tmp_path, {}) == chosen
    anew = resume_config(tmp_path, {"optimizer": {"micro_batch_tokens": "auto"}})
    assert left_open(anew)[0] == "optimizer.micro_batch_tokens"
    # On a machine without a GPU the file is as good.
    on_cpu = merge(read_toml(tmp_path / "config.toml"), {"run": {"device": "cpu"}})
    assert compose(on_cpu).config.memory.offload is None


@pytest.mark.slow
@given(MODELS, SETTINGS, st.integers(6, 200), st.sampled_from([0, 2, 8]), st.sets(st.sampled_from(CHOSEN_BY_PLAN)))
@settings(max_examples=15, deadline=None)
def test_what_is_chosen_fits_wherever_any_choice_fits(
    name: str, values: dict[str, Any], gib: int, gpus: int, keys: set[str]
) -> None:
    config, limit = with_settings(TrainConfig(), {**values, **dict.fromkeys(keys, "auto")}), usable(gib * GIB)
    config = on(config, gpus) if gpus else config
    found = choose(SPECS[name], config, limit)
    if found.memory.peak <= limit:
        return
    choices = {
        "optimizer.micro_batch_tokens": (2048, 16384),
        "memory.activation_checkpointing": (True, False),
        "memory.cpu_offload": ("always", "idle", "none"),
    }
    open_ = [key for key in choices if key in keys]
    for combination in product(*(choices[key] for key in open_)):
        other = settle(SPECS[name], with_settings(config, dict(zip(open_, combination, strict=True))), limit)
        assert predict_memory(SPECS[name], other).peak > limit
