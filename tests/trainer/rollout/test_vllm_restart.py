"""An engine `vllm` that dies, hangs, returns too little or has to stop is restarted; vLLM is a fake."""

import pytest
import torch

from tests.trainer.rollout.vllm_setup import PROMPTS, Setup, expected
from tests.trainer.rollout.vllm_setup import _quick as _quick
from tinyzero_trainer.errors import EngineDiedError
from tinyzero_trainer.rollout import SamplingParams


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("dies", "its process ended"),
        ("hangs", "it did not answer within 0.4 s"),
        ("raises", "RuntimeError: CUDA error: unspecified launch failure"),
        ("fewer", "it gave 1 completions for 2"),
        ("empty", "it gave an empty completion"),
        ("forgets", "it left 3 of 3 prompts unanswered"),
        ("no logprobs", "it did not give the log-probability of each token"),
    ],
)
def test_an_engine_that_fails_is_replaced_and_its_batch_repeated(kind: str, reason: str) -> None:
    params = SamplingParams(3, logprobs=True)
    fake = Setup(("step", 3, kind), timeout=0.4)
    engine = fake.restarting()
    fake.weights = {"head": torch.ones(2)}  # the new engine has the present ones
    progress: list[int] = []
    assert engine.generate(PROMPTS, 2, params, seed=5, on_progress=progress.append) == expected(2, params, seed=5)
    assert sum(progress) == 6  # none counted twice
    assert [note for note in fake.notes if reason in note]
    assert fake.log.count("start") == 2
    assert torch.equal(fake.engines[1].weights["head"], torch.ones(2))
    assert not fake.engines[0].alive()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["add", "send", "sleep", "wake"])
@pytest.mark.parametrize("kind", ["dies", "raises"])
def test_it_may_fail_in_whatever_it_does(method: str, kind: str) -> None:
    fake = Setup((method, 2 if method == "send" else 1, kind), sleep_mode=True)
    engine = fake.restarting()
    for _ in range(2):
        groups = engine.generate(PROMPTS, 2, SamplingParams(3), seed=5)
        engine.sleep()
        engine.load_weights()
    assert groups == expected(2, SamplingParams(3), seed=5)
    assert fake.log.count("start") == 2
    assert len(fake.notes) == 1


@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_it_is_restarted_up_to_a_limit(restarts: int) -> None:
    fake = Setup(*[("step", 1, "dies")] * 9, max_restarts=restarts)
    engine = fake.restarting(log_reason=lambda: "torch.OutOfMemoryError: CUDA out of memory")
    with pytest.raises(EngineDiedError, match=r"its process ended \(torch.OutOfMemoryError.*lower vllm.gpu_memory_gb"):
        engine.generate(PROMPTS, 1, SamplingParams(3), seed=0)
    assert fake.log.count("start") == 1 + restarts
    assert len(fake.notes) == restarts


def test_an_engine_that_does_not_start_is_not_tried_again() -> None:
    fake = Setup(("start", 1, "raises"))
    with pytest.raises(EngineDiedError, match=r"did not start: RuntimeError: .* failure \(ValueError: no memory\)"):
        fake.restarting(log_reason=lambda: "ValueError: no memory")
    assert fake.log == ["start", "kill"]


class Stop(Exception):
    pass


@pytest.mark.parametrize("separate_process", [True, False])
def test_a_stop_aborts_what_is_under_way_and_the_engine_stays(separate_process: bool) -> None:
    fake = Setup(timeout=20.0 if separate_process else None)
    engine = fake.restarting()

    def stop(_: int) -> None:
        raise Stop

    with pytest.raises(Stop):
        engine.generate(PROMPTS, 2, SamplingParams(100_000), seed=0, on_progress=stop)
    assert fake.log[-1] == "abort 3"
    assert engine.generate(PROMPTS, 2, SamplingParams(3), seed=5) == expected(2, SamplingParams(3), seed=5)
    assert fake.log.count("start") == 1


@pytest.mark.slow
def test_a_stop_while_it_hangs_is_raised_and_ends_the_engine() -> None:
    fake = Setup(("step", 1, "hangs"))
    engine = fake.restarting()

    def stop(_: int) -> None:
        raise Stop

    with pytest.raises(Stop):
        engine.generate(PROMPTS, 2, SamplingParams(100_000), seed=0, on_progress=stop)
    assert not fake.engines[0].alive()
    assert fake.notes == []
    engine.generate(PROMPTS, 2, SamplingParams(3), seed=5)
    assert fake.log.count("start") == 2


def test_closing_ends_the_process_even_if_it_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    for faults in [(), (("close", 1, "raises"),), (("close", 1, "dies"),)]:
        fake = Setup(*faults)
        engine = fake.engine()
        engine.close()
        engine.close()
        assert fake.log[-1] == "kill"
        assert fake.log.count("kill") == 1
