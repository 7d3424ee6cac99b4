"""What the doctor says of GPUs, their drivers and the kernels that torch has for them."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.doctor.machines import CU124, CU130, GIB, GTX_1080, H200, RTX_5090, T4, facts_of, machine, seen
from tinyzero_sdk.cli import main
from tinyzero_trainer.doctor.checks import examine
from tinyzero_trainer.doctor.facts import Requirements, Torch
from tinyzero_trainer.hardware.compute_capability import build_for, has_kernels
from tinyzero_trainer.hardware.gpu import Driver, GpuInfo, Process
from tinyzero_trainer.models.device import DeviceError, choose_device

# ---- kernels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "archs", "runs"),
    [
        ((9, 0), ["sm_90"], True),
        ((9, 0), ["sm_90a"], True),
        ((8, 9), ["sm_80", "sm_86"], True),  # a newer minor version of the same major one
        ((8, 0), ["sm_86"], False),
        ((12, 0), ["sm_90", "sm_100"], False),
        ((12, 1), ["sm_120"], True),
        ((12, 0), ["sm_90", "compute_90"], True),  # PTX is compiled for newer GPUs
        ((12, 0), ["compute_90a"], False),  # but not where it is for one architecture
        ((10, 3), ["sm_100f"], True),
        ((10, 0), ["sm_103f"], False),
        ((12, 0), ["sm_100f"], False),
        ((6, 1), ["sm_60"], True),
        ((6, 1), ["sm_70", "compute_70"], False),
        ((8, 7), ["sm_80"], False),  # Orin
        ((8, 7), ["compute_80"], True),
        ((9, 0), ["gfx942"], False),
        ((9, 0), [], False),
    ],
)
def test_which_code_runs_on_which_gpu(capability: tuple[int, int], archs: list[str], runs: bool) -> None:
    assert has_kernels(capability, archs) is runs


@given(st.tuples(st.integers(5, 13), st.integers(0, 9)), st.tuples(st.integers(5, 13), st.integers(0, 9)))
def test_ptx_runs_on_whatever_its_machine_code_runs_on(code: tuple[int, int], gpu: tuple[int, int]) -> None:
    number = f"{code[0]}{code[1]}"
    machine_code, ptx = has_kernels(gpu, [f"sm_{number}"]), has_kernels(gpu, [f"compute_{number}"])
    assert ptx or not machine_code
    assert ptx == (code <= gpu)


PUBLISHED = {"cu126": CU124, "cu129": CU130[:-1], "cu130": CU130}


@given(st.sampled_from([(5, 0), (6, 1), (7, 0), (7, 5), (8, 6), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)]))
def test_the_torch_that_is_proposed_has_kernels_and_fits_the_driver(capability: tuple[int, int]) -> None:
    for driver in [None, (12, 4), (12, 9), (13, 2)]:
        build = build_for(capability, driver)
        assert has_kernels(capability, PUBLISHED[build])
        assert int(build[2:4]) <= (driver or (12, 0))[0]


@pytest.mark.parametrize(
    ("gpu", "archs", "cure"),
    [
        (RTX_5090, CU124, "pip install --force-reinstall torch -i https://download.pytorch.org/whl/cu130"),
        (GTX_1080, CU130, "pip install --force-reinstall torch -i https://download.pytorch.org/whl/cu126"),
    ],
)
def test_a_gpu_without_kernels_is_an_error_that_says_what_to_type(
    gpu: GpuInfo, archs: tuple[str, ...], cure: str
) -> None:
    finding = seen(facts_of(gpu, archs=archs), "gpu 0")
    assert (finding.level, finding.commands) == ("error", (cure,))
    assert gpu.name in finding.what
    assert " ".join(archs) in finding.what
    assert "run.device=cpu" in finding.do


def test_a_gpu_that_no_torch_knows_is_left_to_the_cpu() -> None:
    for capability in [(3, 7), (15, 0)]:
        gpu = dataclasses.replace(H200, capability=capability)
        finding = seen(facts_of(gpu, archs=CU124), "gpu 0")
        assert (finding.level, finding.commands) == ("error", ())
        assert finding.do == "train on the CPU with run.device=cpu"


def test_a_gpu_that_is_not_used_stops_nobody() -> None:
    facts = facts_of(RTX_5090, dataclasses.replace(H200, index=1, uuid="e"), archs=CU124)
    levels = {
        device: seen(facts, "gpu 0", Requirements(device=device)).level
        for device in ("cpu", "cuda", "cuda:0", "cuda:1")
    }
    assert levels == {"cpu": "note", "cuda": "error", "cuda:0": "error", "cuda:1": "note"}
    old = dataclasses.replace(facts, driver=Driver("535.104", (12, 2)))
    assert seen(old, "driver", Requirements(device="cpu")).level == "note"


def test_another_gpu_is_named_as_the_environment_names_it() -> None:
    second = dataclasses.replace(H200, index=1, uuid="e")
    facts = facts_of(RTX_5090, second, archs=CU124)
    assert "CUDA_VISIBLE_DEVICES=1," in seen(facts, "gpu 0").do
    assert "CUDA_VISIBLE_DEVICES=6," in seen(dataclasses.replace(facts, visible="2,6"), "gpu 0").do
    assert seen(facts, "gpu 1").level == "ok"


class FakeCuda:
    """A machine with one GPU, as `models.choose_device` asks for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gpu: GpuInfo, archs: tuple[str, ...], cuda: str | None) -> None:
        replaced = {
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "get_device_capability": lambda _: gpu.capability,
            "get_device_name": lambda _: gpu.name,
            "get_arch_list": lambda: list(archs),
        }
        for name, function in replaced.items():
            monkeypatch.setattr(torch.cuda, name, function)
        monkeypatch.setattr(torch, "empty", lambda size, device: SimpleNamespace(device=torch.device(device, 0)))
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch, "__version__", "2.13.0+cu130")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_train_refuses_a_gpu_without_kernels_in_the_doctors_words(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda(monkeypatch, GTX_1080, CU130, "13.0")
    with pytest.raises(DeviceError) as refused:
        choose_device(device)
    assert str(refused.value) == seen(facts_of(GTX_1080), "gpu 0").line


@pytest.mark.parametrize(("archs", "cuda"), [(CU124, "12.4"), ((), "13.0"), (("gfx942",), None)])
def test_train_takes_a_gpu_with_kernels_and_whatever_it_knows_nothing_of(
    archs: tuple[str, ...], cuda: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeCuda(monkeypatch, GTX_1080, archs, cuda)
    assert choose_device("auto") == torch.device("cuda", 0)
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_the_refusal_comes_before_a_model_is_loaded(
    toy_task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    FakeCuda(monkeypatch, RTX_5090, CU124, "12.4")
    monkeypatch.setattr("tinyzero_trainer.training.build.load_model", lambda *_: pytest.fail("a model is loaded"))
    with pytest.raises(SystemExit) as ended:
        main(["train", "--task", toy_task, "--output", str(tmp_path / "run")])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "sm_120" in said
    assert "whl/cu129" in said


# ---- GPUs and the driver --------------------------------------------------------------------------------------------


def test_no_gpu_is_worth_a_note_and_an_error_where_one_is_asked_for() -> None:
    assert seen(facts_of(), "driver").level == "note"
    finding = seen(facts_of(), "driver", Requirements(device="cuda"))
    assert (finding.level, finding.commands) == ("error", ("docker run --gpus all …",))


def test_a_driver_too_old_for_torch() -> None:
    facts = facts_of(H200, driver=Driver("535.104", (12, 2), (H200,)))
    finding = seen(facts, "driver")
    assert finding.level == "error"
    assert "580 or newer" in finding.do
    assert finding.commands == ("pip install --force-reinstall torch -i https://download.pytorch.org/whl/cu126",)
    assert seen(facts, "driver", Requirements(device="cpu")).level == "note"
    ancient = seen(dataclasses.replace(facts, driver=Driver("470.1", (11, 4), (H200,))), "driver")
    assert (ancient.level, ancient.commands) == ("error", ())


def test_a_driver_that_is_a_minor_version_behind_works() -> None:
    facts = facts_of(H200, torch=Torch("2.8.0+cu129", "12.9", archs=CU130, gpus=(H200,)))
    assert seen(dataclasses.replace(facts, driver=Driver("535.104", (12, 2))), "driver").level == "note"
    assert seen(dataclasses.replace(facts, driver=Driver("580.1", (13, 0))), "driver").level == "ok"
    assert seen(dataclasses.replace(facts, driver=Driver("580.1")), "driver").level == "note"


@pytest.mark.parametrize(("container", "typed"), [(True, "docker run --gpus all …"), (False, "nvidia-smi")])
def test_a_driver_that_cannot_be_asked(container: bool, typed: str) -> None:
    driver = Driver(error="nvidia-smi: Failed to initialize NVML: Driver/library version mismatch")
    facts = facts_of(driver=driver, machine=machine(container=container))
    assert seen(facts, "driver").level == "error"
    assert seen(facts, "driver").commands == (typed,)
    assert seen(facts, "driver", Requirements(device="cpu")).level == "note"


def test_a_torch_for_the_cpu_beside_a_gpu() -> None:
    facts = facts_of(torch=Torch("2.13.0+cpu"), driver=Driver("580.1", (13, 0), (H200,)))
    finding = seen(facts, "gpu")
    assert finding.level == "error"
    assert finding.commands == ("pip install --force-reinstall torch -i https://download.pytorch.org/whl/cu130",)
    assert seen(facts, "gpu", Requirements(device="cpu")).level == "note"
    two = seen(dataclasses.replace(facts, driver=Driver("580.1", (13, 0), (H200, H200))), "gpu")
    assert "any of the 2 GPUs" in two.what
    old = dataclasses.replace(H200, capability=(3, 5))
    assert seen(dataclasses.replace(facts, driver=Driver("470.1", (11, 4), (old,))), "gpu").commands == ()


@pytest.mark.parametrize("visible", ["", "-1", None])
def test_gpus_that_torch_does_not_see(visible: str | None) -> None:
    blind = Torch("2.13.0+cu130", "13.0", archs=CU130, cuda_error="CUDA unknown error")
    finding = seen(facts_of(torch=blind, driver=Driver("580.1", (13, 0), (H200,)), visible=visible), "gpu")
    assert finding.level == "error"
    if visible is None:
        assert "CUDA unknown error" in finding.what
    else:
        assert finding.commands == ("unset CUDA_VISIBLE_DEVICES",)


@pytest.mark.parametrize("visible", ["1", "1,0", "GPU-x", "all", " 7 ", ""])
@pytest.mark.parametrize("gpus", [(H200,), ()])
def test_a_variable_that_names_no_gpu_hides_all(visible: str, gpus: tuple[GpuInfo, ...]) -> None:
    blind = Torch("2.13.0+cu130", "13.0", archs=CU130, cuda_error="No CUDA GPUs are available")
    facts = facts_of(torch=blind, driver=Driver("580.1", (13, 0), gpus), visible=visible)
    finding = seen(facts, "gpu")
    assert (finding.level, finding.commands) == ("error", ("unset CUDA_VISIBLE_DEVICES",))
    assert f"CUDA_VISIBLE_DEVICES={visible!r} hides" in finding.what


@pytest.mark.parametrize("visible", ["0", "0,1", "GPU-a", "MIG-x", None])
def test_a_variable_that_names_a_gpu_is_not_blamed(visible: str | None) -> None:
    blind = Torch("2.13.0+cu130", "13.0", archs=CU130, cuda_error="CUDA unknown error")
    finding = seen(facts_of(torch=blind, driver=Driver("580.1", (13, 0), (H200,)), visible=visible), "gpu")
    assert (finding.level, finding.commands) == ("error", ("nvidia-smi",))
    assert "CUDA unknown error" in finding.what


def test_a_device_that_torch_does_not_see() -> None:
    second = dataclasses.replace(H200, index=1, uuid="e")

    def findings(device: str, *gpus: GpuInfo, visible: str | None = None) -> list[str]:
        found = examine(facts_of(*gpus, visible=visible), Requirements(device=device))
        return [finding.what for finding in found if finding.check == "gpu"]

    assert findings("cuda:1", H200) == ["run.device=cuda:1, but torch sees cuda:0 only"]
    assert "(CUDA_VISIBLE_DEVICES='4')" in findings("cuda:1", H200, visible="4")[0]
    assert not findings("cuda:1", H200, second)
    assert not findings("cuda", H200)
    unknown = facts_of(driver=Driver(cuda=(13, 0)))  # libcuda alone, and a torch for the CPU
    assert seen(unknown, "gpu", Requirements(device="cuda")).level == "error"
    assert not [finding for finding in examine(unknown, Requirements()) if finding.check == "gpu"]


@pytest.mark.parametrize(
    ("name", "count", "visible", "said"),
    [
        ("cuda:1", 1, None, "(CUDA error: invalid device ordinal); torch sees cuda:0 only; give one it sees, or cuda"),
        ("cuda:7", 2, None, "torch sees cuda:0 to cuda:1; give"),
        (
            "cuda",
            0,
            "1",
            "CUDA_VISIBLE_DEVICES='1' may hide the GPUs: unset CUDA_VISIBLE_DEVICES, or give cpu or auto",
        ),
        ("cuda", 0, None, "give cpu or auto (tinyzero doctor says more)"),
    ],
)
def test_train_says_why_a_device_cannot_be_used(
    name: str, count: int, visible: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeCuda(monkeypatch, H200, CU130, "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: invalid device ordinal\n" + "a line of advice\n" * 20)

    monkeypatch.setattr(torch, "empty", fail)
    with pytest.raises(DeviceError) as refused:
        choose_device(name)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize("name", ["mps", "gpu", "meta", "", "cuda:x"])
def test_train_knows_the_devices_that_it_can_use(name: str) -> None:
    with pytest.raises(DeviceError) as refused:
        choose_device(name)
    assert str(refused.value) == f"run.device={name!r} cannot be used; give auto, cpu, cuda or cuda:N"


def test_a_gpu_that_others_use() -> None:
    busy = dataclasses.replace(H200, free=20 * GIB, processes=(Process(4711, "python3", 119 * GIB),))
    finding = seen(facts_of(busy), "gpu 0")
    assert finding.level == "warning"
    assert "120.0 GiB of it in use by python3 (4711): 119.0 GiB" in finding.what
    assert "CUDA_VISIBLE_DEVICES" not in finding.do
    both = facts_of(busy, dataclasses.replace(H200, index=1, uuid="e"))
    assert "CUDA_VISIBLE_DEVICES=1" in seen(both, "gpu 0").do
    assert seen(both, "gpu 1").level == "ok"


def test_an_old_gpu_and_one_of_which_little_is_known() -> None:
    assert "bfloat16" in seen(facts_of(T4), "gpu 0").what
    assert seen(facts_of(dataclasses.replace(H200, free=None)), "gpu 0").what == "NVIDIA H200, sm_90, 140.0 GiB"


def test_a_torch_for_other_gpus_is_not_judged() -> None:
    amd = Torch("2.13.0+rocm7", hip=True, archs=("gfx942",), gpus=(dataclasses.replace(H200, name="MI300X"),))
    assert seen(facts_of(torch=amd, driver=None), "gpu").level == "note"
    assert not [
        finding for finding in examine(facts_of(torch=amd, driver=None), Requirements()) if finding.check == "driver"
    ]
