"""Whether the plan predicts what was measured on a GPU."""

import pytest

from tests.trainer.planned import HALF_B, SHAPES, config_of
from tinyzero_sdk.settings import leaves
from tinyzero_trainer import own_model
from tinyzero_trainer.cards import find_card
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.plan import constants
from tinyzero_trainer.plan.constants import GIB
from tinyzero_trainer.plan.proposals import predict_within, with_settings
from tinyzero_trainer.plan.shape import ModelShape
from tinyzero_trainer.plan.speed import predict_speed


def test_speed_of_what_was_measured() -> None:
    words = ("data.prompts_per_step=128", "rollout.max_tokens=1024", "rollout.engine=vllm")
    card = find_card("NVIDIA H200")
    assert card is not None
    speed = predict_speed(SHAPES[HALF_B], config_of(*words), card, prompt_tokens=140)
    assert speed.rollout == pytest.approx(42_800, rel=0.15)
    assert speed.tokens == 1024 * (140 + 1024)
    assert speed.throughput == pytest.approx(speed.tokens / sum(speed.seconds.values()))


TEN_MILLION = ModelShape(
    "m", 9_782_400, hidden=384, layers=6, heads=6, kv_heads=6, head_size=64, mlp=832, vocabulary=1252, tied=True
)


@pytest.mark.parametrize(
    ("shape", "groups", "prompt", "new", "rate"),
    [
        (SHAPES[HALF_B], 128, 140, 1024, 215_762),
        (SHAPES[HALF_B], 128, 11, 256, 283_899),
        (TEN_MILLION, 1024, 11, 256, 1_460_000),
        (TEN_MILLION, 128, 11, 256, 1_240_000),
    ],
)
def test_tokens_a_second_of_the_torch_engine_as_measured_on_an_h200(
    shape: ModelShape, groups: int, prompt: int, new: int, rate: int
) -> None:
    card = find_card("NVIDIA H200")
    assert card is not None
    config = config_of(f"data.prompts_per_step={groups}", f"rollout.max_tokens={new}")
    assert predict_speed(shape, config, card, prompt).rollout == pytest.approx(rate, rel=0.1)


def test_seconds_of_the_update_as_measured_on_an_h200() -> None:
    card = find_card("NVIDIA H200")
    assert card is not None
    config = config_of("data.prompts_per_step=128", "rollout.max_tokens=1024")
    assert predict_speed(SHAPES[HALF_B], config, card, 140).seconds["update_actor"] == pytest.approx(9.73, rel=0.1)


def test_memory_of_a_small_models_run_as_measured_on_an_h200() -> None:
    measured = {
        "model.compile": None,
        "data.prompts_per_step": 256,
        "rollout.max_tokens": 256,
        "optimizer.micro_batch_tokens": 65_536,
    }
    config = with_settings(TrainConfig(), dict(leaves(own_model.SETTINGS)) | measured)
    memory = predict_within(TEN_MILLION, config, 130 * GIB, 24)
    # What was measured had its exact KL in plain PyTorch: seven copies of a chunk of logits, in float32.
    parts = {part.what: part.size for part in memory.worst.parts}
    held = memory.peak - constants.CONTEXT - parts["allocator"] - parts["gradients on their way"] + 7 * 4 * 2**26
    assert (1 + constants.SLACK) * held == pytest.approx(22.8 * GIB, rel=0.1)  # perf/max_memory_reserved_gb
    assert held == pytest.approx(18.97 * GIB, rel=0.1)  # perf/max_memory_allocated_gb
