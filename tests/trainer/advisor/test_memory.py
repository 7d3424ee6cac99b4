"""Predicted memory: its laws, what the code holds, and what was measured on a GPU."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import Qwen2Config, Qwen2ForCausalLM

from tests.trainer.advisor.planned import (
    COMMON,
    GRPO_1024,
    H200,
    HALF_B,
    MODELS,
    SETTINGS,
    SEVEN_B,
    SPECS,
    config_of,
    configured,
    on,
    phase_of,
)
from tinyzero_trainer.advisor.auto import MEMORY_SETTINGS
from tinyzero_trainer.advisor.fit import predict_within, settle
from tinyzero_trainer.advisor.memory import Part, _Step, host_bytes, predict_memory, predictions_of
from tinyzero_trainer.advisor.speed import predict_speed
from tinyzero_trainer.config import OptimizerConfig, TrainConfig
from tinyzero_trainer.config.settings import replaced
from tinyzero_trainer.distributed import fsdp as sharding
from tinyzero_trainer.distributed.dtensor import local_shard
from tinyzero_trainer.distributed.fsdp import FsdpOptions
from tinyzero_trainer.distributed.parallel_dims import SINGLE_PROCESS
from tinyzero_trainer.distributed.sizes import usable
from tinyzero_trainer.distributed.workload import workload_of
from tinyzero_trainer.hardware.gpu import GIB
from tinyzero_trainer.models import fused_logprobs as head
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.models.spec import ModelSpec, spec_from_config
from tinyzero_trainer.training.optimizer import Optimizer

SMALL = {"model_type": "qwen2", **COMMON, "num_key_value_heads": 2, "tie_word_embeddings": False}
STATE = ("weights in float32", "AdamW's moments", "gradients in float32")
COMPILED = pytest.mark.nightly(reason="compiles C++; what compiled layers keep changes with torch alone")
LARGER = ["rollout.max_completion_tokens", "data.prompts_per_step", "rollout.max_num_seqs"]


@given(MODELS, SETTINGS, st.sampled_from(LARGER), st.integers(1, 3000))
@settings(max_examples=40, deadline=None)
def test_more_of_anything_takes_no_less_memory(name: str, values: dict[str, Any], key: str, more: int) -> None:
    if key == "rollout.max_num_seqs" and values[key] == "auto":
        values = {**values, key: 8}
    before = predict_memory(SPECS[name], configured(values)).peak
    assert predict_memory(SPECS[name], configured({**values, key: values[key] + more})).peak >= before


@given(SETTINGS)
@settings(max_examples=40, deadline=None)
def test_a_larger_model_takes_more_memory_and_time(values: dict[str, Any]) -> None:
    family = ["Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-3B", "Qwen/Qwen2.5-7B"]
    config = configured(values)
    sizes = [predict_memory(SPECS[name], config) for name in family]
    updates = [next(phase.total for phase in memory.phases if phase.name == "update_actor") for memory in sizes]
    assert updates == sorted(updates)
    # The deepest is not the largest, and where there is little to compute a step takes what launching each layer takes.
    times = [predict_speed(replace(SPECS[name], layers=28), config, H200).step for name in family]
    assert times == sorted(times)


@pytest.mark.slow
@given(MODELS, SETTINGS)
@settings(max_examples=40, deadline=None)
def test_the_parts_make_the_whole(name: str, values: dict[str, Any]) -> None:
    config = configured(values)
    memory = predict_memory(SPECS[name], config)
    for phase in memory.phases:
        assert all(part.size > 0 and part.what for part in phase.parts)
        assert phase.total == sum(phase.of(role) for role in ("policy", "critic", "reference", "rollout", "process"))
        assert not phase.of("critic") or config.algorithm.needs("critic")
        assert not phase.of("reference") or config.algorithm.kl_coefficient
    speed = predict_speed(SPECS[name], config, H200)
    assert speed.seconds.keys() - {"reward"} == {phase.name for phase in memory.phases}
    assert all(seconds > 0 for seconds in speed.seconds.values())


@given(MODELS, SETTINGS, st.sampled_from([1, 2]))
@settings(max_examples=15, deadline=None)
def test_more_ranks_hold_no_more_each_and_the_same_together(name: str, values: dict[str, Any], replicas: int) -> None:
    config = configured({**values, "data.prompts_per_step": 512, "optimizer.num_mini_batches": 1})
    held = []
    for count in (counts := [replicas * shards for shards in (1, 2, 4, 8)]):
        memory = predict_memory(SPECS[name], on(config, count, parallel__dp_replicate=replicas), gpu="rank")
        parts = phase_of(memory, "update_actor").parts
        held.append(sum(part.size for part in parts if part.what in STATE[:2]))  # its worst moment may lack gradients
    assert held == sorted(held, reverse=True)
    for count, each in zip(counts, held, strict=True):
        assert replicas * held[0] <= count * each <= replicas * held[0] + 40 * count * count


@given(MODELS, SETTINGS, st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_nothing_is_gained_or_lost_between_kinds_of_gpus(name: str, values: dict[str, Any], engines: int) -> None:
    spec, config = SPECS[name], on(configured(values), 4, rollout__num_engines=engines)
    worst, rank, engine = (predict_memory(spec, config, gpu=gpu) for gpu in (None, "rank", "engine"))
    assert worst.peak == max(rank.peak, engine.peak)
    assert not any(phase.of("rollout") for phase in rank.phases)
    assert all(phase.of("rollout") > 0 and phase.of("policy") == 0 for phase in engine.phases)
    assert {phase.gpu for phase in worst.phases} <= {"rank", "engine"}
    speed = predict_speed(spec, config, H200)
    assert speed.seconds.keys() - {"reward"} == {phase.name for phase in rank.phases}


@contextmanager
def rank_of(count: int, index: int) -> Iterator[None]:
    """Within, this process is one of several ranks; what others send is synthetic."""
    dist.init_process_group("fake", store=FakeStore(), rank=index, world_size=count)
    try:
        yield
    finally:
        dist.destroy_process_group()


def held_by(count: int, index: int, replicas: int) -> dict[str, int]:
    """Bytes that a rank holds after a backward pass."""
    with rank_of(count, index):
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(Qwen2Config(**{key: value for key, value in SMALL.items() if key != "model_type"}))
        sharding.shard(model, sharding.FsdpOptions(torch.device("cpu"), torch.bfloat16, replicas=replicas))
        optimizer = Optimizer(model, OptimizerConfig())
        optimizer.zero_grad()
        tokens = torch.zeros(1, 8, dtype=torch.long)
        model(input_ids=tokens).logits.sum().backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        tensors = [list(model.parameters()), list(optimizer._moments()), gradients]
        return dict(zip(STATE, (sum(local_shard(one).nbytes for one in of_kind) for of_kind in tensors), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("count", "replicas"), [(2, 1), (4, 2), (3, 1)])
def test_a_rank_holds_what_is_planned(count: int, replicas: int) -> None:
    spec = spec_from_config("small", SMALL)
    config = config_of("rollout.max_completion_tokens=64", "optimizer.micro_batch_tokens=256")
    config = on(config, count, parallel__dp_replicate=replicas)
    update = phase_of(predict_memory(spec, config, 64, gpu="rank"), "update_actor")
    planned = {part.what: part.size for part in update.parts if part.what in STATE}
    assert planned.keys() == set(STATE)
    held = [held_by(count, index, replicas) for index in range(count)]
    for what, size in planned.items():
        assert sum(one[what] for one in held) == replicas * (8 if "AdamW" in what else 4) * spec.parameters
        if count == 3:  # rows that cannot be shared evenly go to the first ranks; of a small model that is a lot
            assert held[0][what] == pytest.approx(size, rel=0.03)
        else:
            assert {one[what] for one in held} == {size}


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
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=COMPILED)])
def test_activations_of_a_layer_are_what_autograd_keeps(compiled: bool) -> None:
    tokens = 256
    measured = (kept_for_backward(5, tokens, compiled=compiled) - kept_for_backward(3, tokens, compiled=compiled)) / 2
    spec = ModelSpec("m", 0, hidden=64, layers=1, heads=4, kv_heads=2, head_size=16, mlp=96, vocabulary=100, tied=False)
    words = (f"model.compile={str(compiled).lower()}", f"optimizer.micro_batch_tokens={tokens}")
    config = config_of(*words, "rollout.max_completion_tokens=64")
    phase = phase_of(predict_memory(spec, config, prompt_tokens=64), "update_actor")
    [planned] = [part.size for part in phase.parts if part.what == "activations"]
    assert planned == pytest.approx(measured, rel=0.02)


def moments_of_update(spec: ModelSpec, config: TrainConfig, prompt_tokens: int) -> list[list[Part]]:
    work = workload_of(config, prompt_tokens)
    return _Step(spec, config, work, predictions_of(config).memory(spec, config, work), SINGLE_PROCESS)._update(
        "policy"
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("budget", [128, 65_536])
@pytest.mark.parametrize(("estimator", "models"), [("k3", 1), ("exact", 2)])
def test_logits_are_the_chunk_that_the_head_makes(dtype: torch.dtype, budget: int, estimator: str, models: int) -> None:
    """Of one model, or with `exact` of both together, in the type that is computed in."""
    spec = SPECS[HALF_B]
    words = (f"optimizer.micro_batch_tokens={budget}", f"model.dtype={str(dtype).removeprefix('torch.')}")
    kl = ("algorithm.kl_coefficient=0.1", f"algorithm.kl_estimator={estimator}")
    config = config_of(*words, *kl, "rollout.max_completion_tokens=64", "data.prompts_per_step=128")
    parts = [part for moment in moments_of_update(spec, config, 64) for part in moment if part.what == "logits"]
    rows = min(budget // 2, head.HEAD_ELEMENTS[dtype.itemsize] // (models * spec.vocabulary))
    assert (rows == 64) == (budget == 128)
    chunk = models * rows * spec.vocabulary * dtype.itemsize
    [own], [reference] = ([part.size for part in parts if part.role == role] for role in ("policy", "reference"))
    assert own == pytest.approx(chunk, rel=0.01)
    assert reference == (0 if estimator == "exact" else own)
    kept = replace(config, memory=replace(config.memory, recompute_logits=False))
    most = max(part.size for moment in moments_of_update(spec, kept, 64) for part in moment if part.what == "logits")
    assert most == models * budget * spec.vocabulary * dtype.itemsize


def test_the_references_embedding_and_head_stay_beside_the_policys_update(toy_model: LanguageModel) -> None:
    reference = copy.deepcopy(toy_model.model).requires_grad_(False)
    with sharding.process_group(torch.device("cpu")):
        sharding.shard(reference, FsdpOptions(torch.device("cpu"), torch.float32))
        with sharding.on_device(reference), torch.no_grad():
            reference(torch.zeros(1, 3, dtype=torch.long))
            weights = reference.named_parameters(remove_duplicate=False)
            gathered = {name for name, weight in weights if not isinstance(weight, DTensor)}
    assert {name for name in gathered if "layers" in name} == set()
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= gathered
    spec = SPECS[SEVEN_B]
    for moment in moments_of_update(spec, config_of("algorithm.kl_coefficient=0.1", model=spec.name), 64):
        [planned] = [part.size for part in moment if (part.role, part.what) == ("reference", "unsharded weights")]
        assert planned >= 2 * spec.embeddings


def test_bytes_of_a_parameter_in_host_memory() -> None:
    always, kl = "memory.cpu_offload=always", "algorithm.kl_coefficient=0.01"
    for words, size in (((), 0), ((always,), 16), (("memory.cpu_offload=idle",), 12), ((always, kl), 18)):
        assert host_bytes(SPECS[SEVEN_B], config_of(*words)) == size * SPECS[SEVEN_B].parameters


def test_a_critic_doubles_it_and_an_adapter_takes_little() -> None:
    spec, offload = SPECS[SEVEN_B], "memory.cpu_offload=always"
    critic = host_bytes(spec, config_of(offload, "algorithm.advantage_estimator=gae"))
    assert critic == 32 * spec.parameters - 12 * spec.embedding  # the language model head, which no critic trains
    adapter = host_bytes(spec, config_of(offload, "lora.rank=8", "algorithm.kl_coefficient=0.01"))
    assert adapter == 4 * spec.parameters + 16 * spec.adapter(8)


def test_host_memory_holds_what_is_offloaded_once_for_each_replica() -> None:
    config, spec = config_of("memory.cpu_offload=idle"), SPECS[HALF_B]
    whole = host_bytes(spec, config)
    assert host_bytes(spec, on(config, 8)) == whole
    assert host_bytes(spec, on(config, 8, parallel__dp_replicate=2)) == 2 * whole
    assert host_bytes(spec, on(config, 16, parallel__dp_replicate=2)) == whole


BATCH = ("data.prompts_per_step=128", "rollout.max_completion_tokens=1024", "eval.num_problems=8")
LARGE_BATCH = (*BATCH, "optimizer.micro_batch_tokens=32768")
FLOAT8 = ("model.float8=rowwise", "rollout.quantization=fp8", "rollout.kv_cache_dtype=fp8")
IN_FLOAT8 = (*BATCH, "optimizer.micro_batch_tokens=65536", "memory.recompute_logits=false", *FLOAT8)
VLLM_1024 = ("rollout.engine=vllm", *GRPO_1024)
AWAKE = (*VLLM_1024, "vllm.gpu_memory_gb=14.02", "vllm.sleep_mode=false")
ASLEEP = (*VLLM_1024, "vllm.gpu_memory_gb=19.82", "vllm.sleep_mode=true")


@pytest.mark.parametrize(
    ("words", "recipe", "model", "prompt", "measured"),
    [
        (("eval.greedy=false", *LARGE_BATCH), None, HALF_B, 140, 62.45e9),
        (("rollout.engine=vllm", *LARGE_BATCH), None, HALF_B, 140, 68.1e9),
        (("eval.greedy=false", *IN_FLOAT8), None, HALF_B, 140, 92.01e9),
        (AWAKE, "tinyzero-grpo", "Qwen/Qwen2.5-1.5B", 256, 80.0 * GIB),
        (ASLEEP, "tinyzero-grpo", "Qwen/Qwen2.5-3B", 256, 113.57 * GIB),
    ],
    ids=["torch, 0.5B", "vllm, 0.5B", "float8, 0.5B", "vllm, 1.5B", "vllm, 3B"],
)
def test_peaks_as_the_driver_counted_them(
    words: tuple[str, ...], recipe: str | None, model: str, prompt: int, measured: float
) -> None:
    spec, limit = SPECS[model], usable(140 * GIB)
    config = settle(spec, config_of(*words, recipe=recipe, model=model), limit, prompt)
    memory = predict_within(spec, config, limit, prompt)
    assert memory.worst.name == "update_actor"
    assert memory.peak == pytest.approx(measured, rel=0.1)


TRADED = [
    (key, place)
    for key, trade in MEMORY_SETTINGS.items()
    for place in range(1, len(trade.options))
    if trade.chosen_by != "engine"
]


@pytest.mark.parametrize(("key", "place"), TRADED)
@given(MODELS, SETTINGS, st.integers(2, 8))
@settings(max_examples=8, deadline=None)
def test_what_a_setting_says_saves_memory_takes_no_more(
    key: str, place: int, name: str, values: dict[str, Any], gpus: int
) -> None:
    """And no less time of the update."""
    config, options = on(configured(values), gpus), MEMORY_SETTINGS[key].options
    dear, saving = (replaced(config, {key: options[at].value}) for at in (place - 1, place))
    assert predict_memory(SPECS[name], saving).peak <= predict_memory(SPECS[name], dear).peak
    slow, fast = (predict_speed(SPECS[name], each, H200).seconds["update_actor"] for each in (saving, dear))
    assert slow >= fast * (1 - 1e-9)
