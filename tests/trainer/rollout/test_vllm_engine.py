"""What the engine `vllm` does in a run in which nothing fails; vLLM itself is a fake.

The real one is in test_vllm_cpu.py; what may fail, how it is started and how weights get there have files of their own.
"""

from itertools import pairwise

import pytest
import torch

from tests.trainer.rollout.vllm_setup import END, PROMPTS, Setup, expected
from tests.trainer.rollout.vllm_setup import _quick as _quick
from tinyzero_trainer.errors import VllmError
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.vllm.engine import VllmEngine
from tinyzero_trainer.rollout.vllm.sync_check import completion_logprobs, make_check
from tinyzero_trainer.types import Generation


def test_completions_come_in_order_with_their_end_and_logprobs() -> None:
    groups = expected(3, SamplingParams(5, logprobs=True), seed=1)
    assert [len(group) for group in groups] == [3, 3, 3]
    for group in groups:
        assert [rollout.finished for rollout in group] == [True, False, False]
        assert group[0].token_ids[-1] == END
        assert all(len(rollout.logprobs or ()) == len(rollout.token_ids) for rollout in group)
    assert expected(3, SamplingParams(5), seed=1)[0][0].logprobs is None


def test_an_end_token_ends_nothing_where_ends_are_ignored() -> None:
    fake = Setup()
    engine = fake.engine()
    (rollout,) = engine.generate([[1]], 1, SamplingParams(4, ignore_eos=True), seed=0)[0]
    assert len(rollout.token_ids) == 4
    assert not rollout.finished


def test_seeds_of_a_prompts_completions_never_meet_those_of_another() -> None:
    fake = Setup()
    engine = fake.engine()
    requests = engine._requests([[1]] * 50, 8, SamplingParams(4), seed=3, first=0)
    starts = sorted(request.seed for request in requests)
    assert all(later - earlier > 8 for earlier, later in pairwise(starts))
    assert max(starts) + 8 < 2**63
    again = engine._requests([[1]] * 50, 8, SamplingParams(4), seed=3, first=0)
    assert [request.seed for request in again] == [request.seed for request in requests]
    assert not {request.name for request in again} & {request.name for request in requests}


def test_asleep_it_wakes_up_for_new_weights_the_cache_last() -> None:
    fake = Setup(sleep_mode=True)
    engine = fake.engine()
    fake.log.clear()
    engine.sleep()
    engine.sleep()
    fake.weights = {"head": torch.ones(2)}
    engine.load_weights()
    assert fake.log == ["sleep", "wake weights", "wake kv_cache", "reset"]
    assert torch.equal(fake.engines[0].weights["head"], torch.ones(2))
    engine.sleep()
    fake.weights = {"head": torch.full((2,), 2.0)}
    fake.log.clear()
    engine.generate(PROMPTS, 1, SamplingParams(3), seed=0)  # its weights were lost, so it takes the present ones
    assert fake.log == ["wake weights", "wake kv_cache", "reset"]
    assert torch.equal(fake.engines[0].weights["head"], torch.full((2,), 2.0))


def test_what_this_process_only_keeps_of_the_gpu_is_given_back_before_vllm_takes_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = Setup(("step", 1, "dies"), sleep_mode=True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: fake.log.append("free"))
    engine = fake.restarting()
    engine.sleep()
    engine.generate(PROMPTS, 1, SamplingParams(3), seed=0)
    neighbours = list(pairwise(fake.log))
    assert {("start", "free"), ("free", "wake weights"), ("free", "wake kv_cache")} <= set(neighbours)
    assert fake.log.count("start") == 2
    fake.log.clear()
    engine.load_weights()
    assert fake.log == ["reset"]  # awake it has its memory, and asking for it would cost time


def test_where_memory_suffices_it_never_sleeps() -> None:
    fake = Setup()
    engine = fake.engine()
    engine.sleep()
    engine.load_weights()
    assert "sleep" not in fake.log
    assert fake.log.count("reset") == 2


def test_the_check_comes_after_each_sync_and_its_error_ends_the_run() -> None:
    fake, checked = Setup(sleep_mode=True), []

    def check(engine: VllmEngine) -> None:
        checked.append(len(engine.probe([[1], [2]], SamplingParams(2, ignore_eos=True))))
        if len(checked) == 3:
            raise VllmError("they differ")

    engine = fake.engine(check=check)
    engine.load_weights()
    engine.sleep()
    with pytest.raises(VllmError, match="they differ"):
        engine.load_weights()
    assert checked == [2, 2, 2]


def test_an_engine_that_is_refused_at_its_start_does_not_live_on() -> None:
    def check(engine: VllmEngine) -> None:
        raise VllmError("they differ")

    fake = Setup()
    with pytest.raises(VllmError, match="they differ"):
        fake.engine(check=check)
    assert not fake.engines[0].alive()


def test_the_check_tells_other_weights_from_the_policys(toy_model: LanguageModel) -> None:
    class Other:
        """Answers with what `model` thinks."""

        def __init__(self, model: LanguageModel) -> None:
            self.model = model

        def probe(self, prompts: list[list[int]], params: SamplingParams) -> list[Generation]:
            drawn = [Generation([5 + place for place in range(params.max_tokens)], None, False) for _ in prompts]
            values = completion_logprobs(self.model, list(zip(prompts, drawn, strict=True)))
            rows = values.view(len(prompts), -1).tolist()
            return [Generation(each.token_ids, row, False) for each, row in zip(drawn, rows, strict=True)]

    check = make_check(toy_model, torch.float32)
    check(Other(toy_model))  # type: ignore[arg-type]
    with torch.no_grad():
        toy_model.model.model.norm.weight.mul_(1.1)
    stale = Other(toy_model)
    values = stale.probe([[1, 2, 3]] * 4, SamplingParams(8))
    with torch.no_grad():
        toy_model.model.model.norm.weight.mul_(1.5)
    stale.probe = lambda prompts, params: values  # type: ignore[method-assign, assignment]
    with pytest.raises(VllmError, match="differ from the policy's by"):
        check(stale)  # type: ignore[arg-type]
    stale.probe = lambda prompts, params: [Generation(v.token_ids, [float("nan")] * 8, False) for v in values]  # type: ignore[method-assign, assignment]
    with pytest.raises(VllmError, match="by nan a token"):
        check(stale)  # type: ignore[arg-type]
