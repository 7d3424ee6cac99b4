"""`model.dtype=auto` on GPUs with bfloat16 and without: run and plan mean the same by it. GPUs are made up."""

from types import SimpleNamespace

import pytest
import torch

from tests.trainer.configurations import call
from tests.trainer.doctor.machines import T4, facts_of, seen
from tests.trainer.plan.planned import GRPO, HALF_B, SPECS, config_of
from tests.trainer.plan.test_target_gpu import gpus_here
from tinyzero_trainer.cli.plan_report import plan_for
from tinyzero_trainer.distributed.fsdp import compute_dtype
from tinyzero_trainer.estimate.fit import with_settings
from tinyzero_trainer.estimate.speed import predict_speed
from tinyzero_trainer.hardware.gpu import GIB, GpuInfo
from tinyzero_trainer.hardware.gpu_specs import find_gpu_spec, has_bfloat16, known_gpus
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.plan import advice
from tinyzero_trainer.plan.target_gpu import TargetGpu, choose_target, on_gpu, present_gpu
from tinyzero_trainer.rollout.vllm.engine_args import settled

CAPABILITIES = [(6, 1), (7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]


def pretend(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], memory: int = 24 * GIB) -> torch.device:
    """Torch with a GPU that it has not."""
    major, minor = capability
    gpu = SimpleNamespace(major=major, minor=minor, total_memory=memory, name="made up")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: gpu)
    return torch.device("cuda")


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("name", ["auto", "float32", "bfloat16"])
def test_the_run_and_the_plan_mean_the_same(
    name: str, capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = str(compute_dtype(name, pretend(monkeypatch, capability))).removeprefix("torch.")
    here = GpuInfo(0, "Made up", capability, 24 * GIB, uuid="a")
    gpus_here(monkeypatch, [here], [here])
    target = present_gpu("auto")
    assert target is not None
    planned = on_gpu(config_of(f"model.dtype={name}"), target).model.dtype
    assert {"auto": "bfloat16"}.get(planned, planned) == run


def test_what_a_gpu_is_called_tells_it_where_its_capability_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [gpu.name for gpu in known_gpus() if not gpu.bfloat16] == ["V100 32GB", "V100", "T4"]
    assert not choose_target("T4", None, "auto").bfloat16
    assert choose_target("L4", None, "auto").bfloat16
    here = GpuInfo(0, "Tesla V100-SXM2-16GB", None, 16 * GIB, uuid="a")
    gpus_here(monkeypatch, [here], None)
    assert not choose_target(None, None, "auto").bfloat16
    assert not choose_target(None, "16GB", "auto").bfloat16  # the speed is that of the GPU that is here, too
    assert has_bfloat16(None, None)


def test_memory_and_time_are_those_of_float32(capsys: pytest.CaptureFixture[str]) -> None:
    config, spec, t4 = config_of(*GRPO), SPECS[HALF_B], choose_target("T4", "80GB", "auto")
    auto, asked = (plan_for(spec, one, t4) for one in (config, with_settings(config, {"model.dtype": "float32"})))
    assert auto == asked
    assert (
        auto.plan.requested.peak > 1.3 * plan_for(spec, config, choose_target("L4", "80GB", "auto")).plan.requested.peak
    )
    assert not any(change.key == "model.dtype" for change in auto.plan.changes)
    gpu = find_gpu_spec("A100")
    assert gpu is not None
    half, whole = (
        predict_speed(spec, with_settings(config, {"model.dtype": name}), gpu) for name in ("auto", "float32")
    )
    assert whole.seconds["update_actor"] == pytest.approx(312 / 19.5 * half.seconds["update_actor"])
    out = call(capsys, "plan", "--model", HALF_B, "--gpu", "T4")[1]
    assert "computed in float32 (model.dtype), because T4 has no bfloat16" in out
    assert "float32" not in call(capsys, "plan", "--model", HALF_B, "--gpu", "L4")[1]


def test_the_warning_and_the_words_after_out_of_memory_count_it_too() -> None:
    config, spec = config_of(*GRPO, "rollout.max_completion_tokens=256", "rollout.max_num_seqs=64"), SPECS[HALF_B]
    peaks = [
        plan_for(spec, config, TargetGpu("a GPU", 100 * GIB, None, bfloat16=has)).plan.requested.peak for has in (1, 0)
    ]
    between = sum(peaks) // 2
    assert advice.warning_for(spec, config, TargetGpu("a GPU", between, None)) is None
    assert advice.warning_for(spec, config, TargetGpu("a GPU", between, None, bfloat16=False)) is not None
    old = TargetGpu("a GPU", int(between / 0.9), None, bfloat16=False)
    words = advice.after_out_of_memory(config, ["update_actor"], old)
    assert plan_for(spec, config_of(*GRPO, "rollout.max_completion_tokens=256", *words.split()), old).plan.fits


def test_vllm_gets_memory_for_the_type_that_it_computes_in(
    toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    for capability in [(7, 5), (9, 0)]:
        config = with_settings(config_of("rollout.engine=vllm", *GRPO), {"run.device": "cuda"})
        sizes.append(settled(config, toy_model, pretend(monkeypatch, capability)).gpu_memory_gb)
    asked = with_settings(config, {"model.dtype": "float32"})
    assert sizes[0] == settled(asked, toy_model, torch.device("cuda")).gpu_memory_gb
    assert (sizes[0] or 0) > (sizes[1] or 0)


def test_the_doctor_says_what_auto_is_there() -> None:
    finding = seen(facts_of(T4), "gpu 0")
    assert (finding.level, "it has no bfloat16: model.dtype=auto is float32 on it" in finding.what) == ("note", True)
