"""The simulation of a step on many GPUs: its laws, what was measured on one, and the tables in scaling.md."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import scaling
from benchmarks.cluster import failures
from benchmarks.cluster.generation import Engines, Lengths
from benchmarks.cluster.host import measure
from benchmarks.cluster.network import NIC, Cluster, Group, Traffic, broadcast
from benchmarks.cluster.step import (
    Run,
    engines_of,
    generation,
    one_step_off,
    passes,
    phase_bytes,
    slots_for,
    synchronous,
    weights,
)
from benchmarks.common import with_content
from tests.trainer.advisor.planned import HALF_B, MODELS, SPECS
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.advisor.memory import predict_memory
from tinyzero_trainer.advisor.speed import predict_speed
from tinyzero_trainer.config.settings import with_settings
from tinyzero_trainer.hardware.gpu_specs import find_gpu_spec

H200 = find_gpu_spec("H200")
assert H200 is not None
EVEN = Lengths(median=1024, spread=0.0, most=1024)


def run_of(*overrides: str, model: str = HALF_B, nodes: int = 1, gpus: int = 8, lengths: Lengths = EVEN) -> Run:
    overrides = ("data.prompts_per_step=32", "rollout.group_size=8", "rollout.max_completion_tokens=1024", *overrides)
    return scaling.make_run(model, lengths=lengths, overrides=overrides, nodes=nodes, gpus=gpus, prompt=140)


# ---- one GPU ---------------------------------------------------------------------------------------------------------

MEASURED = run_of("data.prompts_per_step=128", "optimizer.num_mini_batches=1", gpus=1)
"""What stands in benchmarks/README.md, "The phases of a step"."""


def test_one_gpu_takes_as_long_as_was_measured() -> None:
    step = synchronous(MEASURED)
    assert step.seconds == pytest.approx(12.6, rel=0.1)
    assert step.phases["gen"].seconds == pytest.approx(4.48, rel=0.1)
    assert step.phases["update_actor"].seconds == pytest.approx(7.97, rel=0.1)
    assert step.rate == pytest.approx(94_598, rel=0.1)
    assert step.phases["reward"].seconds + step.phases["controller"].seconds == pytest.approx(0.167 - 0.0362, abs=1e-3)


@pytest.mark.parametrize("engine", ["torch", "vllm"])
@pytest.mark.parametrize("num_mini_batches", [1, 4])
def test_one_gpu_agrees_with_the_plan(engine: str, num_mini_batches: int) -> None:
    run = run_of(f"rollout.engine={engine}", f"optimizer.num_mini_batches={num_mini_batches}", gpus=1)
    plan, step = predict_speed(run.spec, run.config, run.cluster.gpu, run.prompt).seconds, synchronous(run)
    assert ("old_log_prob" in plan) == (num_mini_batches > 1)
    for phase in plan.keys() - {"reward"}:
        # vLLM's step is not linear in the length, which the plan takes in the mean.
        assert step.phases[phase].seconds == pytest.approx(plan[phase], rel=1e-9 if engine == "torch" else 0.02)
    assert [step.sent(link) for link in ("nvlink", "nic", "hosts")] == [0, 0, 0]
    assert step.idle == 0


@pytest.mark.parametrize("engine", ["torch", "vllm"])
def test_one_gpu_holds_what_the_plan_says(engine: str) -> None:
    run = run_of(f"rollout.engine={engine}", gpus=1)
    config = with_settings(run.config, {"rollout.max_num_seqs": 64})
    for phase in predict_memory(run.spec, config, run.prompt).phases:
        held = phase_bytes(run.spec, run.config, run.prompt, 1, 64)[phase.name]
        assert held == pytest.approx(phase.total, rel=0.1)  # a process of vLLM's own wastes nothing by the plan


# ---- links -----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 64), st.integers(1, 16), st.booleans(), st.floats(1, 1e12))
def test_a_gather_brings_every_gpu_what_it_lacks_and_no_more(nodes: int, gpus: int, within: bool, size: float) -> None:
    cluster = Cluster(H200, nodes, gpus)
    group = Group(cluster, 1 if within else nodes, gpus)
    traffic = group.gather(size)
    lacking = size - size / group.size
    assert traffic.nvlink + traffic.nic == pytest.approx(cluster.size * lacking)
    assert (traffic.nic > 0) == (group.nodes > 1)
    assert traffic.seconds >= lacking / cluster.nvlink * (group.size > 1)
    assert group.all_reduce(size) == traffic * 2


def test_links_limit_by_what_goes_over_them() -> None:
    wide = Cluster(H200, 8, 8)
    assert Group(wide, 8, 8).gather(350e9).seconds == pytest.approx(63 / 64 * 350 / 350, rel=1e-3)
    slow = replace(wide, nic=NIC / 8)
    assert Group(slow, 8, 8).gather(45e9).seconds == pytest.approx(63 / 64, rel=1e-3)
    assert Group(slow, 1, 8).gather(45e9) == Group(wide, 1, 8).gather(45e9)
    assert broadcast(wide, 2, 10.0) == Traffic(broadcast(wide, 2, 10.0).seconds, nvlink=2 * 7 * 10, nic=20)


# ---- generation ------------------------------------------------------------------------------------------------------

LOADS = st.lists(st.integers(1, 50), min_size=1, max_size=60)


def engines(step: Callable[[int, float], float], count: int, places: int, refills: bool, prefill: float = 0) -> Engines:
    return Engines(count, places, refills, step, prompt=7, prefill=prefill)


@given(LOADS, st.integers(1, 5), st.integers(1, 20), st.booleans(), st.booleans())
def test_every_token_is_generated_once_and_the_longest_is_waited_for(
    lengths: list[int], count: int, places: int, refills: bool, queue: bool
) -> None:
    by_sequences = engines(lambda sequences, _: sequences, count, places, refills, prefill=3)
    assert sum(by_sequences.generate(lengths, shared=queue)) == sum(lengths) + 3 * len(lengths)
    by_cache = engines(lambda sequences, length: sequences * length, count, places, refills)
    cached = sum(length * 7 + length**2 / 2 for length in lengths)
    assert sum(by_cache.generate(lengths, shared=queue)) == pytest.approx(cached)
    done = engines(lambda *_: 1, count, places, refills).generate(lengths, shared=queue)
    assert max(lengths) <= max(done) <= sum(lengths)


@given(st.integers(1, 8), st.integers(1, 5), st.integers(1, 3), st.booleans(), st.booleans())
def test_equal_lengths_leave_nobody_idle(count: int, places: int, rounds: int, refills: bool, queue: bool) -> None:
    done = engines(lambda *_: 1, count, places, refills).generate([9] * (count * places * rounds), shared=queue)
    assert done == [9 * rounds] * count


def test_a_place_that_is_taken_again_and_a_queue_shorten_a_wait() -> None:
    rounds, refilled, one_place = (
        engines(lambda *_: 1, 2, places, refills) for places, refills in ((2, False), (2, True), (1, True))
    )
    assert rounds.generate([8, 1, 1, 1, 1, 1, 1, 1]) == [9, 2]
    assert refilled.generate([8, 1, 1, 1, 1, 1, 1, 1]) == [8, 2]
    assert one_place.generate([8, 8, 1, 1]) == [16, 2]
    assert one_place.generate([8, 8, 1, 1], shared=True) == [9, 9]


def test_lengths_depend_on_the_seed_alone_and_keep_to_the_limit() -> None:
    sampled = Lengths(1200, 0.8, 8192).sample(20_000, seed=1)
    assert sampled == Lengths(1200, 0.8, 8192).sample(20_000, seed=1) != Lengths(1200, 0.8, 8192).sample(20_000, seed=2)
    assert sorted(sampled)[10_000] == pytest.approx(1200, rel=0.03)
    assert max(sampled) == 8192
    assert sum(length == 8192 for length in sampled) / 20_000 == pytest.approx(0.0082, rel=0.2)


def test_engines_over_several_gpus_add_up_in_every_layer() -> None:
    words, model = ("rollout.engine=vllm", "vllm.sleep_mode=true"), "Qwen/Qwen2.5-7B"
    alone, four = (run_of(*words, f"vllm.tensor_parallel={count}", model=model) for count in (1, 4))
    assert (engines_of(alone).count, engines_of(four).count) == (8, 2)
    assert engines_of(alone).step(64, 500) / 4 < engines_of(four).step(64, 500) < engines_of(alone).step(64, 500)


# ---- steps -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=15)
@given(st.sampled_from([2, 3, 8]), st.floats(0, 1), st.integers(0, 9))
def test_more_nodes_are_never_faster_than_linear(nodes: int, spread: float, seed: int) -> None:
    one = replace(run_of(lengths=Lengths(300, spread, 1024)), seed=seed)
    before, after = synchronous(one), synchronous(one.on(replace(one.cluster, nodes=nodes)))
    assert after.tokens == before.tokens
    for name, phase in after.phases.items():
        assert nodes * phase.seconds >= before.phases[name].seconds * (1 - 1e-9), name


ACCUMULATING = run_of("data.prompts_per_step=96", "optimizer.num_mini_batches=2", "optimizer.micro_batch_tokens=2400")
"""Several micro-batches for each mini-batch, even of 64 ranks."""


@settings(max_examples=10)
@given(MODELS, st.sampled_from([2, 4, 8]))
def test_hybrid_sharding_moves_fewer_bytes_between_nodes_and_holds_more(model: str, nodes: int) -> None:
    run = replace(ACCUMULATING, spec=SPECS[model], cluster=Cluster(H200, nodes))
    full, hybrid, once = (passes(replace(run, sharding=way), run.sample_lengths()) for way in scaling.SHARDINGS)
    assert hybrid["old_log_prob"].nic == once["old_log_prob"].nic == 0 < full["old_log_prob"].nic
    assert once["update_actor"].nic < min(hybrid["update_actor"].nic, full["update_actor"].nic)
    assert once["update_actor"].seconds <= hybrid["update_actor"].seconds
    spec, config = run.spec, run.config
    held = [phase_bytes(spec, config, 140, shards, 1)["update_actor"] for shards in (8 * nodes, 8)]
    assert held[0] < held[1]


def test_hybrid_sharding_is_full_sharding_on_one_node() -> None:
    run = run_of("optimizer.num_mini_batches=2")
    assert len({str(synchronous(replace(run, sharding=way))) for way in scaling.SHARDINGS}) == 1


def test_a_slower_nic_costs_nothing_until_it_is_the_limit() -> None:
    run = run_of("data.prompts_per_step=256", "optimizer.num_mini_batches=1", model="Qwen/Qwen2.5-7B", nodes=4)
    slower = [run.on(replace(run.cluster, nic=NIC / by)) for by in (1, 2, 50, 100)]
    seconds = [passes(one, one.sample_lengths())["update_actor"].seconds for one in slower]
    assert seconds == sorted(seconds)
    assert seconds[1] == pytest.approx(seconds[0], rel=0.05)
    assert seconds[3] == pytest.approx(2 * seconds[2], rel=0.05)


def test_time_in_the_object_store_grows_with_nodes() -> None:
    runs = [run_of(nodes=nodes) for nodes in (1, 2, 8)]
    carried = [synchronous(run).phases["object_store"] for run in runs]
    assert 0 < carried[0].seconds < carried[1].seconds < carried[2].seconds
    assert carried[0].hosts == 0 < carried[1].hosts < carried[2].hosts
    for run in runs:
        stored = weights(replace(run, way="object store"))
        assert stored.hosts == 2 * run.spec.parameters * (run.cluster.nodes - 1)
        assert stored.seconds > 10 * weights(run).seconds


def test_a_step_ahead_takes_as_long_as_the_slower_half() -> None:
    run = run_of("optimizer.num_mini_batches=2", nodes=4, lengths=Lengths(300, 0.5, 1024))
    step = one_step_off(run, replace(run.cluster, nodes=1), replace(run.cluster, nodes=3))
    seconds = {name: phase.seconds for name, phase in step.phases.items()}
    assert max(seconds["gen"], seconds["update_actor"] + seconds["old_log_prob"]) < step.seconds < sum(seconds.values())
    assert step.gpus == run.cluster.size
    alone, _ = generation(run.on(replace(run.cluster, nodes=1)), run.sample_lengths(), alone=True)
    assert seconds["gen"] == alone.seconds


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_an_engine_has_room_for_more_where_shards_are_smaller() -> None:
    spec, config, gpu = SPECS["Qwen/Qwen2.5-7B"], run_of(model="Qwen/Qwen2.5-7B").config, 60 * 2**30
    places = [slots_for(spec, config, 140, shards, 4096, gpu) for shards in (8, 16, 64, math.inf)]
    assert places == sorted(places)
    assert len(set(places)) == 4
    for shards, count in zip((8, 64), (places[0], places[2]), strict=True):
        assert phase_bytes(spec, config, 140, shards, count)["gen"] <= gpu
        assert phase_bytes(spec, config, 140, shards, count + 1)["update_weights"] > gpu
    with pytest.raises(ValueError, match="in 1 shards leaves no memory"):
        slots_for(spec, config, 140, 1, 4096, gpu)


# ---- failures --------------------------------------------------------------------------------------------------------


@given(st.floats(1, 600), st.integers(1, 100_000))
def test_the_best_interval_loses_least(cost: float, gpus: int) -> None:
    mean = failures.mtbf(gpus)
    best = failures.best_interval(cost, mean)
    least = failures.lost(best, cost, mean)
    assert all(failures.lost(best * by, cost, mean) >= least for by in (0.5, 0.9, 1.1, 2))


def test_interruptions_are_as_often_as_reported() -> None:
    assert 54 * 24 * 3600 / failures.mtbf(16_384) == pytest.approx(419)
    assert failures.mtbf(64) / 86_400 == pytest.approx(33, abs=0.1)


def test_more_gpus_do_not_shorten_a_checkpoint_beyond_the_file_system() -> None:
    spec = SPECS["Qwen/Qwen2.5-7B"]
    one, eight, many = (failures.checkpoint_seconds(spec, gpus) for gpus in (1, 8, 640))
    assert (one["weights"], one["seal"]) == (many["weights"], many["seal"])
    assert one["moments"] == pytest.approx(8 * eight["moments"])
    assert many["moments"] == pytest.approx(8 * spec.parameters / failures.FILE_SYSTEM)


# ---- the script and the page -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_has_the_tables_that_the_script_prints() -> None:
    page = scaling.DOCS.read_text(encoding="utf-8")
    assert with_content(page, scaling.Tables(scaling.make_run()).all()) == page


def test_a_table_without_a_place_in_the_page_is_reported() -> None:
    with pytest.raises(ValueError, match="no place for 'other'"):
        with_content("<!-- weak: begin -->\n<!-- weak: end -->", {"other": "|a|"})


@pytest.mark.parametrize(
    "word",
    ["lora.rank=8", "memory.cpu_offload=idle", "algorithm.kl_coefficient=0.1", "algorithm.advantage_estimator=remax"],
)
def test_what_is_not_simulated_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match=f"{word.partition('=')[0]}.*: not simulated"):
        run_of(word)


def test_the_page_takes_no_other_tables_than_the_usual(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scaling, "DOCS", tmp_path / "scaling.md")
    with pytest.raises(typer.BadParameter, match="--write-docs takes no other options"):
        scaling.main(["rollout.max_completion_tokens=64"], write=True)


def test_a_gpu_that_nobody_knows_is_refused() -> None:
    with pytest.raises(TinyZeroError, match="--gpu 'abacus' is not known"):
        scaling.make_run(gpu="abacus")


def test_what_the_controller_takes_is_measured() -> None:
    found = measure(tokens=8, completions=8, block=2**16)
    assert set(found) == {"a token from engines", "a token to ranks", "SHA-256"}
