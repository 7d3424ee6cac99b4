"""What `tinyzero plan` predicts and proposes: exact counts, laws that every prediction keeps, and the words."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
)

from benchmarks import memory as memory_benchmark
from tests.trainer.configurations import call, said
from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import leaves, show
from tinyzero_trainer import forward, head, memory_errors, mismatch, own_model, sharding
from tinyzero_trainer.cards import find_card, known_cards
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.configure import make_config
from tinyzero_trainer.doctor.facts import Card, Driver
from tinyzero_trainer.plan import advice, constants, target
from tinyzero_trainer.plan.constants import GIB
from tinyzero_trainer.plan.find_shape import WELL_KNOWN, find_shape, well_known
from tinyzero_trainer.plan.memory import old_logprobs_pass, predict_memory
from tinyzero_trainer.plan.proposals import make_plan, moves, predict_within, setting, settle, usable, with_settings
from tinyzero_trainer.plan.shape import ModelShape
from tinyzero_trainer.plan.speed import predict_speed
from tinyzero_trainer.plan.target import Target, present_card, read_size
from tinyzero_trainer.plan.work import work_of
from tinyzero_trainer.rollout.graph import engine as graph_engine

HALF_B = "Qwen/Qwen2.5-0.5B"
SHAPES = {name: shape for name in WELL_KNOWN if (shape := well_known(name)) is not None}
RTX_4090 = Target("NVIDIA GeForce RTX 4090", 24 * GIB, find_card("RTX 4090"))

GRPO = ("data.prompts_per_step=32", "rollout.samples_per_prompt=8")
"""As TinyZero's users run it on one card, with 1,024 new tokens."""


def config_of(*words: str, recipe: str | None = None, model: str = HALF_B) -> TrainConfig:
    return make_config(said(*words, f"model.path={model}", task="countdown", recipe=recipe))


# ---- shapes ----------------------------------------------------------------------------------------------------------


COMMON: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}

ARCHITECTURES: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**COMMON),
    "llama, grouped, tied": LlamaConfig(**COMMON, num_key_value_heads=2, tie_word_embeddings=True),
    "llama, biases": LlamaConfig(**COMMON, attention_bias=True, mlp_bias=True),
    "llama, wide heads": LlamaConfig(**COMMON, head_dim=32, num_key_value_heads=1),
    "mistral": MistralConfig(**COMMON, num_key_value_heads=2),
    "qwen2": Qwen2Config(**COMMON, num_key_value_heads=2),
    "qwen2, tied": Qwen2Config(**COMMON, num_key_value_heads=4, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**COMMON, num_key_value_heads=2, head_dim=32),
    "qwen3, biases, tied": Qwen3Config(
        **COMMON, num_key_value_heads=2, head_dim=16, attention_bias=True, tie_word_embeddings=True
    ),
    "gpt2": GPT2Config(vocab_size=100, n_embd=64, n_layer=2, n_head=4),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_parameters_are_counted_exactly(name: str, tmp_path: Path) -> None:
    config = ARCHITECTURES[name]
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shape = find_shape(str(tmp_path))
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert shape.tied == (model.get_input_embeddings().weight is model.get_output_embeddings().weight)
    assert (shape.hidden, shape.layers, shape.vocabulary) == (64, config.num_hidden_layers, 100)
    if name != "gpt2":
        attention = model.model.layers[0].self_attn
        assert (shape.attention, shape.kv) == (attention.q_proj.out_features, attention.k_proj.out_features)


PUBLISHED = {
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
}
"""By the safetensors on the Hub."""


def test_well_known_models_need_no_download() -> None:
    assert {name: shape.parameters for name, shape in SHAPES.items()} == PUBLISHED
    assert well_known("Qwen/Qwen2.5-0.5B-Instruct") == replace(SHAPES[HALF_B], name="Qwen/Qwen2.5-0.5B-Instruct")
    assert well_known("Qwen/Qwen2.5-0.5B-Something") is None


def test_the_tiny_model_and_a_directory(toy_model: Any, toy_model_path: Path) -> None:
    assert find_shape(None) == find_shape("tiny")
    assert find_shape(None).parameters == 653_824
    assert find_shape(str(toy_model_path)).parameters == toy_model.parameters


def test_the_hubs_cache_is_read_before_anything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--org--name" / "snapshots" / "abc"
    ARCHITECTURES["qwen2"].save_pretrained(folder)
    assert find_shape("org/name", download=False).hidden == 64
    with pytest.raises(SettingsError, match="org/other is not in the Hub's cache"):
        find_shape("org/other", download=False)


def test_what_is_no_language_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="does not describe a language model"):
        find_shape(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(SettingsError, match="hidden_size"):
        find_shape(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "nobody-knows"}')
    with pytest.raises(SettingsError, match="nobody-knows"):
        find_shape(str(tmp_path))


# ---- what is counted agrees with the code ----------------------------------------------------------------------------


def test_constants_are_those_of_the_code() -> None:
    assert constants.HEAD_ELEMENTS[2] == head.CHUNK_ELEMENTS[torch.bfloat16]
    assert constants.HEAD_ELEMENTS[4] == head.CHUNK_ELEMENTS[torch.float32]
    assert constants.EXACT_ELEMENTS == forward.CHUNK_ELEMENTS
    assert constants.COMPILE_FROM == sharding.COMPILED_FROM
    assert (constants.SLOTS, constants.PREFILL_TOKENS) == (graph_engine.SLOTS, graph_engine.PREFILL_TOKENS)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("optimizer.mini_batches=2",),
        ("rollout.logprobs=always",),
        ("algorithm.kl_coefficient=0.1", "algorithm.kl_in=reward"),
        ("rollout.logprobs=always", "mismatch.weights=token"),
    ],
)
def test_when_the_policy_goes_over_the_batch_before_its_update(words: tuple[str, ...]) -> None:
    config = config_of(*words)
    assert old_logprobs_pass(config) == (mismatch.old_logprobs_source(config) == "policy")


def kept_for_backward(layers: int, tokens: int, *, compiled: bool) -> int:
    """Bytes that autograd keeps of a model's forward pass."""
    config = Qwen2Config(**COMMON | {"num_hidden_layers": layers}, num_key_value_heads=2)
    model = Qwen2ForCausalLM(config).to(torch.bfloat16)
    for layer in model.model.layers if compiled else ():
        layer.forward = torch.compile(layer.forward, dynamic=True, backend="aot_eager_decomp_partition")
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        states = model.model(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=False).last_hidden_state
    assert states.requires_grad
    return sum(kept.values())


@pytest.mark.filterwarnings("ignore")  # the compiler has many for itself
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_activations_of_a_layer_are_what_autograd_keeps(compiled: bool) -> None:
    tokens = 256
    measured = (kept_for_backward(5, tokens, compiled=compiled) - kept_for_backward(3, tokens, compiled=compiled)) / 2
    shape = ModelShape(
        "m", 0, hidden=64, layers=1, heads=4, kv_heads=2, head_size=16, mlp=96, vocabulary=100, tied=False
    )
    words = (
        f"model.compile={str(compiled).lower()}",
        f"optimizer.micro_batch_tokens={tokens}",
        "rollout.max_tokens=64",
    )
    memory = predict_memory(shape, config_of(*words), prompt_tokens=64)
    phase = next(phase for phase in memory.phases if phase.name == "update_actor")
    [planned] = [part.size for part in phase.parts if part.what == "activations"]
    assert planned == pytest.approx(measured, rel=0.02)


# ---- laws of memory and time -----------------------------------------------------------------------------------------

SETTINGS = st.fixed_dictionaries(
    {
        "rollout.engine": st.sampled_from(["torch", "vllm"]),
        "rollout.max_tokens": st.integers(1, 4096),
        "rollout.max_sequences": st.none() | st.integers(8, 2048),
        "data.prompts_per_step": st.integers(4, 512),
        "rollout.samples_per_prompt": st.integers(2, 16),
        "optimizer.micro_batch_tokens": st.integers(256, 65536),
        "optimizer.mini_batches": st.integers(1, 4),
        "memory.checkpoint_activations": st.booleans(),
        "memory.offload": st.sampled_from([None, "idle", "always"]),
        "model.compile": st.sampled_from([None, False, True]),
        "model.dtype": st.sampled_from(["auto", "float32"]),
        "algorithm.kl_coefficient": st.sampled_from([0.0, 0.001]),
        "algorithm.advantage": st.sampled_from(["grpo", "gae"]),
        "lora.rank": st.sampled_from([0, 16]),
    }
)
MODELS = st.sampled_from(sorted(SHAPES))
LARGER = ["rollout.max_tokens", "data.prompts_per_step", "rollout.max_sequences"]


def configured(values: dict[str, Any]) -> TrainConfig:
    if values["rollout.engine"] == "vllm":
        values = {**values, "vllm.gpu_memory": 20.0, "vllm.sleep": False}
    return with_settings(TrainConfig(), values)


@given(MODELS, SETTINGS, st.sampled_from(LARGER), st.integers(1, 3000))
@settings(max_examples=40, deadline=None)
def test_more_of_anything_takes_no_less_memory(name: str, values: dict[str, Any], key: str, more: int) -> None:
    if key == "rollout.max_sequences" and values[key] is None:
        values = {**values, key: 8}
    before = predict_memory(SHAPES[name], configured(values)).peak
    assert predict_memory(SHAPES[name], configured({**values, key: values[key] + more})).peak >= before


@given(SETTINGS)
@settings(max_examples=40, deadline=None)
def test_a_larger_model_takes_more_memory_and_time(values: dict[str, Any]) -> None:
    family = ["Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-3B", "Qwen/Qwen2.5-7B"]
    config, card = configured(values), find_card("H200")
    assert card is not None
    sizes = [predict_memory(SHAPES[name], config) for name in family]
    updates = [next(phase.total for phase in memory.phases if phase.name == "update_actor") for memory in sizes]
    assert updates == sorted(updates)
    times = [predict_speed(SHAPES[name], config, card).step for name in family]
    assert times == sorted(times)


@given(MODELS, SETTINGS)
@settings(max_examples=40, deadline=None)
def test_no_saving_setting_takes_more_memory(name: str, values: dict[str, Any]) -> None:
    dear = {**values, "memory.checkpoint_activations": False, "memory.offload": None}
    peaks = [
        predict_memory(SHAPES[name], configured({**dear, **cheaper})).peak
        for cheaper in (
            {},
            {"memory.offload": "idle"},
            {"memory.offload": "idle", "memory.checkpoint_activations": True},
            {"memory.offload": "always", "memory.checkpoint_activations": True},
        )
    ]
    assert peaks == sorted(peaks, reverse=True)


@given(MODELS, SETTINGS)
@settings(max_examples=40, deadline=None)
def test_the_parts_make_the_whole(name: str, values: dict[str, Any]) -> None:
    config = configured(values)
    memory = predict_memory(SHAPES[name], config)
    for phase in memory.phases:
        assert all(part.size > 0 and part.what for part in phase.parts)
        assert phase.total == sum(phase.of(role) for role in ("policy", "critic", "reference", "rollout", "process"))
        assert not phase.of("critic") or config.algorithm.needs_critic
        assert not phase.of("reference") or config.algorithm.kl_coefficient
    card = find_card("RTX 4090")
    assert card is not None
    speed = predict_speed(SHAPES[name], config, card)
    assert speed.seconds.keys() - {"reward"} == {phase.name for phase in memory.phases}
    assert all(seconds > 0 for seconds in speed.seconds.values())


# ---- proposals -------------------------------------------------------------------------------------------------------


@given(MODELS, SETTINGS, st.integers(6, 200))
@settings(max_examples=40, deadline=None)
def test_what_is_proposed_fits_and_is_a_configuration(name: str, values: dict[str, Any], gib: int) -> None:
    config = with_settings(TrainConfig(), values)
    found = make_plan(SHAPES[name], config, gib * GIB)
    changed = with_settings(config, {change.key: change.value for change in found.changes})
    assert predict_within(SHAPES[name], changed, found.limit).peak == found.memory.peak
    assert found.fits == (found.memory.peak <= usable(gib * GIB))
    assert all(change.value != change.before and change.costs for change in found.changes)
    assert config.rollout.engine == "vllm" or not any(change.key.startswith("vllm.") for change in found.changes)
    if found.wanted.peak <= found.limit:
        assert {change.key for change in found.changes} <= {"vllm.gpu_memory", "vllm.sleep", "rollout.max_sequences"}


@given(MODELS, SETTINGS, st.integers(6, 200))
@settings(max_examples=40, deadline=None)
def test_nothing_is_proposed_that_is_not_needed(name: str, values: dict[str, Any], gib: int) -> None:
    config = with_settings(TrainConfig(), values)
    found = make_plan(SHAPES[name], config, gib * GIB)
    if not found.fits:
        return
    made = {change.key: change.value for change in found.changes}
    for key in made.keys() - {"vllm.gpu_memory", "vllm.sleep", "rollout.max_sequences", "optimizer.learning_rate"}:
        others = {other: value for other, value in made.items() if other != key and not other.startswith("vllm")}
        without = settle(SHAPES[name], with_settings(config, others), found.limit)
        assert predict_memory(SHAPES[name], without).peak > found.limit


def test_a_larger_card_needs_no_more_changes() -> None:
    config = config_of(*GRPO, "rollout.max_tokens=1024", "rollout.engine=vllm")
    shape = SHAPES["Qwen/Qwen2.5-3B"]
    fits = [make_plan(shape, config, gib * GIB).fits for gib in range(4, 160, 4)]
    assert fits == sorted(fits)
    assert fits[0] is False
    dearest = [
        max(
            (ORDER.index((change.key, change.value)) for change in found.changes if change.key.startswith("mem")),
            default=-1,
        )
        for gib in range(20, 160, 20)
        if (found := make_plan(shape, config, gib * GIB))
    ]
    assert dearest == sorted(dearest, reverse=True)


ORDER = [("memory.offload", "idle"), ("memory.checkpoint_activations", True), ("memory.offload", "always")]


@pytest.mark.parametrize("engine", ["torch", "vllm"])
@pytest.mark.parametrize(
    ("recipe", "words"), [("tinyzero-grpo", GRPO), ("tinyzero-ppo", ("data.prompts_per_step=256",))]
)
def test_the_run_that_ended_without_memory_fits_a_card_of_24_gb(
    recipe: str, words: tuple[str, ...], engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*words, f"rollout.engine={engine}")
    arguments = ["--task", "countdown", "--model", HALF_B, "--recipe", recipe, *words]
    code, out, _ = call(capsys, "plan", *arguments, "--gpu-memory", "24GB", "--prompt-tokens", "256", "--json")
    found = json.loads(out)
    assert (code, found["fits"]) == (0, True)
    assert found["asked"]["peak"] > 24 * GIB
    assert found["proposed"]["peak"] <= 23.5 * GIB
    assert (found["work"]["completions"], found["work"]["completion"]) == (256, 1024)
    # The words are taken by train, and mean what was planned.
    proposed = config_of(*words, *found["words"].split(), recipe=recipe)
    assert predict_within(SHAPES[HALF_B], proposed, usable(24 * GIB), 256).peak == found["proposed"]["peak"]
    assert "lora.rank" not in found["words"]
    assert "memory.offload=always" not in found["words"]


def test_the_order_of_what_is_tried() -> None:
    config = config_of("rollout.engine=vllm", "vllm.sleep=false", "vllm.gpu_memory=30")
    assert [next(iter(move)) for move in moves(config)] == [
        "vllm.sleep",
        "vllm.gpu_memory",
        "rollout.max_sequences",
        "optimizer.micro_batch_tokens",
        "memory.offload",
        "memory.checkpoint_activations",
        "memory.offload",
        "lora.rank",
    ]


def test_vllm_is_left_awake_where_there_is_room() -> None:
    config = config_of(*GRPO, "rollout.max_tokens=1024", "rollout.engine=vllm")
    awake = settle(SHAPES[HALF_B], config, 130 * GIB).vllm
    asleep = settle(SHAPES[HALF_B], config, 30 * GIB).vllm
    assert (awake.sleep, asleep.sleep) == (False, True)
    assert awake.gpu_memory == asleep.gpu_memory
    cramped = settle(SHAPES[HALF_B], config, 12 * GIB).vllm
    assert cramped.gpu_memory < awake.gpu_memory
    kept = settle(SHAPES[HALF_B], with_settings(config, {"vllm.gpu_memory": 5.0, "vllm.sleep": False}), 12 * GIB)
    assert (kept.vllm.gpu_memory, kept.vllm.sleep) == (5.0, False)


def test_the_torch_engine_keeps_its_memory_where_there_is_room() -> None:
    config, shape = config_of("rollout.max_tokens=1024", "rollout.max_sequences=256"), SHAPES[HALF_B]
    kept, given_back = (predict_within(shape, config, gib * GIB) for gib in (60, 30))
    assert kept.peak - given_back.peak > 4 * GIB
    assert not given_back.worst.of("rollout")
    assert kept.worst.of("rollout") == kept.phases[0].of("rollout") > 4 * GIB


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
    in_its_process = memory.peak - constants.CONTEXT
    assert in_its_process == pytest.approx(22.8 * GIB, rel=0.1)  # perf/max_memory_reserved_gb
    [wasted] = [part.size for part in memory.worst.parts if part.what == "allocator"]
    assert in_its_process - wasted == pytest.approx(18.97 * GIB, rel=0.1)  # perf/max_memory_allocated_gb


# ---- cards -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla T4", "T4"),
        ("NVIDIA RTX A1000", None),
        ("Quadro RTX 6000", None),
    ],
)
def test_cards_by_the_drivers_name(driver: str, name: str | None) -> None:
    found = find_card(driver)
    assert (found.name if found else None) == name


def test_every_card_is_found_by_its_own_name() -> None:
    assert {card.name: find_card(card.name) for card in known_cards()} == {card.name: card for card in known_cards()}
    assert all(card.flops == card.tflops * 1e12 > 2e13 and card.bandwidth > 250 for card in known_cards())


@pytest.mark.parametrize(("text", "gib"), [("24GB", 24), ("24 GiB", 24), ("24", 24), ("7.5g", 7.5), ("80gb", 80)])
def test_sizes(text: str, gib: float) -> None:
    assert read_size(text) == gib * GIB


@pytest.mark.parametrize("text", ["", "0", "-3", "24MB", "a lot", "1e3"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(SettingsError, match="give a number of GiB, such as 24GB"):
        read_size(text)


TWO = (Card(0, "NVIDIA H200", (9, 0), 140 * GIB, uuid="aa-1"), Card(1, "NVIDIA L4", (8, 9), 22 * GIB, uuid="bb-2"))


@pytest.mark.parametrize(
    ("device", "visible", "name"),
    [
        ("auto", None, "NVIDIA H200"),
        ("cuda:1", None, "NVIDIA L4"),
        ("cuda:2", None, None),
        ("cpu", None, None),
        ("cuda", "1", "NVIDIA L4"),
        ("cuda:1", "1,0", "NVIDIA H200"),
        ("cuda", "GPU-bb-2", "NVIDIA L4"),
        ("cuda", "", None),
        ("cuda", "-1", None),
    ],
)
def test_the_card_that_is_here(
    device: str, visible: str | None, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "nvidia_driver", lambda _: Driver(cards=TWO))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = present_card(device)
    assert (found.name if found else None) == name


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "nvidia_driver", lambda _: None)


PPO = ("--task", "countdown", "--model", HALF_B, "--recipe", "tinyzero-ppo", "rollout.engine=vllm")


@pytest.mark.parametrize(
    "words",
    [
        (*PPO, "--gpu", "RTX 4090"),
        ("--model", "Qwen/Qwen2.5-7B", "--gpu", "H200", "algorithm.advantage=gae", "algorithm.kl_coefficient=0.1"),
        ("--model", "Qwen/Qwen2.5-7B", "--gpu-memory", "8GB"),
    ],
)
def test_eighty_columns(words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    from tinyzero_trainer.plan import view

    monkeypatch.setattr(view.stdout, "_width", 80)
    code, out, _ = call(capsys, "plan", *words)
    assert max(len(line) for line in out.splitlines() if not line.startswith("tinyzero train")) <= 80
    assert code == (1 if "8GB" in words else 0)
    assert ("to type:" in out) == (code == 0)


def test_without_a_model_it_plans_the_one_that_train_makes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--task", "countdown", "--gpu", "H200", "--json")
    found = json.loads(call(capsys, "plan", *words)[1])
    assert found["model"]["parameters"] == 9_782_400
    assert found["work"]["completions"] == 128 * 16
    smaller = json.loads(call(capsys, "plan", *words, "own_model.layers=4", "data.prompts_per_step=8")[1])
    assert smaller["model"]["layers"] == 4
    assert smaller["work"]["completions"] == 8 * 16
    assert json.loads(call(capsys, "plan", *words, "--model", "tiny")[1])["model"]["parameters"] == 653_824


def test_what_to_type_is_what_was_typed_and_what_is_proposed(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*PPO, "optimizer.micro_batch_tokens=65536", "task.numbers=[3, 4]", "--gpu", "4090")
    out = call(capsys, "plan", *words)[1]
    [line] = [line for line in out.splitlines() if line.startswith("tinyzero train")]
    assert line.startswith(
        f"tinyzero train --task countdown --model {HALF_B} --recipe tinyzero-ppo rollout.engine=vllm"
    )
    assert "'task.numbers=[3, 4]'" in line
    assert line.count("optimizer.micro_batch_tokens=") == 1
    assert "micro_batch_tokens=65536" not in line
    assert " vllm.gpu_memory=" in line
    assert " vllm.sleep=true" in line


def test_it_says_which_card_would_do(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "plan", "--model", "Qwen/Qwen2.5-7B", "--gpu-memory", "8GB", "--json")
    found = json.loads(out)
    assert (code, found["fits"]) == (1, False)
    smaller = {card.memory for card in known_cards() if 8 < card.memory < found["smallest_gib"]}
    config = config_of(model="Qwen/Qwen2.5-7B")
    shape = SHAPES["Qwen/Qwen2.5-7B"]
    assert make_plan(shape, config, int(found["smallest_gib"] * GIB)).fits
    assert not any(make_plan(shape, config, int(size * GIB)).fits for size in smaller)


def test_json_holds_all_that_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(call(capsys, "plan", *PPO, "--gpu", "RTX 4090", "--json")[1])
    assert found["model"]["parameters"] == PUBLISHED[HALF_B]
    assert found["card"] == {"name": "RTX 4090", "memory": 24 * GIB, "usable": usable(24 * GIB)}
    names = [phase["phase"] for phase in found["proposed"]["phases"]]
    assert names == ["gen", "old_log_prob", "ref", "values", "update_critic", "update_actor", "update_weights"]
    assert max(phase["total"] for phase in found["proposed"]["phases"]) == found["proposed"]["peak"]
    assert found["speed"]["step"] == pytest.approx(sum(found["speed"]["seconds"].values()))
    assert {change["key"] for change in found["changes"]} == {word.split("=")[0] for word in found["words"].split()}


@pytest.mark.usefixtures("no_card")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "there is no NVIDIA GPU here to plan for"),
        (("--gpu", "GTX 1080"), "--gpu 'GTX 1080' is not known"),
        (("--gpu-memory", "much"), "--gpu-memory 'much' is not a size"),
        (("--gpu-memory", "24GB", "optimizer.micro_batch_token=3"), "optimizer.micro_batch_tokens"),
        (("--gpu-memory", "24GB", "vllm.sleep=true"), "has no effect"),
        (("--gpu-memory", "24GB", "--model", "./nowhere"), "there is no directory ./nowhere"),
        (("--gpu-memory", "24GB", "--recipe", "grpoo"), "no recipe 'grpoo'"),
    ],
)
def test_wrong_use_is_refused(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "plan", *words)
    assert (code, out) == (2, "")
    assert message in err


def test_a_local_model_is_planned_without_torch(toy_model_path: Path) -> None:
    code = (
        "import sys; from tinyzero_sdk.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    words = ["plan", "--model", str(toy_model_path), "--gpu-memory", "8GB", "rollout.engine=vllm"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert "GiB in phase" in done.stdout
    assert not {"torch", "transformers", "numpy", "pyarrow"} & set(done.stderr.split())


# ---- what train says -------------------------------------------------------------------------------------------------


@pytest.fixture
def small_card(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine with one card, which a test may make smaller."""
    card = SimpleNamespace(target=RTX_4090)
    monkeypatch.setattr(advice, "present_card", lambda device: None if device == "cpu" else card.target)
    return card


def test_train_warns_of_a_run_that_will_not_fit_and_goes_on(
    toy_task: str, toy_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_card: SimpleNamespace,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from tinyzero_trainer import loop

    begun = []
    monkeypatch.setattr(loop, "train", lambda config, **_: begun.append(config))
    words = ["train", "--task", toy_task, "--model", str(toy_model_path), "data.prompts_per_step=512"]
    small_card.target = Target("a small card", GIB // 2, None)
    code, _, err = call(capsys, *words, "--output", str(tmp_path / "run"))
    [line] = [line for line in err.splitlines() if line.startswith("warning:")]
    assert "a small card has 0.5 GiB" in line
    assert "tinyzero plan says more" in line
    assert (code, len(begun)) == (0, 1)
    for changes in ({"target": RTX_4090}, {"target": None}):
        vars(small_card).update(changes)
        assert "warning:" not in call(capsys, *words, "--output", str(tmp_path / "run"))[2]
    small_card.target = Target("a small card", GIB // 2, None)
    assert "warning:" not in call(capsys, *words, "run.device=cpu", "--output", str(tmp_path / "run"))[2]


def test_the_warning_names_the_settings_to_give(small_card: SimpleNamespace) -> None:
    config = config_of(*GRPO, "rollout.max_tokens=1024", "algorithm.kl_coefficient=0.001")
    found = advice.warning(config)
    assert found is not None
    assert found.startswith("update_actor is predicted to take ")
    named = [word for word in found.split() if "=" in word]
    better = config_of(*GRPO, "rollout.max_tokens=1024", "algorithm.kl_coefficient=0.001", *named)
    assert advice.warning(better) is None
    assert "\n" not in found


@pytest.mark.usefixtures("small_card")
def test_nothing_is_said_of_a_model_that_cannot_be_found() -> None:
    assert advice.warning(config_of(model="nobody/nothing")) is None
    assert advice.after_out_of_memory(config_of(model="nobody/nothing")) == "rollout.max_sequences=512"


def test_out_of_memory_names_the_next_setting_of_that_phase(small_card: SimpleNamespace) -> None:
    small_card.target = Target("NVIDIA H200", 140 * GIB, None)  # where it was planned to fit
    config = config_of("rollout.max_tokens=1024", "rollout.max_sequences=256")
    assert advice.after_out_of_memory(config, ["update_actor"]) == "optimizer.micro_batch_tokens=8192"
    assert advice.after_out_of_memory(config, ["gen"]) == "rollout.max_sequences=128"
    values = {"optimizer.micro_batch_tokens": 2048}
    named = []
    while words := advice.after_out_of_memory(with_settings(config, values), ["update_actor"]):
        key, _, value = words.partition("=")
        named.append(words)
        values[key] = {"true": True}.get(value, value)
    assert named == ["memory.offload=idle", "memory.checkpoint_activations=true", "memory.offload=always"]


def test_out_of_memory_where_the_plan_did_not_fit_names_the_whole_plan(small_card: SimpleNamespace) -> None:
    config = config_of("rollout.max_tokens=1024", model="Qwen/Qwen2.5-3B")
    words = advice.after_out_of_memory(config, ["update_actor"])
    assert words == advice.words(make_plan(SHAPES["Qwen/Qwen2.5-3B"], config, 24 * GIB).changes)
    assert "memory.offload=always" in words
    line = memory_errors.out_of_memory(config, "the weights were updated", "Tried to allocate 4.64 GiB")
    assert words in line
    assert "\n" not in line


@given(MODELS, SETTINGS, st.sampled_from(["gen", "update_actor", "elsewhere"]))
@settings(max_examples=30, deadline=None)
def test_what_is_said_after_out_of_memory_may_be_changed_and_helps(
    name: str, values: dict[str, Any], phase: str
) -> None:
    config = with_settings(TrainConfig(), {**values, "model.path": name})
    words = advice.after_out_of_memory(config, [phase], RTX_4090)
    assert not any(word.startswith(("lora", "optimizer.learning_rate")) for word in words.split())
    assert advice.after_out_of_memory(config, [phase], RTX_4090) == words
    for word in words.split():
        key, _, value = word.partition("=")
        assert show(setting(config, key)) != value


def test_a_step_has_no_more_than_its_tokens() -> None:
    work = work_of(config_of("data.prompts_per_step=1", "rollout.samples_per_prompt=2", "rollout.max_tokens=8"), 8)
    assert (work.sequence, work.tokens, work.micro_batch, work.accumulates) == (16, 32, 32, False)
    assert work_of(config_of("rollout.max_tokens=20000"), 8).micro_batch == 20008


# ---- the benchmark ---------------------------------------------------------------------------------------------------


def test_the_benchmark_tells_the_phases_apart() -> None:
    watch = memory_benchmark.Watch([(0.5, 9), (1.5, 30), (2.5, 80), (3.5, 40), (4.5, 90)], before=10)
    names = ["", "gen", "update_actor", "", "gen"]
    marks = [{"name": name, "at": float(at), "allocated": at, "reserved": None} for at, name in enumerate(names, 1)]
    found = memory_benchmark.by_phase(marks, watch)
    assert found["gen"] == {"nvml": 80, "allocated": 5, "reserved": None}
    assert found["update_actor"] == {"nvml": 70, "allocated": 3, "reserved": None}
    assert watch.most() == 80
    assert memory_benchmark.Watch().most() is None


def test_the_benchmark_can_show_a_smaller_card(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, shares = 140 * GIB, []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=whole))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (whole - 30 * GIB, whole))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", shares.append)
    memory_benchmark.on_a_smaller_card(24 * GIB)
    assert torch.cuda.mem_get_info(0) == (0, 24 * GIB)
    assert shares[0] * whole == pytest.approx(24 * GIB - constants.CONTEXT)


def test_the_benchmark_gives_each_key_once() -> None:
    words = ["--recipe", "ppo", "a.b=1", "--model", "x", "c.d=2", "a.b=3"]
    assert memory_benchmark.last_of_each(words) == ["--recipe", "ppo", "--model", "x", "c.d=2", "a.b=3"]
