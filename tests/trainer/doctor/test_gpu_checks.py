"""Findings on GPUs, their driver, the kernels that torch has for them, and the links between them."""

import dataclasses
from collections.abc import Callable
from itertools import combinations

import pytest

from tests.trainer.doctor.machines import (
    CU124,
    CU130,
    GIB,
    GTX_1080,
    H200,
    NONE,
    RTX_5090,
    SECOND_H200,
    T4,
    facts_of,
    machine,
    seen,
)
from tinyzero_trainer.doctor.checks import examine
from tinyzero_trainer.doctor.facts import Facts, Requirements, Torch
from tinyzero_trainer.doctor.gpu_checks import check_links
from tinyzero_trainer.hardware.gpu import Driver, GpuInfo, Link, Process

ON_CPU = Requirements(device="cpu")

# ---- the driver ------------------------------------------------------------------------------------------------------


def test_no_driver_is_an_error_where_a_gpu_is_requested() -> None:
    assert seen(facts_of(), "driver").level == "note"
    finding = seen(facts_of(), "driver", Requirements(device="cuda"))
    assert (finding.level, finding.commands) == ("error", ("docker run --gpus all …",))


def test_a_driver_too_old_for_torch() -> None:
    facts = facts_of(H200, driver=Driver("535.104", (12, 2), (H200,)))
    finding = seen(facts, "driver")
    assert finding.level == "error"
    assert "580 or newer" in finding.do
    assert finding.commands == ("pip install --force-reinstall torch -i https://download.pytorch.org/whl/cu126",)
    assert seen(facts, "driver", ON_CPU).level == "note"
    ancient = seen(dataclasses.replace(facts, driver=Driver("470.1", (11, 4), (H200,))), "driver")
    assert (ancient.level, ancient.commands) == ("error", ())


def test_a_driver_that_is_a_minor_version_behind_works() -> None:
    facts = facts_of(H200, torch=Torch("2.8.0+cu129", "12.9", archs=CU130, gpus=(H200,)))
    for driver, level in ((Driver("535.104", (12, 2)), "note"), (Driver("580.1", (13, 0)), "ok"), (Driver(), "note")):
        assert seen(dataclasses.replace(facts, driver=driver), "driver").level == level


@pytest.mark.parametrize(("container", "command"), [(True, "docker run --gpus all …"), (False, "nvidia-smi")])
def test_a_driver_that_cannot_be_queried(container: bool, command: str) -> None:
    facts = facts_of(driver=Driver(error="NVML: version mismatch"), machine=machine(container=container))
    assert seen(facts, "driver").level == "error"
    assert seen(facts, "driver").commands[-1] == command
    assert seen(facts, "driver", ON_CPU).level == "note"


@pytest.mark.parametrize(
    ("gpus", "device", "level"), [((H200,), "auto", "warning"), ((), "auto", "error"), ((), "cpu", "note")]
)
def test_gpus_that_do_not_answer(gpus: tuple[GpuInfo, ...], device: str, level: str) -> None:
    driver = Driver("580", (13, 0), (H200,), failed=("GPU 1: it is lost somewhere",) * 40)
    found = examine(facts_of(*gpus, driver=driver), Requirements(device=device))
    [finding] = [one for one in found if one.check == "driver" and one.level != "ok"]
    assert (finding.level, finding.commands, "GPU 1: " in finding.what) == (level, ("nvidia-smi",), True)
    assert len(finding.what) < 400


# ---- visible GPUs ----------------------------------------------------------------------------------------------------


def test_a_torch_for_the_cpu_on_a_machine_with_a_gpu() -> None:
    facts = facts_of(torch=Torch("2.13.0+cpu"), driver=Driver("580.1", (13, 0), (H200,)))
    finding = seen(facts, "gpu")
    assert finding.level == "error"
    assert finding.commands == ("pip install --force-reinstall torch -i https://download.pytorch.org/whl/cu130",)
    assert seen(facts, "gpu", ON_CPU).level == "note"
    two = seen(dataclasses.replace(facts, driver=Driver("580.1", (13, 0), (H200, H200))), "gpu")
    assert "any of the 2 GPUs" in two.what
    old = dataclasses.replace(H200, capability=(3, 5))
    assert seen(dataclasses.replace(facts, driver=Driver("470.1", (11, 4), (old,))), "gpu").commands == ()


@pytest.mark.parametrize("visible", ["", "7", None])
@pytest.mark.parametrize("gpus", [(H200,), ()])
def test_gpus_that_torch_does_not_see(visible: str | None, gpus: tuple[GpuInfo, ...]) -> None:
    blind = Torch("2.13.0+cu130", "13.0", archs=CU130, cuda_error="CUDA unknown error")
    finding = seen(facts_of(torch=blind, driver=Driver("580.1", (13, 0), gpus), visible=visible), "gpu")
    assert finding.level == "error"
    assert "CUDA unknown error" in finding.what
    assert (finding.commands[0] == "unset CUDA_VISIBLE_DEVICES") is (visible is not None)
    assert (f"CUDA_VISIBLE_DEVICES={visible!r}" in finding.what) is (visible is not None)


def test_a_device_that_torch_does_not_see() -> None:
    def findings(device: str, *gpus: GpuInfo, visible: str | None = None) -> list[str]:
        found = examine(facts_of(*gpus, visible=visible), Requirements(device=device))
        return [finding.what for finding in found if finding.check == "gpu"]

    assert findings("cuda:1", H200) == ["run.device=cuda:1, but torch sees cuda:0 only"]
    assert "(CUDA_VISIBLE_DEVICES='4')" in findings("cuda:1", H200, visible="4")[0]
    assert not findings("cuda:1", H200, SECOND_H200)
    assert not findings("cuda", H200)


# ---- each GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "archs", "build"), [(RTX_5090, CU124, "cu130"), (GTX_1080, CU130, "cu126"), (None, CU124, "")]
)
def test_a_gpu_without_kernels(gpu: GpuInfo | None, archs: tuple[str, ...], build: str) -> None:
    gpu = gpu or dataclasses.replace(H200, capability=(15, 0))  # no torch is built for it
    finding = seen(facts_of(gpu, archs=archs), "gpu 0")
    commands = (f"pip install --force-reinstall torch -i https://download.pytorch.org/whl/{build}",) if build else ()
    assert (finding.level, finding.commands) == ("error", commands)
    assert gpu.name in finding.what
    assert " ".join(archs) in finding.what
    assert "run.device=cpu" in finding.do


def test_a_gpu_that_is_not_used_is_a_note_and_another_is_named_as_the_environment_names_it() -> None:
    facts = facts_of(RTX_5090, SECOND_H200, archs=CU124)
    levels = [seen(facts, "gpu 0", Requirements(device=device)).level for device in ("cpu", "cuda", "cuda:0", "cuda:1")]
    assert levels == ["note", "error", "error", "note"]
    assert "CUDA_VISIBLE_DEVICES=1," in seen(facts, "gpu 0").do
    assert "CUDA_VISIBLE_DEVICES=6," in seen(dataclasses.replace(facts, visible="2,6"), "gpu 0").do
    assert seen(facts, "gpu 1").level == "ok"


def test_a_gpu_in_use_by_others() -> None:
    busy = dataclasses.replace(H200, free=20 * GIB, processes=(Process(4711, "python3", 119 * GIB),))
    finding = seen(facts_of(busy), "gpu 0")
    assert finding.level == "warning"
    assert "120.0 GiB of it in use by python3 (4711): 119.0 GiB" in finding.what
    assert "CUDA_VISIBLE_DEVICES" not in finding.do
    both = facts_of(busy, SECOND_H200)
    assert "CUDA_VISIBLE_DEVICES=1" in seen(both, "gpu 0").do
    assert seen(both, "gpu 1").level == "ok"


def test_a_gpu_without_bfloat16_and_one_of_which_little_is_known() -> None:
    assert "bfloat16" in seen(facts_of(T4), "gpu 0").what
    assert seen(facts_of(dataclasses.replace(H200, free=None)), "gpu 0").what == "NVIDIA H200, sm_90, 140.0 GiB"


def test_amds_gpus_are_not_judged() -> None:
    amd = Torch("2.13.0+rocm7", hip=True, archs=("gfx942",), gpus=(dataclasses.replace(H200, name="MI300X"),))
    assert seen(facts_of(torch=amd, driver=None), "gpu").level == "note"
    assert not [one for one in examine(facts_of(torch=amd, driver=None), NONE) if one.check == "driver"]


# ---- links -----------------------------------------------------------------------------------------------------------


def linked(count: int, kind: Callable[[int, int], str], *visible: int) -> Facts:
    """GPUs with links; `visible` are those that torch sees, by NVML's indices."""
    gpus = tuple(dataclasses.replace(H200, index=index, uuid=f"u{index}") for index in range(count))
    shown = [dataclasses.replace(gpus[number], index=index) for index, number in enumerate(visible or range(count))]
    links = tuple(Link(one, two, kind(one, two)) for one, two in combinations(range(count), 2))
    return facts_of(*shown, driver=Driver("580", (13, 0), gpus, links=links))


def first_pair(one: int, two: int) -> str:
    return "NVLink" if (one, two) == (0, 1) else "NODE"


@pytest.mark.parametrize(
    ("facts", "level", "what"),
    [
        (linked(8, lambda *_: "NVLink"), "ok", "NVLink connects all 8 GPUs"),
        (linked(2, lambda *_: "PHB"), "note", "no NVLink between the GPUs, but PCIe (PHB)"),
        (linked(3, first_pair), "note", "no NVLink between 2 of 3 pairs of GPUs, but PCIe (NODE)"),
        (linked(3, first_pair, 1, 0), "ok", "NVLink connects all 2 GPUs"),
        (linked(3, first_pair, 0, 2), "note", "no NVLink between the GPUs, but PCIe (NODE)"),
        (facts_of(H200, dataclasses.replace(RTX_5090, index=1)), "note", "the GPUs differ (NVIDIA H200, NVIDIA GeF"),
    ],
)
def test_links_between_the_visible_gpus(facts: Facts, level: str, what: str) -> None:
    finding = seen(facts, "links")
    assert (finding.level, finding.what[: len(what)]) == (level, what)


@pytest.mark.parametrize("facts", [linked(2, lambda *_: "PHB", 1), facts_of(H200, SECOND_H200, driver=None)])
def test_one_gpu_and_unknown_links_are_no_finding(facts: Facts) -> None:
    assert list(check_links(facts, NONE)) == []
