"""Holds the plan to what the code does: sizes and counts are asked of the code itself, or were measured on a GPU."""

import copy
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import DTensor

from tests.trainer.plan.planned import GRPO, HALF_B, SPECS, config_of
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.schedules import settings_at
from tinyzero_trainer.config import OptimizerConfig, TrainConfig
from tinyzero_trainer.config.run import COMPILED_FROM, compiles
from tinyzero_trainer.distributed import fsdp as sharding
from tinyzero_trainer.distributed.fsdp import FsdpOptions
from tinyzero_trainer.distributed.groups import ALONE
from tinyzero_trainer.estimate import constants
from tinyzero_trainer.estimate.engine_buffers import drawing_bytes
from tinyzero_trainer.estimate.engine_memory import engine_of, needed_by_vllm
from tinyzero_trainer.estimate.fit import predict_within, settle, usable, with_settings
from tinyzero_trainer.estimate.memory import Memory, Part, Phase, _Step, predict_memory
from tinyzero_trainer.estimate.speed import predict_speed
from tinyzero_trainer.estimate.workload import workload_of
from tinyzero_trainer.hardware.gpu import GIB
from tinyzero_trainer.hardware.gpu_specs import find_gpu_spec
from tinyzero_trainer.models import fused_logprobs as head
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.models.spec import ModelSpec, spec_from_config
from tinyzero_trainer.plan.plan import make_plan
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.cuda_graph.engine import GraphEngine
from tinyzero_trainer.rollout.vllm.engine_args import sequences_at_a_time
from tinyzero_trainer.rollout.weight_sync import named_weights
from tinyzero_trainer.training import policy
from tinyzero_trainer.training.logprobs import PolicyModel
from tinyzero_trainer.training.micro_batches import fill_budget, micro_batches

H200 = find_gpu_spec("NVIDIA H200")
assert H200 is not None


def phase_of(memory: Memory, name: str) -> Phase:
    [found] = [phase for phase in memory.phases if phase.name == name]
    return found


def sizes_of(phase: Phase, what: str) -> dict[str, int]:
    """Bytes of a part, by the role that has it."""
    return {part.role: part.size for part in phase.parts if part.what == what}


# ---- the update ------------------------------------------------------------------------------------------------------


def moments_of_update(spec: ModelSpec, config: TrainConfig, prompt_tokens: int) -> list[list[Part]]:
    work = workload_of(config, prompt_tokens)
    return _Step(spec, config, work, engine_of(spec, config, work))._update("policy")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("budget", [128, 65_536])
@pytest.mark.parametrize(("estimator", "models"), [("k3", 1), ("exact", 2)])
def test_logits_are_the_chunk_that_the_head_makes(dtype: torch.dtype, budget: int, estimator: str, models: int) -> None:
    """Of one model, or with `exact` of both together, in the type that is computed in."""
    spec = SPECS[HALF_B]
    words = (f"optimizer.micro_batch_tokens={budget}", f"model.dtype={str(dtype).removeprefix('torch.')}")
    kl = ("algorithm.kl_coefficient=0.1", f"algorithm.kl_estimator={estimator}")
    moments = moments_of_update(
        spec, config_of(*words, *kl, "rollout.max_completion_tokens=64", "data.prompts_per_step=128"), 64
    )
    rows = min(budget // 2, head._rows(torch.empty(0, dtype=dtype), models * spec.vocabulary, None))
    assert (rows == 64) == (budget == 128)
    chunk = models * rows * spec.vocabulary * dtype.itemsize
    [own] = [part.size for moment in moments for part in moment if (part.role, part.what) == ("policy", "logits")]
    [reference] = [
        part.size for moment in moments for part in moment if (part.role, part.what) == ("reference", "logits")
    ]
    assert own == pytest.approx(chunk, rel=0.01)
    assert reference == (0 if estimator == "exact" else own)


def test_an_exact_kl_takes_no_more_than_one_of_the_sampled_token() -> None:
    words = ("algorithm.kl_coefficient=0.1", *GRPO)
    sampled, exact = (
        predict_memory(SPECS[HALF_B], config_of(*words, f"algorithm.kl_estimator={name}")) for name in ("k3", "exact")
    )
    assert exact.peak == sampled.peak


def test_the_references_embedding_and_head_stay_beside_the_policys_update(toy_model: LanguageModel) -> None:
    reference = copy.deepcopy(toy_model.model).requires_grad_(False)
    with sharding.process_group(torch.device("cpu")):
        sharding.shard(reference, FsdpOptions(torch.device("cpu"), torch.float32))
        with sharding.on_device(reference), torch.no_grad():
            reference(torch.zeros(1, 3, dtype=torch.long))
            gathered = {
                name for name, weight in reference.named_parameters(remove_duplicate=False)
                if not isinstance(weight, DTensor)
            }  # fmt: skip
    assert {name for name in gathered if "layers" in name} == set()
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= gathered
    spec = SPECS["Qwen/Qwen2.5-7B"]
    for moment in moments_of_update(spec, config_of("algorithm.kl_coefficient=0.1", model=spec.name), 64):
        [planned] = [part.size for part in moment if (part.role, part.what) == ("reference", "weights at work")]
        assert planned >= 2 * spec.embeddings


def test_a_reference_below_an_adapter_takes_its_weights_once() -> None:
    words = ("lora.rank=8", "rollout.max_completion_tokens=1024", "optimizer.micro_batch_tokens=2048")
    alone, with_kl = (
        phase_of(predict_memory(SPECS[HALF_B], config_of(*words, *more)), "update_actor")
        for more in ((), ("algorithm.kl_coefficient=0.1",))
    )
    assert not with_kl.of("reference")
    assert sizes_of(with_kl, "weights at work") == sizes_of(alone, "weights at work")
    assert sum(part.what == "weights at work" for part in with_kl.parts) == 1


@given(st.integers(1, 4), st.integers(1, 3), st.integers(64, 700), st.integers(4, 12))
@settings(max_examples=20, deadline=None)
def test_micro_batches_are_as_many_as_are_made(parts: int, epochs: int, budget: int, groups: int) -> None:
    """Of completions of one length, where the groups go evenly into the updates."""
    group_size, new = 4, 30
    groups *= parts
    samples = fill_budget(1 + new, new, context=100) * groups * group_size  # a prompt of one token
    experience = TrainingBatch.of(samples, group_size, advantages=torch.zeros(len(samples) * new))
    optimizer = OptimizerConfig(num_mini_batches=parts, update_epochs=epochs, micro_batch_tokens=budget)
    config = with_settings(
        TrainConfig(),
        {
            **{f"optimizer.{name}": getattr(optimizer, name) for name in ("num_mini_batches", "update_epochs")},
            "optimizer.micro_batch_tokens": budget,
            "data.prompts_per_step": groups,
            "rollout.group_size": group_size,
            "rollout.max_completion_tokens": new,
        },
    )
    work, updates = workload_of(config, 1), list(experience.mini_batches(optimizer))
    split = partial(micro_batches, token_budget=budget, pad_id=0, device=torch.device("cpu"), layout="packed")
    made = sum(len(list(split(update.rollouts))) for update in updates)
    assert work.epochs * work.mini_batches == len(updates)
    assert work.epochs * work.micro_batches == made
    assert work.accumulates == (made > len(updates))


@pytest.mark.parametrize("offload", [None, "always"])
@pytest.mark.parametrize("phase", ["update_actor", "update_critic"])
def test_every_epoch_takes_as_long(offload: str | None, phase: str) -> None:
    config = config_of("algorithm.advantage_estimator=gae", "algorithm.kl_coefficient=0.1", *GRPO)
    once, thrice = (
        predict_speed(
            SPECS[HALF_B],
            with_settings(config, {"optimizer.update_epochs": count, "memory.cpu_offload": offload}),
            H200,
        ).seconds[phase]
        for count in (1, 3)
    )
    assert thrice == pytest.approx(3 * once)


@pytest.mark.parametrize("wanted", [None, False, True])
@pytest.mark.parametrize("parameters", [COMPILED_FROM - 1, COMPILED_FROM])
def test_layers_are_planned_as_they_are_compiled(
    wanted: bool | None, parameters: int, toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Any] = []
    for name, fake in {
        "_compile": compiled.append,
        "_size": lambda _: parameters,
        "_fully_shard": lambda *_, **__: None,
        "register_fsdp_forward_method": lambda *_: None,
    }.items():
        monkeypatch.setattr(sharding, name, fake)
    with sharding.process_group(torch.device("cpu")):
        sharding.shard(
            copy.deepcopy(toy_model.model), FsdpOptions(torch.device("cuda"), torch.bfloat16, compile=wanted)
        )  # fmt: skip
    expected = parameters >= 100_000_000 if wanted is None else wanted
    assert bool(compiled) == compiles(wanted, parameters) == expected


# ---- the rollout engine ----------------------------------------------------------------------------------------------


def engine_for(
    toy: LanguageModel, dtype: torch.dtype, params: SamplingParams, prompts: int, samples: int
) -> GraphEngine:
    """The graph engine with buffers for so many prompts of 40 tokens, as if it had its kernels."""
    engine = GraphEngine(toy, lambda: named_weights(toy.model), dtype=dtype, device=torch.device("cpu"))
    engine._kernels = True
    engine._reserve([[1] * 40] * prompts, samples, params)
    return engine


def shape_like(model: Any) -> ModelSpec:
    return spec_from_config("m", model.config.to_dict())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("new", [24, 25])
def test_the_torch_engine_has_the_cache_and_the_weights_that_are_planned(
    dtype: torch.dtype, new: int, toy_model: LanguageModel
) -> None:
    """A prompt of 40 tokens and 24 more fill a grid of 64 slots; one more takes the next."""
    model = toy_model.model
    config = config_of(
        f"model.dtype={str(dtype).removeprefix('torch.')}",
        f"rollout.max_completion_tokens={new}",
        "eval.num_problems=8",
        *GRPO,
    )
    planned = engine_of(shape_like(model), config, workload_of(config, 40)).awake
    engine = engine_for(toy_model, dtype, SamplingParams(new), 32, 8)
    cache = [*engine._cache.keys, *engine._cache.values]
    assert planned["KV cache"] == sum(tensor.nbytes for tensor in cache)
    assert cache[0].shape[2] == (64 if new == 24 else 128)
    weights = engine._weights._tensors.values()
    own = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in weights}
    assert planned["weights"] == pytest.approx(sum(own.values()), rel=0.01)


@pytest.mark.parametrize(
    ("words", "params"),
    [
        (("eval.greedy=false", "eval.num_problems=256"), SamplingParams(24)),
        (("rollout.top_p=0.9", "eval.num_problems=256"), SamplingParams(24, top_p=0.9)),
        (("rollout.top_k=20", "rollout.temperature=0.7", "eval.num_problems=8"), SamplingParams(24, 0.7, top_k=20)),
        (("eval.num_problems=256",), SamplingParams(24, 0.0)),
    ],
    ids=["kernel", "top-p", "top-k", "greedy evaluation"],
)
def test_a_step_of_the_torch_engine_takes_what_it_reckons_with(
    words: tuple[str, ...], params: SamplingParams, toy_model: LanguageModel
) -> None:
    config = config_of(*words, "rollout.max_completion_tokens=24", *GRPO)  # 256 completions
    spec, engine = shape_like(toy_model.model), engine_for(toy_model, torch.bfloat16, params, 32, 8)
    planned = engine_of(spec, config, workload_of(config, 40)).awake["a step"]
    assert planned == 256 * (engine._sequence_bytes(64, 24) - engine._model.cache_bytes(64) - 12 * 24)


def test_prompts_are_read_once_for_all_their_samples() -> None:
    config = config_of("eval.num_problems=8", *GRPO)
    few, many = (engine_of(SPECS[HALF_B], config, workload_of(config, tokens)).awake for tokens in (100, 2000))
    assert few["reading prompts"] / many["reading prompts"] == pytest.approx(32 * 100 / 32_768)


def test_the_torch_engine_gives_its_memory_back_where_memory_is_to_be_saved() -> None:
    config = config_of("memory.cpu_offload=idle", "rollout.max_completion_tokens=1024", *GRPO)
    assert not phase_of(predict_within(SPECS[HALF_B], config, 140 * GIB), "update_actor").of("rollout")


@pytest.mark.parametrize(("size", "words"), [(1024, "evaluations are"), (8, "completions are")])
def test_who_is_generated_in_more_rounds(size: int, words: str) -> None:
    config = config_of(f"eval.num_problems={size}", "rollout.max_completion_tokens=1024", *GRPO)  # 256 completions
    weights = SPECS[HALF_B].parameters * (18 if size > 256 else 6)
    config = with_settings(config, {"memory.cpu_offload": None if size > 256 else "idle"})
    limit = int(weights + (7 if size > 256 else 3.5) * GIB)
    found = make_plan(SPECS[HALF_B], config, int(limit / (1 - constants.MARGIN)))
    [costs] = [change.trade_off for change in found.changes if change.key == "rollout.max_num_seqs"]
    assert costs.startswith(words)


@pytest.mark.parametrize("engine", ["torch", "vllm"])
def test_numbers_twice_as_large_take_longer_to_read(engine: str) -> None:
    config = config_of(f"rollout.engine={engine}", "rollout.max_num_seqs=8", *GRPO)  # few, so that reading counts
    half, whole = (
        predict_speed(SPECS[HALF_B], with_settings(config, {"model.dtype": name}), H200) for name in ("auto", "float32")
    )
    assert half.rollout > whole.rollout > half.rollout / 2


@pytest.mark.parametrize("engine", ["torch", "vllm"])
def test_greedy_completions_of_remax_are_generated_too(engine: str, toy_model: LanguageModel) -> None:
    words = (
        f"rollout.engine={engine}",
        "rollout.max_completion_tokens=24",
        "eval.greedy=false",
        "eval.num_problems=8",
        *GRPO,
    )
    spec = shape_like(toy_model.model)
    plain, remax = (config_of(*words, f"algorithm.advantage_estimator={name}") for name in ("grpo", "remax"))
    seconds = predict_speed(spec, remax, H200).seconds
    assert seconds.keys() - {"reward"} == {phase.name for phase in predict_memory(spec, remax).phases}
    assert 0 < seconds["gen_greedy"] < seconds["gen"] == predict_speed(spec, plain, H200).seconds["gen"]
    if engine == "torch":
        many = with_settings(remax, {"rollout.group_size": 1})  # as many as those that are drawn
        step = engine_of(spec, many, workload_of(many)).awake["a step"]
        assert step == 32 * (drawing_bytes(2, by_kernel=False, greedy=True) * spec.vocabulary + 16 * spec.mlp)


def test_vllm_has_weights_and_cache_in_the_type_that_is_computed_in() -> None:
    config, spec = config_of("rollout.engine=vllm", *GRPO), SPECS[HALF_B]
    work = workload_of(config, 100)
    half, whole = (
        needed_by_vllm(spec, with_settings(config, {"model.dtype": name}), work) for name in ("auto", "float32")
    )
    assert whole - half == 2 * (spec.parameters + work.completions * (work.sequence + 16) * spec.cache_numbers)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("data.prompts_per_step=512",),
        ("rollout.max_num_seqs=5",),
        ("rollout.max_num_seqs=100",),
        ("eval.num_problems=4000", "data.prompts_per_step=1"),
    ],
)
def test_vllm_generates_as_many_sequences_at_a_time_as_are_planned(words: tuple[str, ...]) -> None:
    config = config_of("rollout.engine=vllm", *words)
    assert workload_of(config).at_a_time == sequences_at_a_time(config, torch.device("cuda"))


# ---- what was measured on an H200 ------------------------------------------------------------------------------------

LARGE = (
    "data.prompts_per_step=128",
    "rollout.max_completion_tokens=1024",
    "optimizer.micro_batch_tokens=32768",
    "eval.num_problems=8",
)


@pytest.mark.parametrize(
    ("words", "recipe", "model", "prompt", "measured"),
    [
        (("eval.greedy=false", *LARGE), None, HALF_B, 140, 62.45e9),
        (("rollout.engine=vllm", *LARGE), None, HALF_B, 140, 68.1e9),
        (
            (
                "rollout.engine=vllm",
                "vllm.gpu_memory_gb=14.02",
                "vllm.sleep_mode=false",
                "rollout.max_completion_tokens=1024",
                *GRPO,
            ),
            "tinyzero-grpo",
            "Qwen/Qwen2.5-1.5B",
            256,
            80.0 * GIB,
        ),
        (
            (
                "rollout.engine=vllm",
                "vllm.gpu_memory_gb=19.82",
                "vllm.sleep_mode=true",
                "rollout.max_completion_tokens=1024",
                *GRPO,
            ),
            "tinyzero-grpo",
            "Qwen/Qwen2.5-3B",
            256,
            113.57 * GIB,
        ),
    ],
    ids=["torch, 0.5B", "vllm, 0.5B", "vllm, 1.5B", "vllm, 3B"],
)
def test_peaks_as_the_driver_counted_them(
    words: tuple[str, ...], recipe: str | None, model: str, prompt: int, measured: float
) -> None:
    spec, limit = SPECS[model], usable(140 * GIB)
    config = settle(spec, config_of(*words, recipe=recipe, model=model), limit, prompt)
    memory = predict_within(spec, config, limit, prompt)
    assert memory.worst.name == "update_actor"
    assert memory.peak == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize(("prompts", "filled"), [(2, 2 * 2 * (8 + 16)), (64, 512)])
def test_what_is_tried_out_is_no_more_than_a_step_has(
    prompts: int, filled: int, toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_settings(
        TrainConfig(),
        {
            "data.prompts_per_step": prompts,
            "data.max_prompt_tokens": 8,
            "rollout.group_size": 2,
            "rollout.max_completion_tokens": 16,
            "optimizer.micro_batch_tokens": 512,
        },
    )
    asked: list[int] = []

    def count(budget: int, *_: Any, **__: Any) -> list[Any]:
        asked.append(budget)
        raise InterruptedError

    monkeypatch.setattr(policy, "fill_budget", count)
    trained = SimpleNamespace(
        language_model=toy_model,
        model=PolicyModel(toy_model.model),
        _settings=config.optimizer,
        _max_tokens=16,
        _ranks=ALONE,
        _updating=lambda **_: nullcontext(),
    )
    with pytest.raises(InterruptedError):
        policy.Policy.warm_up(trained, settings_at(config, 1), workload_of(config).micro_batch)
    assert asked == [filled] == [workload_of(config).micro_batch]


def test_an_engine_without_cuda_graphs_asks_for_no_room() -> None:
    """It takes 512 sequences at a time on any GPU, so that fewer have to be asked for."""
    spec = replace(SPECS["Qwen/Qwen2.5-1.5B"], graphs=False)
    config = config_of("data.prompts_per_step=128", "rollout.max_completion_tokens=1024", model=spec.name)
    roomy, tight = (make_plan(spec, config, gib * GIB) for gib in (300, 32))
    assert roomy.config.rollout.max_num_seqs == 512
    assert tight.requested.peak > tight.limit
    assert tight.fits
    assert (tight.config.rollout.max_num_seqs or 0) < 512
