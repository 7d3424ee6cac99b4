"""Planning for several GPUs: the laws of who holds what, that FSDP2 holds as much, and what the command says."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import Qwen2Config, Qwen2ForCausalLM

from tests.trainer.configurations import call
from tests.trainer.plan.planned import COMMON, GRPO, HALF_B, MODELS, SETTINGS, SPECS, config_of
from tinyzero_trainer.cli import plan_report as view
from tinyzero_trainer.cli.plan_report import plan_for
from tinyzero_trainer.config import OptimizerConfig, TrainConfig
from tinyzero_trainer.config.parallel import planned_dims
from tinyzero_trainer.distributed import fsdp as sharding
from tinyzero_trainer.distributed.dtensor import local_shard
from tinyzero_trainer.estimate import constants
from tinyzero_trainer.estimate.communication import Interconnect
from tinyzero_trainer.estimate.engine_memory import needed_by_vllm
from tinyzero_trainer.estimate.fit import settle, usable, with_settings
from tinyzero_trainer.estimate.memory import Memory, host_bytes, predict_memory
from tinyzero_trainer.estimate.speed import COLLECTING, predict_speed
from tinyzero_trainer.estimate.workload import workload_of, workload_on
from tinyzero_trainer.executors.ray.weight_broadcast import BUCKET_BYTES
from tinyzero_trainer.hardware.gpu import GIB
from tinyzero_trainer.hardware.gpu_specs import GpuSpec, find_gpu_spec
from tinyzero_trainer.models.spec import ModelSpec, spec_from_config
from tinyzero_trainer.plan import advice
from tinyzero_trainer.plan.plan import make_plan, smaller_micro_batch
from tinyzero_trainer.plan.target_gpu import TargetGpu
from tinyzero_trainer.training.optimizer import Optimizer

H200 = find_gpu_spec("H200") or GpuSpec("", 0, 0, 0, 0)
SEVEN_B = "Qwen/Qwen2.5-7B"
SMALL = {"model_type": "qwen2", **COMMON, "num_key_value_heads": 2, "tie_word_embeddings": False}
STATE = ("weights in float32", "AdamW's moments", "gradients in float32")
LEAD = {"rollout.max_async_level": 1, "rollout.return_logprobs": "always", "rollout_correction.is_level": "token"}


FULL_NAMES = {
    "replicas": "parallel.dp_replicate",
    "ranks": "parallel.world_size",
    "engines": "rollout.num_engines",
    "chunks": "rollout.chunks_per_engine",
}


def on(config: TrainConfig, gpus: int, **parallel: Any) -> TrainConfig:
    values = {"run.executor": "ray", "ray.gpus": gpus, **{FULL_NAMES[key]: value for key, value in parallel.items()}}
    return with_settings(config, values)


def configured(values: dict[str, Any]) -> TrainConfig:
    if values["rollout.engine"] == "vllm":
        values = {**values, "vllm.gpu_memory_gb": 20.0, "vllm.sleep_mode": False}
    return with_settings(TrainConfig(), values)


def state(memory: Memory, phase: str = "update_actor") -> int:
    [found] = [one for one in memory.phases if one.name == phase]
    return sum(part.size for part in found.parts if part.what in STATE[:2])  # its worst moment may have no gradients


# ---- laws ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(MODELS, SETTINGS, st.booleans(), st.integers(8, 100))
@settings(max_examples=8, deadline=None)
def test_one_gpu_is_planned_as_one_process_is(name: str, values: dict[str, Any], keeps: bool, gib: int) -> None:
    spec, alone = SPECS[name], configured(values)
    several = on(alone, 1)
    assert predict_memory(spec, several, keeps=keeps) == predict_memory(spec, alone, keeps=keeps)
    assert predict_speed(spec, several, H200) == predict_speed(spec, alone, H200)
    one, other = (make_plan(spec, config, gib * GIB) for config in (several, alone))
    assert (one.memory, one.changes, one.requested) == (other.memory, other.changes, other.requested)
    assert host_bytes(spec, several) == host_bytes(spec, alone)


@given(MODELS, SETTINGS, st.sampled_from([1, 2]))
@settings(max_examples=15, deadline=None)
def test_more_ranks_hold_no_more_each_and_the_same_together(name: str, values: dict[str, Any], replicas: int) -> None:
    values = {**values, "data.prompts_per_step": 512, "optimizer.num_mini_batches": 1}
    spec, config = SPECS[name], configured(values)
    counts = [replicas * shards for shards in (1, 2, 4, 8)]
    found = [predict_memory(spec, on(config, count, replicas=replicas), gpu="rank") for count in counts]
    held = [state(memory) for memory in found]
    assert held == sorted(held, reverse=True)
    for count, each in zip(counts, held, strict=True):
        assert replicas * held[0] <= count * each <= replicas * held[0] + 40 * count * count


@given(MODELS, SETTINGS, st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_nothing_is_gained_or_lost_between_kinds_of_gpus(name: str, values: dict[str, Any], engines: int) -> None:
    spec, config = SPECS[name], on(configured(values), 4, engines=engines)
    worst, rank, engine = (predict_memory(spec, config, gpu=gpu) for gpu in (None, "rank", "engine"))
    assert worst.peak == max(rank.peak, engine.peak)
    assert not any(phase.of("rollout") for phase in rank.phases)
    assert all(phase.of("rollout") > 0 and phase.of("policy") == 0 for phase in engine.phases)
    assert {phase.gpu for phase in worst.phases} <= {"rank", "engine"}
    speed = predict_speed(spec, config, H200)
    assert speed.seconds.keys() - {"reward"} == {phase.name for phase in rank.phases}
    assert speed.gpus == 4


@given(MODELS, SETTINGS, st.integers(1, 7), st.sampled_from(["token", "sequence"]))
@settings(max_examples=15, deadline=None)
def test_sampling_ahead_is_no_slower_than_taking_turns(
    name: str, values: dict[str, Any], engines: int, weights: str
) -> None:
    values = {key: value for key, value in values.items() if key != "memory.cpu_offload"}
    ahead = with_settings(TrainConfig(), {**values, **LEAD, "rollout_correction.is_level": weights, **ray(8, engines)})
    turns = with_settings(ahead, {"rollout.max_async_level": 0})
    fast, slow = (predict_speed(SPECS[name], config, H200) for config in (ahead, turns))
    assert fast.seconds == slow.seconds
    assert fast.step <= slow.step * (1 + 1e-9)
    assert fast.step >= max(sum(slow.seconds[part] for part in COLLECTING if part in slow.seconds), slow.step / 2)


def ray(gpus: int, engines: int) -> dict[str, Any]:
    return {"run.executor": "ray", "ray.gpus": gpus, "rollout.num_engines": engines}


@given(MODELS, SETTINGS, st.sampled_from([2, 4, 8]))
@settings(max_examples=15, deadline=None)
def test_several_gpus_are_no_faster_than_as_many_times_one(name: str, values: dict[str, Any], count: int) -> None:
    spec, config = SPECS[name], configured({**values, "memory.cpu_offload": None, "model.compile": None})
    one = predict_speed(spec, config, H200).seconds["update_actor"]
    assert predict_speed(spec, on(config, count), H200).seconds["update_actor"] * count >= one * (1 - 1e-9)


@given(st.integers(1, 8), st.floats(1, 1e12))
def test_a_ring_takes_at_least_what_a_link_takes(count: int, size: float) -> None:
    links = Interconnect.of(H200)
    assert links.gather(size, count) >= (size - size / count) / 350e9
    assert links.all_reduce(size, count) == 2 * links.gather(size, count)
    assert links.gather(350e9, 8) == pytest.approx(7 / 8, rel=1e-3)


# ---- what the code holds ---------------------------------------------------------------------------------------------


@contextmanager
def rank_of(count: int, index: int) -> Iterator[None]:
    """Within, this process is one of several ranks; what others send is made up."""
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
        optimizer.begin()
        tokens = torch.zeros(1, 8, dtype=torch.long)
        model(input_ids=tokens).logits.sum().backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        tensors = [list(model.parameters()), list(optimizer._moments()), gradients]
        return dict(zip(STATE, (sum(local_shard(one).nbytes for one in of_kind) for of_kind in tensors), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("count", "replicas"), [(2, 1), (4, 2), (3, 1)])
def test_a_rank_holds_what_is_planned(count: int, replicas: int) -> None:
    spec = spec_from_config("small", SMALL)
    config = on(
        config_of("rollout.max_completion_tokens=64", "optimizer.micro_batch_tokens=256"), count, replicas=replicas
    )
    memory = predict_memory(spec, config, 64, gpu="rank")
    [update] = [phase for phase in memory.phases if phase.name == "update_actor"]
    planned = {part.what: part.size for part in update.parts if part.what in STATE}
    assert planned.keys() == set(STATE)
    held = [held_by(count, index, replicas) for index in range(count)]
    for what, size in planned.items():
        assert sum(one[what] for one in held) == replicas * (8 if "AdamW" in what else 4) * spec.parameters
        if count == 3:  # rows that cannot be shared evenly go to the first ranks; of a small model that is a lot
            assert held[0][what] == pytest.approx(size, rel=0.03)
        else:
            assert {one[what] for one in held} == {size}


def test_constants_are_those_of_the_executor() -> None:
    assert constants.WEIGHT_BUCKET == BUCKET_BYTES


# ---- shares ----------------------------------------------------------------------------------------------------------


def test_ranks_that_share_sequences_have_a_part_of_each() -> None:
    words = ("rollout.max_completion_tokens=16000", "optimizer.micro_batch_tokens=8192", "model.compile=false")
    alone = with_settings(on(config_of(*words, *GRPO), 8), {"model.compile": None})
    shared = with_settings(alone, {"parallel.sequence_parallel": 4})
    assert workload_on(alone, 384).micro_batch == 16_384
    assert workload_on(shared, 384).micro_batch == 8192  # two sequences a line, whose budget is four times a rank's
    smaller = with_settings(shared, {"optimizer.micro_batch_tokens": 4096})
    assert workload_on(smaller, 384).micro_batch == 4096
    assert (workload_on(smaller, 384).shares, workload_on(smaller, 384).micro_batches) == (2, 256 // 2)
    assert workload_of(shared, 384).micro_batch == 16_384  # of a process that is told nothing of others
    peaks = [predict_memory(SPECS[HALF_B], config).worst.total for config in (alone, shared, smaller)]
    assert peaks == sorted(peaks, reverse=True)


def test_engines_share_the_batch_and_the_evaluation() -> None:
    config = config_of("data.prompts_per_step=100", "rollout.group_size=8", "eval.num_problems=1000")
    for gpus, settings_of_ray, trained, evaluated in (
        (8, {}, 13 * 8, 125),
        (8, {"chunks": 2}, 7 * 8, 63),
        (8, {"engines": 3}, 34 * 8, 334),
    ):
        work = workload_on(on(config, gpus, **settings_of_ray))
        assert (work.trained_at_a_time, work.evaluated_at_a_time) == (trained, evaluated)
        assert work.seats == 1000


def test_an_engine_on_several_gpus_has_a_share_of_weights_and_heads_on_each() -> None:
    spec = SPECS[HALF_B]  # with 2 heads of keys and values
    config = config_of(*GRPO, "rollout.engine=vllm", "rollout.max_completion_tokens=1024")
    sizes = []
    for gpus in (1, 2, 4):
        dims = with_settings(config, {"vllm.tensor_parallel": gpus})
        sizes.append([needed_by_vllm(spec, dims, workload_of(dims), count) for count in (0, 64)])
    weights, caches = [one[0] for one in sizes], [one[1] - one[0] for one in sizes]
    assert [weights[0] - one for one in weights] == [0, spec.parameters, 3 * spec.parameters // 2]
    assert [caches[0] // one for one in caches] == [1, 2, 2]  # the fewest heads that a GPU can have are one


def test_what_waits_in_the_hosts_memory_is_there_once_a_replica() -> None:
    config, spec = config_of("memory.cpu_offload=idle"), SPECS[HALF_B]
    whole = host_bytes(spec, config)
    assert host_bytes(spec, on(config, 8)) == whole
    assert host_bytes(spec, on(config, 8, replicas=2)) == 2 * whole
    assert host_bytes(spec, on(config, 16, replicas=2)) == whole


def test_engines_on_gpus_of_their_own_have_them_to_themselves() -> None:
    spec = SPECS[SEVEN_B]
    config = config_of(*GRPO, "rollout.engine=vllm", "rollout.max_completion_tokens=8192", model=SEVEN_B)
    beside, apart = (settle(spec, on(config, 4, engines=engines), 60 * GIB).vllm for engines in (0, 1))
    assert beside.sleep_mode is True
    assert apart.sleep_mode is None
    assert (apart.gpu_memory_gb or 0) > (beside.gpu_memory_gb or 0)
    ahead = with_settings(on(config, 4, engines=1), LEAD)  # which refuses any value of vllm.sleep_mode
    assert settle(spec, ahead, 60 * GIB).vllm == apart
    assert make_plan(spec, ahead, 140 * GIB).fits


# ---- what is proposed ------------------------------------------------------------------------------------------------


@given(MODELS, SETTINGS, st.integers(10, 140), st.sampled_from([2, 4, 8]), st.integers(0, 1))
@settings(max_examples=5, deadline=None)
def test_what_is_proposed_fits_on_every_gpu(
    name: str, values: dict[str, Any], gib: int, gpus: int, engines: int
) -> None:
    config = on(with_settings(TrainConfig(), values), gpus, engines=engines, replicas=1 if engines else 2)
    found = make_plan(SPECS[name], config, gib * GIB)
    changed = with_settings(config, {change.key: change.value for change in found.changes})
    assert changed == found.config
    assert all(change.trade_off for change in found.changes)
    assert planned_dims(changed).gpus == gpus
    if found.requested.peak <= found.limit:
        assert not any(change.key.startswith("ray.") for change in found.changes)


def test_replicas_are_given_up_where_they_are_too_much() -> None:
    config = on(config_of(*GRPO, "rollout.max_completion_tokens=1024", model=SEVEN_B), 16, replicas=16)
    found = make_plan(SPECS[SEVEN_B], config, int(79.6 * GIB), gpu=find_gpu_spec("H100"))
    assert found.fits
    assert ("parallel.dp_replicate", 1) in [(change.key, change.value) for change in found.changes]
    assert "memory.cpu_offload" not in [change.key for change in found.changes]


def test_gpus_are_divided_as_was_asked_where_that_can_fit() -> None:
    config = on(
        config_of(
            "rollout.max_completion_tokens=65536", "data.prompts_per_step=8", "rollout.engine=vllm", model=SEVEN_B
        ),
        8,
    )
    found = make_plan(SPECS[SEVEN_B], config, int(140.4 * GIB), gpu=H200)
    assert found.fits
    assert found.requested.peak > found.limit
    assert planned_dims(found.config) == planned_dims(config)


def test_the_next_smaller_micro_batch_is_the_next_power_of_two() -> None:
    """Halves of an odd budget would leave out what is nearly as large and fits."""
    config = config_of(*GRPO, "rollout.max_completion_tokens=1024", "optimizer.micro_batch_tokens=33562")
    assert smaller(config) == [32768, 16384, 8192, 4096, 2048]
    shared = {"parallel.sequence_parallel": 2, "rollout.max_completion_tokens": 8192 - 256}
    assert smaller(with_settings(on(config, 8), shared)) == [32768, 16384, 8192, 4096]  # half a sequence each


def smaller(config: TrainConfig) -> list[int]:
    found = []
    while (size := smaller_micro_batch(config, workload_on(config))) is not None:
        found.append(size)
        config = with_settings(config, {"optimizer.micro_batch_tokens": size})
    return found


def test_ranks_that_were_counted_stay_as_many() -> None:
    config = on(config_of(*GRPO, "rollout.max_completion_tokens=8192", model=SEVEN_B), 4, ranks=4)
    found = make_plan(SPECS[SEVEN_B], config, 30 * GIB)
    assert planned_dims(found.config).world_size == 4


def target(name: str) -> TargetGpu:
    gpu = find_gpu_spec(name)
    assert gpu is not None
    return TargetGpu(gpu.name, int(gpu.memory * GIB), gpu)


# ---- the command, and the warning of train ---------------------------------------------------------------------------

APART = ("--gpus", "4", "--gpu", "H200", "--address", "10.0.0.1:6379", "rollout.num_engines=1", "rollout.engine=vllm")


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    return call(capsys, "plan", "--task", "countdown", "--model", SEVEN_B, *words)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        (*APART, "vllm.tensor_parallel=2"),
        ("--gpus", "16", "--gpu", "A100", "parallel.dp_replicate=2"),
        ("--gpus", "64", "--gpu-memory", "8GB"),
        ("--gpus", "4", "--gpu", "L40S", "rollout.num_engines=1"),
    ],
)
def test_eighty_columns(words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(view.stdout, "_width", 80)
    code, out, _ = plan(capsys, *words)
    assert code in (0, 1)
    assert max(len(line) for line in out.splitlines() if not line.startswith("tinyzero train")) <= 80


def test_each_kind_of_gpu_is_shown(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(view.stdout, "_width", 80)
    code, out, _ = plan(capsys, *APART, "vllm.tensor_parallel=2", "optimizer.micro_batch_tokens=65536")
    assert code == 0
    assert "4 GPUs: 2 ranks and 1 engine on 2 GPUs" in out
    assert "each of 2 rank GPUs:" in out
    assert "each of 2 engine GPUs:" in out
    assert "assumes that NVLink reaches 350 of its 450 GB/s each way" in out
    [line] = [line for line in out.splitlines() if line.startswith("tinyzero train")]
    assert "--gpus 4 --address 10.0.0.1:6379 rollout.num_engines=1 rollout.engine=vllm vllm.tensor_parallel=2" in line
    beside = plan(capsys, "--gpus", "16", "--gpu", "H200")[1]
    assert "16 GPUs: 16 ranks with an engine on each" in beside
    assert "tokens/s" not in beside  # no times are predicted over several nodes
    assert "engine GPU" not in beside


def test_the_page_has_what_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(view.stdout, "_width", 80)
    page = (Path(__file__).parents[3] / "docs" / "plan.md").read_text()
    *_, example = page.partition("    tinyzero plan --task countdown --model Qwen/Qwen2.5-7B --gpus")
    typed, printed = example.split("\n\n", 1)
    words = typed.replace("\\\n", " ").split()
    lines = [
        line.rstrip() for line in plan(capsys, "--gpus", *words)[1].split("the requested settings fit")[0].splitlines()
    ]
    assert "\n".join(f"    {line}".rstrip() for line in lines).strip() in printed


def test_json_has_each_kind_of_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = plan(capsys, *APART, "--json")
    found = json.loads(out)
    assert code == 0
    assert [(one["gpu"], one["count"]) for one in found["gpus"]] == [("rank", 3), ("engine", 1)]
    assert found["proposed"]["peak"] == max(one["peak"] for one in found["gpus"])
    assert found["interconnect"] == {"kind": "NVLink", "rated": 450e9, "reached": 350e9}
    assert found["speed"]["tokens_per_s_and_gpu"] == pytest.approx(found["speed"]["tokens_per_s"] / 4)
    assert json.loads(plan(capsys, "--gpu", "H200", "--json")[1])["interconnect"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--gpus", "0", "parallel.world_size=2"), "a run on Ray with ray.gpus=0 uses no GPU"),
        (("run.executor=ray", "parallel.world_size=2"), "a run on Ray with ray.gpus=0 uses no GPU"),
        (("--gpus", "2", "--gpu", "H200", "rollout.num_engines=2"), "leave no GPU of ray.gpus=2 to train on"),
        (
            ("--gpus", "4", "--gpu", "H200", "parallel.dp_replicate=3"),
            "parallel.dp_replicate=3 does not divide the 4 ranks",
        ),
        (("--gpu", "H200", "rollout.num_engines=1"), "has no such setting"),
        (
            ("--gpus", "8", "--gpu", "H200", "parallel.sequence_parallel=8"),
            "does not divide the model's 28 attention heads",
        ),
    ],
)
def test_wrong_use_is_refused_as_train_does(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = plan(capsys, *words)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())


@pytest.mark.slow
def test_train_warns_of_several_gpus_that_are_too_small(
    toy_task: str, toy_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from tinyzero_trainer.controller import loop

    begun = []
    monkeypatch.setattr(loop, "train", lambda config, **_: begun.append(config))
    small = TargetGpu("a small GPU", GIB // 2, None)
    monkeypatch.setattr(advice, "present_gpu", lambda device: None if device == "cpu" else small)
    words = ["train", "--task", toy_task, "--model", str(toy_model_path), "--output", str(tmp_path / "run")]
    words += ["rollout.max_completion_tokens=192"]
    warned = [line for line in call(capsys, *words, "--gpus", "2")[2].splitlines() if line.startswith("warning:")]
    assert len(warned) == 1
    assert "GiB on each GPU, and a small GPU has 0.5 GiB" in warned[0]
    assert "warning:" not in call(capsys, *words, "--gpus", "0", "parallel.world_size=2")[2]
    assert "warning:" not in call(capsys, *words, "run.executor=ray", "parallel.world_size=2")[2]
    assert len(begun) == 3


def test_the_warning_names_the_kind_of_gpu_and_settings_that_fit() -> None:
    spec = SPECS[SEVEN_B]
    words = (*GRPO, "rollout.max_completion_tokens=1024")
    config = on(config_of(*words, model=SEVEN_B), 4, engines=1)
    found = advice.warning_for(spec, config, target("H100"))
    assert found is not None
    assert "update_actor is predicted to take " in found
    assert " GiB on a rank's GPU, and H100 has 79.6 GiB" in found
    named = [word for word in found.split() if "=" in word and not word.startswith("(")]
    better = config_of(*words, "run.executor=ray", "ray.gpus=4", "rollout.num_engines=1", *named, model=SEVEN_B)
    assert predict_memory(spec, settle(spec, better, usable(target("H100").free))).peak <= usable(target("H100").free)
    assert advice.warning_for(spec, better, target("H100")) is None


def test_out_of_memory_on_a_rank_names_what_lowers_it_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "present_gpu", lambda _: target("H200"))
    config = on(config_of(*GRPO, "rollout.max_completion_tokens=1024", "rollout.max_num_seqs=64"), 4, engines=1)
    assert advice.after_out_of_memory(config, ["update_actor"]).startswith("optimizer.micro_batch_tokens=")
    assert advice.after_out_of_memory(config, ["gen"]) == "rollout.max_num_seqs=32"
    assert advice.after_out_of_memory(config, [advice.LOADING]) in ("", "memory.cpu_offload=always")


def test_a_shape_that_is_only_counted_is_planned_too() -> None:
    spec = ModelSpec(
        "m", 10**9, hidden=2048, layers=16, heads=32, kv_heads=8, head_size=64, mlp=8192, vocabulary=128_000, tied=True
    )
    planned = plan_for(spec, on(config_of(*GRPO), 2), TargetGpu("a GPU", 24 * GIB, None))
    assert planned.plan.fits
    assert (planned.speed, planned.interconnect) == (None, None)
