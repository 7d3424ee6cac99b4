"""What the plan proposes where a run does not fit: that it helps, is needed, and comes in the right order."""

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.configurations import call
from tests.trainer.plan.planned import GRPO, HALF_B, MODELS, SETTINGS, SPECS, config_of
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.estimate.constants import COMMON_GPU
from tinyzero_trainer.estimate.fit import predict_within, settle, usable, with_settings
from tinyzero_trainer.estimate.memory import predict_memory
from tinyzero_trainer.estimate.speed import predict_speed
from tinyzero_trainer.hardware.gpu import GIB
from tinyzero_trainer.hardware.gpu_specs import find_gpu_spec
from tinyzero_trainer.plan.plan import candidate_changes, make_plan


@pytest.mark.slow
@given(MODELS, SETTINGS, st.integers(6, 200))
@settings(max_examples=40, deadline=None)
def test_what_is_proposed_fits_and_is_a_configuration(name: str, values: dict[str, Any], gib: int) -> None:
    config = with_settings(TrainConfig(), values)
    found = make_plan(SPECS[name], config, gib * GIB)
    changed = with_settings(config, {change.key: change.value for change in found.changes})
    assert predict_within(SPECS[name], changed, found.limit).peak == found.memory.peak
    assert found.fits == (found.memory.peak <= usable(gib * GIB))
    assert all(change.value != change.before and change.trade_off for change in found.changes)
    assert config.rollout.engine == "vllm" or not any(change.key.startswith("vllm.") for change in found.changes)


@pytest.mark.slow
@given(MODELS, SETTINGS, st.integers(6, 200))
@settings(max_examples=40, deadline=None)
def test_nothing_is_proposed_that_is_not_needed(name: str, values: dict[str, Any], gib: int) -> None:
    config = with_settings(TrainConfig(), values)
    found = make_plan(SPECS[name], config, gib * GIB)
    gpu = find_gpu_spec(COMMON_GPU)
    assert gpu is not None
    step = partial(lambda gpu, config: predict_speed(SPECS[name], config, gpu).step, gpu)
    if not found.fits:
        return
    made = {change.key: change.value for change in found.changes}
    for key in made.keys() - {
        "vllm.gpu_memory_gb",
        "vllm.sleep_mode",
        "rollout.max_num_seqs",
        "optimizer.learning_rate",
    }:
        others = {other: value for other, value in made.items() if other != key and not other.startswith("vllm")}
        without = settle(SPECS[name], with_settings(config, others), found.limit)
        if predict_memory(SPECS[name], without).peak <= found.limit:
            assert step(without) > step(found.config)


@pytest.mark.slow
def test_a_larger_gpu_needs_no_more_changes() -> None:
    config = config_of(*GRPO, "rollout.max_completion_tokens=1024", "rollout.engine=vllm")
    spec = SPECS["Qwen/Qwen2.5-3B"]
    fits = [make_plan(spec, config, gib * GIB).fits for gib in range(4, 160, 4)]
    assert fits == sorted(fits)
    assert fits[0] is False
    dearest = [
        max(
            (ORDER.index((change.key, change.value)) for change in found.changes if change.key.startswith("mem")),
            default=-1,
        )
        for gib in range(20, 160, 20)
        if (found := make_plan(spec, config, gib * GIB))
    ]
    assert dearest == sorted(dearest, reverse=True)


ORDER = [("memory.cpu_offload", "idle"), ("memory.activation_checkpointing", True), ("memory.cpu_offload", "always")]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "vllm"])
@pytest.mark.parametrize(
    ("recipe", "words"), [("tinyzero-grpo", GRPO), ("tinyzero-ppo", ("data.prompts_per_step=256",))]
)
def test_the_run_that_ended_without_memory_fits_a_gpu_of_24_gb(
    recipe: str, words: tuple[str, ...], engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*words, f"rollout.engine={engine}")
    arguments = ["--task", "countdown", "--model", HALF_B, "--recipe", recipe, *words]
    code, out, _ = call(capsys, "plan", *arguments, "--gpu-memory", "24GB", "--prompt-tokens", "256", "--json")
    found = json.loads(out)
    assert (code, found["fits"]) == (0, True)
    assert found["requested"]["peak"] > 24e9
    assert found["proposed"]["peak"] <= 23.5 * GIB
    assert (found["work"]["completions"], found["work"]["completion"]) == (256, 1024)
    # The words are taken by train, and mean what was planned.
    proposed = config_of(*words, *found["overrides"].split(), recipe=recipe)
    assert predict_within(SPECS[HALF_B], proposed, usable(24 * 10**9), 256).peak == found["proposed"]["peak"]
    assert "lora.rank" not in found["overrides"]
    assert "memory.cpu_offload=always" not in found["overrides"]


def test_the_order_of_what_is_tried() -> None:
    config = config_of("rollout.engine=vllm", "vllm.sleep_mode=false", "vllm.gpu_memory_gb=30")
    assert [next(iter(move)) for move in candidate_changes(config)] == [
        "vllm.sleep_mode",
        "rollout.max_num_seqs",
        "optimizer.micro_batch_tokens",
        "memory.cpu_offload",
        "memory.activation_checkpointing",
        "memory.cpu_offload",
        "lora.rank",
    ]


def test_vllm_is_left_awake_where_there_is_room() -> None:
    config = config_of(*GRPO, "rollout.max_completion_tokens=1024", "rollout.engine=vllm")
    awake = settle(SPECS[HALF_B], config, 130 * GIB).vllm
    asleep = settle(SPECS[HALF_B], config, 30 * GIB).vllm
    assert (awake.sleep_mode, asleep.sleep_mode) == (False, True)
    assert awake.gpu_memory_gb == asleep.gpu_memory_gb
    cramped = settle(SPECS[HALF_B], config, 12 * GIB).vllm
    assert cramped.gpu_memory_gb < awake.gpu_memory_gb
    kept = settle(SPECS[HALF_B], with_settings(config, {"vllm.gpu_memory_gb": 5.0, "vllm.sleep_mode": False}), 12 * GIB)
    assert (kept.vllm.gpu_memory_gb, kept.vllm.sleep_mode) == (5.0, False)


def test_the_torch_engine_keeps_its_memory_where_there_is_room() -> None:
    config, spec = config_of("rollout.max_completion_tokens=1024", "rollout.max_num_seqs=256"), SPECS[HALF_B]
    kept, given_back = (predict_within(spec, config, gib * GIB) for gib in (60, 30))
    assert kept.peak - given_back.peak > 4 * GIB
    assert not given_back.worst.of("rollout")
    [reading] = [part.size for part in kept.phases[0].parts if part.what == "reading prompts"]
    assert kept.worst.of("rollout") == kept.phases[0].of("rollout") - reading > 4 * GIB
