"""The GPU that a plan is for: by the driver's name, by its size, or this machine's; and the type it computes in."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.trainer.advisor.planned import GRPO, config_of, gpu_of
from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.advisor import target_gpu as target
from tinyzero_trainer.advisor.target_gpu import choose_target, on_gpu, present_gpu, read_size
from tinyzero_trainer.config.settings import with_settings
from tinyzero_trainer.distributed.fsdp import compute_dtype
from tinyzero_trainer.distributed.sizes import usable
from tinyzero_trainer.hardware.gpu import GIB, Driver, GpuInfo
from tinyzero_trainer.hardware.gpu_specs import find_gpu_spec, has_bfloat16, known_gpus
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.rollout.vllm.build import settled


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla T4", "T4"),
        ("NVIDIA RTX A1000", None),
        ("Quadro RTX 6000", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
    ],
)
def test_gpus_by_the_drivers_name(driver: str, name: str | None) -> None:
    found = find_gpu_spec(driver)
    assert (found.name if found else None) == name


def test_every_gpu_is_found_by_its_own_name() -> None:
    assert {gpu.name: find_gpu_spec(gpu.name) for gpu in known_gpus()} == {gpu.name: gpu for gpu in known_gpus()}
    assert all(gpu.flops == gpu.tflops * 1e12 > 2e13 and gpu.bandwidth > 250 for gpu in known_gpus())


@pytest.mark.parametrize(
    ("text", "size"), [("24GB", 24e9), ("24 GiB", 24 * GIB), ("24", 24e9), ("7.5g", 7.5e9), ("80gib", 80 * GIB)]
)
def test_sizes(text: str, size: float) -> None:
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-3", "24MB", "a lot", "1e3"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(SettingsError, match="give a number of GB or GiB, such as 24GB"):
        read_size(text)


H200 = GpuInfo(0, "NVIDIA H200", (9, 0), 140 * GIB, uuid="aa-1")


L4 = GpuInfo(1, "NVIDIA L4", (8, 9), 22 * GIB, 15 * GIB, 7 * GIB, uuid="bb-2")


def gpus_here(monkeypatch: pytest.MonkeyPatch, *gpus: GpuInfo) -> None:
    monkeypatch.setattr(target, "nvidia_driver", lambda: Driver(gpus=gpus) if gpus else None)
    monkeypatch.setattr(target, "version", lambda _: "2.11.0")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("device", "name"),
    [("auto", "NVIDIA H200"), ("cuda", "NVIDIA H200"), ("cuda:1", "NVIDIA L4"), ("cuda:2", None), ("cpu", None)],
)
def test_the_gpu_that_is_here_is_the_one_that_the_device_names(
    device: str, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus_here(monkeypatch, H200, L4)
    found = present_gpu(device)
    assert (found.name if found else None) == name
    monkeypatch.setattr(target, "version", lambda _: "2.11.0+cpu")  # computes on the CPU, unless the user insists
    assert present_gpu(device) == (None if device == "auto" else found)
    if name == "NVIDIA L4":
        assert found is not None
        assert (found.memory, found.in_use, found.free) == (22 * GIB, 7 * GIB, 15 * GIB)


@pytest.mark.parametrize(
    ("gpus", "device", "visible", "reason"),
    [
        ([], "auto", None, "this machine has no NVIDIA GPU to plan for"),
        ([L4], "auto", "-1", "CUDA shows 0 of this machine's 1 GPUs (CUDA_VISIBLE_DEVICES='-1')"),
        ([L4], "cuda:1", None, "run.device=cuda:1, but CUDA shows 1 of this machine's 1 GPUs"),
        ([H200, L4], "cuda:1", None, "this machine's GPUs differ (NVIDIA H200, NVIDIA L4); set CUDA_DEVICE_ORDER=PCI"),
        ([replace(L4, memory=0)], "auto", None, "the driver does not say how much memory the NVIDIA L4 has"),
        ([L4], "cpu", None, "run.device=cpu uses no GPU"),
    ],
)
def test_where_the_gpu_cannot_be_known_the_error_says_why_and_what_to_type(
    gpus: list[GpuInfo], device: str, visible: str | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus_here(monkeypatch, *gpus)
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(SettingsError, match=rf"{re.escape(reason)}.*; give --gpu-memory 24GB, or --gpu 'RTX 4090'"):
        choose_target(None, None, device)
    assert present_gpu(device) is None
    assert choose_target(None, "24GB", device).memory == 24e9


def test_no_gpu_has_less_than_its_box_says() -> None:
    """So that what is planned for 24GB fits an L4 too; and a named GPU has its own memory."""
    boxes = {"L4": "24GB", "A10G": "24GB", "RTX 4090": "24GB", "L40S": "48GB", "T4": "16GB", "H100": "80GB"}
    for name, box in boxes.items():
        assert read_size(box) <= gpu_of(name).memory * GIB
        assert choose_target(None, box, "cpu").memory == read_size(box)
    assert choose_target("RTX 4090", "12GB", "auto").memory == 12 * 10**9
    assert choose_target("RTX 4090", "48GB", "auto").memory == 48 * 10**9


def test_a_proposal_fits_though_it_takes_a_tenth_more() -> None:
    assert all(1.1 * usable(int(gpu.memory * GIB)) <= gpu.memory * GIB for gpu in known_gpus())


CAPABILITIES = [(6, 1), (7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]


def pretend(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], memory: int = 24 * GIB) -> torch.device:
    """Torch with a GPU that it has not."""
    major, minor = capability
    gpu = SimpleNamespace(major=major, minor=minor, total_memory=memory, name="synthetic")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: gpu)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (memory, memory))
    return torch.device("cuda")


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("name", ["auto", "float32", "bfloat16"])
def test_the_run_and_the_plan_mean_the_same(
    name: str, capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = str(compute_dtype(name, pretend(monkeypatch, capability))).removeprefix("torch.")
    here = GpuInfo(0, "Synthetic", capability, 24 * GIB, uuid="a")
    gpus_here(monkeypatch, here)
    planned = on_gpu(config_of(f"model.dtype={name}"), choose_target(None, None, "auto")).model.dtype
    assert {"auto": "bfloat16"}.get(planned, planned) == run


def test_what_a_gpu_is_called_tells_it_where_its_capability_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [gpu.name for gpu in known_gpus() if not has_bfloat16(gpu.capability)] == ["V100 32GB", "V100", "T4"]
    assert not choose_target("T4", None, "auto").bfloat16
    assert choose_target("L4", None, "auto").bfloat16
    here = GpuInfo(0, "Tesla V100-SXM2-16GB", None, 16 * GIB, uuid="a")
    gpus_here(monkeypatch, here)
    assert not choose_target(None, None, "auto").bfloat16
    assert not choose_target(None, "16GB", "auto").bfloat16  # the speed is that of the GPU that is here, too


def test_vllm_gets_memory_for_the_type_that_it_computes_in(
    toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    for capability in [(7, 5), (9, 0)]:
        config = with_settings(config_of("rollout.engine=vllm", *GRPO), {"run.device": "cuda"})
        sizes.append(settled(config, toy_model, pretend(monkeypatch, capability)).vllm.gpu_memory_gb)
    asked = with_settings(config, {"model.dtype": "float32"})
    assert sizes[0] == settled(asked, toy_model, torch.device("cuda")).vllm.gpu_memory_gb
    assert sizes[0] > sizes[1]  # type: ignore[operator]
