"""The engine `vllm`, its failures, and the check of its weights; vLLM is a fake. The real one: test_vllm_cpu.py."""

import _thread
import gc
import time
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.faults import Faults
from tests.trainer.rollout.engines import asked
from tests.trainer.rollout.fake_vllm import PROMPTS, Engines, expected
from tests.trainer.rollout.fake_vllm import _quick as _quick
from tinyzero_trainer.errors import EngineDiedError, VllmError
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.rollout.engine import Completions, PromptBatch, SamplingParams
from tinyzero_trainer.rollout.vllm import engine
from tinyzero_trainer.rollout.vllm.sync_check import PARAMS, SyncCheck, completion_logprobs
from tinyzero_trainer.types import Generation


def test_seeds_of_a_prompts_completions_never_meet_those_of_another() -> None:
    groups = PromptBatch([[1]] * 50, 8, SamplingParams(4), seed=3).groups
    starts = sorted(map(engine.first_seed, groups))
    assert all(later - earlier > 8 for earlier, later in pairwise(starts))
    assert max(starts) + 8 < 2**63


def test_a_sleeping_engine_wakes_up_for_new_weights_its_cache_last() -> None:
    awake = Engines()
    awake.start().sleep()
    assert awake.log == ["start", "reset"], "without sleep mode it never sleeps"
    fake = Engines(sleep_mode=True)
    vllm = fake.start()
    fake.log.clear()
    vllm.sleep()
    vllm.sleep()
    fake.weights = {"head": torch.ones(2)}
    vllm.load_weights()
    assert fake.log == ["sleep", "wake weights", "wake kv_cache", "reset"]
    assert torch.equal(fake.clients[0].weights["head"], torch.ones(2))
    vllm.sleep()
    fake.weights = {"head": torch.full((2,), 2.0)}
    fake.log.clear()
    vllm.generate(PROMPTS, 1, SamplingParams(3), seed=0)  # its weights were lost, so it takes the current ones
    assert fake.log == ["wake weights", "wake kv_cache", "reset"]
    assert torch.equal(fake.clients[0].weights["head"], torch.full((2,), 2.0))


def test_the_groups_of_one_seed_are_sampled_at_a_time_by_one_version_of_the_weights() -> None:
    vllm, params = Engines().start(), SamplingParams(1)
    vllm.load_weights(4)
    first, second, third = (asked(PROMPTS, 2, limit, seed=seed) for seed, limit in ((1, 6), (2, 6), (3, 3)))
    batches = [
        [replace(group, number=10 * i + group.number) for group in each]
        for i, each in enumerate((first, second, third))
    ]
    vllm.submit([group for batch in batches for group in batch])
    for batch, seed, limit in zip(batches, (1, 2, 3), (6, 6, 3), strict=True):
        complete = vllm.advance(params, lambda _: None)
        assert [group.number for group in complete] == [group.number for group in batch]
        found = [list(group.completions) for group in complete]
        assert all(each.versions == ((4, len(each.token_ids)),) for group in found for each in group)
        alone = expected(2, SamplingParams(limit), seed)
        assert [[replace(each, versions=()) for each in group] for group in found] == alone
    assert vllm.advance(params, lambda _: None) == []


@pytest.mark.parametrize("restarted", [False, True])
def test_a_batch_that_is_stopped_or_whose_engine_dies_is_sampled_again(restarted: bool) -> None:
    engines = Engines(("step", 1, "dies") if restarted else None)
    vllm, stops = engines.restarting(), [] if restarted else [KeyboardInterrupt()]

    def stop(_: int) -> None:
        if stops:
            raise stops.pop()

    vllm.submit(asked(PROMPTS, 2, 6))
    with nullcontext() if restarted else pytest.raises(KeyboardInterrupt):
        assert len(vllm.advance(SamplingParams(6), stop)) == len(PROMPTS)
    assert len(vllm.unfinished()) == (0 if restarted else len(PROMPTS))
    assert vllm.generate(PROMPTS, 1, SamplingParams(3), seed=0) == expected(1, SamplingParams(3), 0)
    assert len(vllm.advance(SamplingParams(6), stop)) == (0 if restarted else len(PROMPTS))


# ---- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("dies", "its process ended"),
        ("hangs", "it did not answer within 0.4 s"),
        ("raises", "RuntimeError: CUDA error: unspecified launch failure"),
        ("fewer", "it gave fewer completions than requested"),
    ],
)
def test_an_engine_that_fails_is_restarted_and_its_batch_repeated(kind: str, reason: str) -> None:
    params = SamplingParams(3, logprobs=True)
    fake = Engines(("step", 3, kind), timeout=0.4 if kind == "hangs" else 20.0)
    vllm = fake.restarting()
    fake.weights = {"head": torch.ones(2)}  # the new engine has the current ones
    progress: list[int] = []
    assert vllm.generate(PROMPTS, 2, params, seed=5, on_progress=progress.append) == expected(2, params, seed=5)
    assert sum(progress) == 6  # none counted twice
    assert [note for note in fake.notes if reason in note]
    assert fake.log.count("start") == 2
    assert torch.equal(fake.clients[1].weights["head"], torch.ones(2))
    assert not fake.clients[0].alive()


@pytest.mark.parametrize("method", ["add", "send", "sleep", "wake"])
@pytest.mark.parametrize("kind", ["dies", "raises"])
def test_it_may_fail_in_any_call(method: str, kind: str) -> None:
    fake = Engines((method, 2 if method == "send" else 1, kind), sleep_mode=True)
    vllm = fake.restarting()
    for _ in range(2):
        groups = vllm.generate(PROMPTS, 2, SamplingParams(3), seed=5)
        vllm.sleep()
        vllm.load_weights()
    assert groups == expected(2, SamplingParams(3), seed=5)
    assert fake.log.count("start") == 2
    assert len(fake.notes) == 1


@pytest.mark.parametrize("restarts", [0, 2])
@pytest.mark.fault(
    "F7",
    "vLLM dies, again and again",
    made="its process ends in the first step of each attempt (hangs, errors, too few completions: the tests beside it)",
    seen="its process ended (OutOfMemoryError: CUDA…lower vllm.gpu_memory_gb…",
    kept=(
        "it is restarted with the current weights and the batch repeated, `vllm.max_restarts` times; then every "
        "whole step is saved"
    ),
    code=2,
)
def test_after_its_last_restart_the_reason_and_the_log_are_reported(fault_row: Faults, restarts: int) -> None:
    fake = Engines(*[("step", 1, "dies")] * 9, max_restarts=restarts, log_reason=lambda: "OutOfMemoryError: CUDA")
    vllm = fake.restarting()
    with pytest.raises(EngineDiedError) as error:
        vllm.generate(PROMPTS, 1, SamplingParams(3), seed=0)
    fault_row.check(error.value)
    assert fake.log.count("start") == 1 + restarts


@pytest.mark.parametrize(
    ("kind", "reason"), [("raises", "RuntimeError: .* failure"), ("hangs", r"it did not answer within 0\.1 s")]
)
def test_an_engine_that_does_not_start_is_not_tried_again(kind, reason, monkeypatch):
    monkeypatch.setattr(engine, "START_SECONDS", 0.1)
    fake = Engines(("start", 1, kind), log_reason=lambda: "ValueError: no memory")
    with pytest.raises(EngineDiedError, match=rf"did not start: {reason} \(ValueError: no memory\)"):
        fake.restarting()
    assert fake.log == ["start", "kill"]


class Stop(BaseException):
    pass


def stop(_: int = 0) -> None:
    raise Stop


@pytest.mark.parametrize("timeout", [20.0, None])
def test_a_stop_aborts_the_batch_and_the_engine_stays(timeout: float | None) -> None:
    fake = Engines(timeout=timeout)
    vllm = fake.restarting()
    with pytest.raises(Stop):
        vllm.generate(PROMPTS, 2, SamplingParams(100_000), seed=0, on_progress=stop)
    assert fake.log[-1] == "abort 3"
    assert vllm.generate(PROMPTS, 2, SamplingParams(3), seed=5) == expected(2, SamplingParams(3), seed=5)
    assert fake.log.count("start") == 1


def test_an_interrupt_while_it_hangs_ends_the_engine() -> None:
    def hang() -> None:
        _thread.interrupt_main()
        time.sleep(3600)

    fake = Engines(("step", 1, hang))
    vllm = fake.restarting()
    with pytest.raises(KeyboardInterrupt):
        vllm.generate(PROMPTS, 2, SamplingParams(100_000), seed=0)
    assert not fake.clients[0].alive()
    assert fake.notes == []
    vllm.generate(PROMPTS, 2, SamplingParams(3), seed=5)
    assert fake.log.count("start") == 2


@pytest.mark.parametrize("fault", [None, "raises", "dies"])
def test_closing_ends_the_process_even_if_it_fails(fault: str | None) -> None:
    fake = Engines(None if fault is None else ("close", 1, fault))
    vllm = fake.start()
    vllm.close()
    vllm.close()
    assert fake.log[-1] == "kill"
    assert fake.log.count("kill") == 1


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("timeout", [20.0, None])
def test_a_failed_call_keeps_nothing_that_it_was_given(timeout: float | None, no_collection: None) -> None:
    fake, sent, left = Engines(("send", 2, "raises"), timeout=timeout), list[weakref.ref[Tensor]](), []

    class Weights(dict[str, Tensor]):
        def items(self) -> Any:
            left.append([ref for ref in sent if ref() is not None])
            tensor = torch.zeros(9)
            sent.append(weakref.ref(tensor))
            yield "head", tensor

    fake.weights = Weights()
    fake.restarting().load_weights()
    assert left == [[], [], []]  # when another engine allocates memory
    assert not [ref for ref in sent if ref() is not None]


# ---- the check of its weights ----------------------------------------------------------------------------------------


def test_the_check_follows_each_sync_and_its_error_ends_the_run() -> None:
    checked = []

    def compare(groups: Completions) -> None:
        checked.append(len(groups))
        if len(checked) >= 3:
            raise VllmError("they differ")

    batch = PromptBatch([[1], [2]], 1, SamplingParams(2, ignore_eos=True), seed=0)
    fake = Engines(sleep_mode=True, check=SimpleNamespace(batch=batch, compare=compare))
    vllm = fake.start()
    vllm.load_weights()
    vllm.sleep()
    with pytest.raises(VllmError, match="they differ"):
        vllm.load_weights()
    assert checked == [2, 2, 2]
    with pytest.raises(VllmError, match="they differ"):
        fake.start()
    assert not fake.clients[1].alive(), "one that fails its check at the start is ended"


def test_the_check_distinguishes_other_weights_from_the_policys(toy_model: LanguageModel) -> None:
    check, tokens = SyncCheck(toy_model, torch.float32), list(range(5, 5 + PARAMS.max_tokens))
    sampled = [(prompt, Generation(tokens, None, False)) for prompt in check.batch.prompts]
    rows = completion_logprobs(toy_model, sampled).view(len(sampled), -1)
    check.compare([[Generation(tokens, row, False)] for row in rows.tolist()])
    with pytest.raises(VllmError, match="by nan a token"):
        check.compare([[Generation(tokens, row, False)] for row in (rows * float("nan")).tolist()])
    with torch.no_grad():
        toy_model.model.model.norm.weight.mul_(1.5)
    with pytest.raises(VllmError, match="differ from the policy's by"):
        check.compare([[Generation(tokens, row, False)] for row in rows.tolist()])
