"""Generating with the engine `torch` without CUDA graphs: what the plan says of its time and its memory."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.configurations import call
from tests.trainer.plan.planned import GRPO, HALF_B, MODELS, SPECS, config_of
from tinyzero_trainer.estimate import constants
from tinyzero_trainer.estimate.engine_memory import engine_of
from tinyzero_trainer.estimate.speed import decoding_step, predict_speed
from tinyzero_trainer.estimate.workload import workload_of
from tinyzero_trainer.hardware.gpu_specs import find_gpu_spec, known_gpus
from tinyzero_trainer.models.hub import find_spec

H200 = find_gpu_spec("H200")
GEMMA = {
    "model_type": "gemma3_text",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "num_hidden_layers": 26,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "vocab_size": 262_144,
}


@given(MODELS, st.sampled_from(known_gpus()), st.integers(1, 2048), st.integers(1, 4096), st.sampled_from([2, 4]))
@settings(deadline=None)
def test_no_step_is_promised_to_be_as_fast_as_with_graphs(
    name: str, gpu: Any, sequences: int, length: int, number: int
) -> None:
    config = config_of(f"model.dtype={'float32' if number == 4 else 'bfloat16'}")
    with_graphs, without = (
        decoding_step(replace(SPECS[name], graphs=graphs), config, gpu, sequences, length) for graphs in (True, False)
    )
    longer = decoding_step(replace(SPECS[name], graphs=False), config, gpu, sequences, length + 100)
    assert with_graphs < without <= longer


def test_with_few_sequences_the_host_is_what_takes_long() -> None:
    assert H200 is not None
    spec, config = replace(SPECS[HALF_B], graphs=False), config_of(*GRPO)
    few = decoding_step(spec, config, H200, 8, 500)
    assert few == constants.PLAIN_STEP + 24 * constants.PLAIN_LAYER
    assert decoding_step(spec, config, H200, 1024, 1000) > few  # copying the cache is
    assert decoding_step(replace(spec, kv_heads=14), config, H200, 1024, 1000) != pytest.approx(few)
    graphs = decoding_step(SPECS[HALF_B], config, H200, 8, 500)
    assert few > 10 * graphs


def test_the_copies_of_one_layers_cache_are_counted() -> None:
    config = config_of(*GRPO, "rollout.max_num_seqs=64")
    spec = replace(SPECS[HALF_B], graphs=False)
    work = workload_of(config)
    cache = 2 * 64 * work.sequence * spec.cache_numbers
    assert spec.repeated_heads == 7
    assert engine_of(spec, config, work).awake["KV cache"] == cache + 8 * cache // 24
    alone = replace(spec, kv_heads=14)
    cache = 2 * 64 * work.sequence * alone.cache_numbers
    assert engine_of(alone, config, work).awake["KV cache"] == cache + cache // 24


@pytest.mark.slow
def test_plan_says_that_vllm_is_faster(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    from tinyzero_trainer.cli import plan_report as view

    monkeypatch.setattr(view.stdout, "_width", 80)
    (tmp_path / "config.json").write_text(json.dumps(GEMMA))
    assert not find_spec(str(tmp_path)).graphs
    words = ("plan", "--model", str(tmp_path), "--gpu", "H200", *GRPO)
    slow = " ".join(call(capsys, *words)[1].split())
    assert "rollout.engine=torch has no CUDA graphs for this architecture" in slow
    assert "CUDA graphs" not in call(capsys, *words, "rollout.engine=vllm")[1]
    assert "CUDA graphs" not in call(capsys, "plan", "--model", HALF_B, "--gpu", "H200")[1]
    config = config_of(*GRPO, "rollout.max_num_seqs=512")
    other = config_of(*GRPO, "rollout.max_num_seqs=512", "rollout.engine=vllm")
    assert H200 is not None
    spec = find_spec(str(tmp_path))
    assert predict_speed(spec, config, H200).seconds["gen"] > predict_speed(spec, other, H200).seconds["gen"]


@pytest.mark.gpu
@pytest.mark.parametrize(("sequences", "length"), [(16, 200), (256, 200), (256, 1000)])
def test_a_measured_step_takes_about_what_is_planned(sequences: int, length: int) -> None:
    """Within a factor of 2.5: hosts differ."""
    import time

    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from tinyzero_trainer.models.device import choose_device
    from tinyzero_trainer.models.spec import spec_from_config
    from tinyzero_trainer.rollout.decoder import TransformersDecoder

    device = choose_device("cuda")
    kind = find_gpu_spec(torch.cuda.get_device_name(device))
    assert kind is not None, "needs a GPU that hardware/gpu_specs.py knows the speed of"
    settings = {key: value for key, value in GEMMA.items() if key != "model_type"}
    described = AutoConfig.for_model("gemma3_text", **settings)
    with device:
        model = AutoModelForCausalLM.from_config(described, dtype=torch.bfloat16).eval()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    decoder = TransformersDecoder(model)
    tokens = torch.ones(sequences, length, dtype=torch.long, device="cuda")
    mask = torch.ones_like(tokens)
    mask[::2, :3] = 0
    with torch.inference_mode():
        decoder.start(tokens, mask, 1)
        drawn = tokens[:, 0]
        for _ in range(5):
            decoder.step(drawn)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(20):
            decoder.step(drawn)
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - begun) / 20
    planned = decoding_step(spec_from_config("gemma", GEMMA, parameters), config_of(), kind, sequences, length)
    print(f"{sequences} sequences of {length}: {1e3 * seconds:.1f} ms a step, planned {1e3 * planned:.1f} ms")
    assert 0.4 < planned / seconds < 2.5
