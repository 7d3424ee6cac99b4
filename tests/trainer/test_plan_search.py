"""That the plan proposes the shortest step there is room for."""

import time
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.planned import MODELS, SETTINGS, SHAPES, config_of
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.estimate.constants import GIB
from tinyzero_trainer.estimate.fit import predict_within, settle, with_settings
from tinyzero_trainer.estimate.memory import host_bytes
from tinyzero_trainer.estimate.speed import predict_speed
from tinyzero_trainer.hardware.gpu_specs import GpuSpec, find_gpu_spec
from tinyzero_trainer.models.spec import ModelSpec
from tinyzero_trainer.plan.candidates import Plan
from tinyzero_trainer.plan.search import WORTH, make_plan

RTX_4090 = find_gpu_spec("RTX 4090") or GpuSpec("", 0, 0, 0, 0)


def step(shape: ModelSpec, config: TrainConfig) -> float:
    return predict_speed(shape, config, RTX_4090).step


def planned(shape: ModelSpec, config: TrainConfig, gib: float, host: int | None = None) -> Plan:
    return make_plan(shape, config, int(gib * GIB), card=RTX_4090, host=host)


def others(shape: ModelSpec, config: TrainConfig, limit: int) -> list[TrainConfig]:
    """Every combination of the moves that fits, written out plainly; without an adapter."""
    offloads = [None, "idle", "always"]
    ranges: dict[str, list[Any]] = {
        "optimizer.micro_batch_tokens": [config.optimizer.micro_batch_tokens, 2048, 4096, 8192, 16384, 32768],
        "memory.cpu_offload": offloads[offloads.index(config.memory.cpu_offload) :],
        "memory.activation_checkpointing": [config.memory.activation_checkpointing, True],
        "rollout.max_num_seqs": [config.rollout.max_num_seqs, 512, 256, 128, 64, 32, 16],
    }
    most, found = config.optimizer.micro_batch_tokens, []
    for values in product(*ranges.values()):
        settings = dict(zip(ranges, values, strict=True))
        count = settings["rollout.max_num_seqs"]
        if settings["optimizer.micro_batch_tokens"] > most or (count or 9999) > (config.rollout.max_num_seqs or 9999):
            continue
        settled = settle(shape, with_settings(config, settings), limit)
        if predict_within(shape, settled, limit).peak <= limit:
            found.append(settled)
    return found


@pytest.mark.slow
@given(MODELS, SETTINGS, st.integers(6, 80), st.floats(1.02, 4))
@settings(max_examples=40, deadline=None)
def test_more_memory_makes_no_step_slower(name: str, values: dict[str, Any], gib: int, factor: float) -> None:
    shape, config = SHAPES[name], with_settings(TrainConfig(), values)
    less, more = (planned(shape, config, size) for size in (gib, gib * factor))
    assert more.fits or not less.fits
    if less.fits and less.config.lora.rank == more.config.lora.rank:  # else they train something else
        assert step(shape, more.config) <= WORTH * step(shape, less.config)


def test_the_fewest_sequences_are_tried_though_they_are_no_half() -> None:
    """Of 480, where 30 is the last half."""
    words = ("rollout.max_num_seqs=480", "model.dtype=float32", "lora.rank=16", "optimizer.num_mini_batches=4")
    words += ("data.prompts_per_step=4", "rollout.group_size=2", "optimizer.micro_batch_tokens=621")
    words += (
        "algorithm.advantage_estimator=gae",
        "algorithm.kl_coefficient=0.001",
        "rollout.max_completion_tokens=257",
    )
    name = "meta-llama/Llama-3.2-1B"
    found = planned(SHAPES[name], config_of(*words, "model.compile=false", model=name), 10)
    assert (found.fits, found.config.rollout.max_num_seqs) == (True, 16)


@pytest.mark.slow
@given(MODELS, SETTINGS, st.integers(6, 60))
@settings(max_examples=5, deadline=None)
def test_nothing_else_that_fits_is_faster(name: str, values: dict[str, Any], gib: int) -> None:
    shape, config = SHAPES[name], with_settings(TrainConfig(), values)
    found = planned(shape, config, gib)
    fitting = others(shape, config, found.limit)
    if fitting:
        assert found.fits
        assert found.config.lora.rank == config.lora.rank
        assert step(shape, found.config) <= WORTH * min(step(shape, other) for other in fitting)


@pytest.mark.slow
@given(MODELS, SETTINGS, st.integers(6, 200))
@settings(max_examples=40, deadline=None)
def test_what_was_asked_and_fits_is_changed_only_where_that_pays(name: str, values: dict[str, Any], gib: int) -> None:
    shape, config = SHAPES[name], with_settings(TrainConfig(), values)
    found = planned(shape, config, gib)
    if found.wanted.peak > found.limit:
        return
    settled = settle(shape, config, found.limit)
    if {change.key for change in found.changes} <= {"vllm.gpu_memory_gb", "vllm.sleep_mode", "rollout.max_num_seqs"}:
        assert found.config == settled
    else:
        assert step(shape, settled) > WORTH * step(shape, found.config)


@pytest.mark.parametrize("gib", [8, 12, 16, 24])
def test_a_small_card_is_not_planned_slower_than_it_need_be(gib: int) -> None:
    name = "Qwen/Qwen2.5-1.5B"
    config = config_of("data.prompts_per_step=128", model=name)
    begun = time.process_time()
    found = planned(SHAPES[name], config, gib)
    assert time.process_time() - begun < 10  # against a search of everything
    assert found.fits
    assert step(SHAPES[name], found.config) < {8: 165, 12: 155, 16: 151, 24: 149}[gib]


def test_a_tie_goes_to_the_fewest_changes() -> None:
    """Smaller micro-batches take no longer by the prediction, and are not proposed where idle weights are enough."""
    shape = SHAPES["Qwen/Qwen2.5-0.5B"]
    config = with_settings(TrainConfig(), {"rollout.max_completion_tokens": 1024, "data.prompts_per_step": 32})
    found = planned(shape, config, 60)
    assert "optimizer.micro_batch_tokens" not in {change.key for change in found.changes}
    tight = planned(shape, config, 20)
    [change] = [change for change in tight.changes if change.key == "optimizer.micro_batch_tokens"]
    larger = with_settings(tight.config, {"optimizer.micro_batch_tokens": 2 * change.value})
    assert predict_within(shape, larger, tight.limit).peak > tight.limit


def test_nothing_is_moved_into_memory_that_the_machine_has_not() -> None:
    name = "Qwen/Qwen2.5-7B"
    shape, config = SHAPES[name], config_of(model=name)
    rich, poor = planned(shape, config, 24), planned(shape, config, 24, host=64 * GIB)
    assert rich.config.memory.cpu_offload == "always"
    assert host_bytes(shape, rich.config) > 100 * GIB
    assert host_bytes(shape, poor.config) <= 64 * GIB
    asked = replace(config, memory=replace(config.memory, cpu_offload="always"))
    assert planned(shape, asked, 24, host=64 * GIB).config.memory.cpu_offload == "always"  # he wants it so
