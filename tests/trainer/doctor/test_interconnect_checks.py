"""The doctor's findings on the links between several GPUs."""

import dataclasses
from collections.abc import Callable, Sequence
from itertools import combinations

import pytest

from tests.trainer.doctor.machines import H200, RTX_5090, facts_of, machine, seen
from tinyzero_trainer.doctor.facts import Facts, Requirements
from tinyzero_trainer.doctor.finding import Finding
from tinyzero_trainer.doctor.interconnect_checks import check_links
from tinyzero_trainer.doctor.probe import torch_of
from tinyzero_trainer.hardware.gpu import Driver, GpuInfo, Link


def machine_with(
    count: int, kind: Callable[[int, int], str], *, order: Sequence[int] = (), visible: str | None = None
) -> Facts:
    """GPUs with links; `order` are those that torch sees, by NVML's numbers."""
    gpus = tuple(dataclasses.replace(H200, index=index, uuid=f"u{index}") for index in range(count))
    shown = [dataclasses.replace(gpus[number], index=index) for index, number in enumerate(order or range(count))]
    links = tuple(Link(one, two, kind(one, two)) for one, two in combinations(range(count), 2))
    return facts_of(*shown, driver=Driver("580", (13, 0), gpus, links=links), visible=visible)


def on_links(facts: Facts) -> Finding:
    return seen(facts, "links")


def all_to_all(one: int, two: int) -> str:
    return "NVLink"


def in_a_ring(one: int, two: int) -> str:
    return "NVLink" if two - one in (1, 7) else "SYS"


def first_pair(one: int, two: int) -> str:
    return "NVLink" if (one, two) == (0, 1) else "NODE"


def by_pcie(one: int, two: int) -> str:
    return "PHB"


@pytest.mark.parametrize(
    ("kind", "count", "level", "said", "command"),
    [
        (all_to_all, 8, "ok", "NVLink joins all 8 GPUs", ""),
        (in_a_ring, 8, "ok", "NVLink joins all 8 GPUs, though not every pair directly", ""),
        (first_pair, 3, "note", "NVLink between cuda:0 and cuda:1 only; elsewhere PCIe (NODE)", "0,1"),
        (by_pcie, 2, "note", "no NVLink: PCIe between both GPUs (PHB)", ""),
    ],
)
def test_what_is_said_of_links(
    kind: Callable[[int, int], str], count: int, level: str, said: str, command: str
) -> None:
    finding = on_links(machine_with(count, kind))
    assert (finding.level, said in finding.what) == (level, True)
    assert finding.commands == ((f"export CUDA_VISIBLE_DEVICES={command}",) if command else ())


def test_links_are_between_the_gpus_that_torch_sees_in_its_order() -> None:
    finding = on_links(machine_with(3, first_pair, order=(2, 1, 0), visible="2,1,0"))
    assert "NVLink between cuda:1 and cuda:2 only" in finding.what
    assert finding.commands == ("export CUDA_VISIBLE_DEVICES=1,0",)
    assert on_links(machine_with(3, first_pair, order=(1, 0))).what == "NVLink joins both GPUs"
    assert "no NVLink: PCIe between both GPUs (NODE)" in on_links(machine_with(3, first_pair, order=(0, 2))).what


def test_nothing_is_said_where_the_links_are_not_known() -> None:
    def said(facts: Facts) -> list[str]:
        return [finding.check for finding in check_links(facts, Requirements())]

    facts = machine_with(2, by_pcie)
    assert said(dataclasses.replace(facts, driver=Driver("580", (13, 0), facts.torch.gpus))) == ["nccl"]
    assert said(machine_with(2, by_pcie, order=(1,))) == []  # one GPU
    assert said(dataclasses.replace(facts, driver=None)) == ["nccl"]
    nameless = tuple(dataclasses.replace(gpu, uuid="") for gpu in facts.torch.gpus)
    assert said(dataclasses.replace(facts, torch=dataclasses.replace(facts.torch, gpus=nameless))) == ["nccl"]


def test_several_gpus_need_nccl_and_are_as_fast_as_the_slowest() -> None:
    assert seen(machine_with(8, all_to_all), "nccl").what == "NCCL 2.27.5 comes with torch"
    gpus: tuple[GpuInfo, ...] = (H200, dataclasses.replace(RTX_5090, index=1))
    finding = on_links(facts_of(*gpus))
    assert finding.level == "note"
    assert "differ (NVIDIA H200, NVIDIA GeForce RTX 5090)" in finding.what


def test_shared_memory_that_others_fill_is_too_little_for_several_gpus() -> None:
    full = machine(shared_memory_free=100 * 2**20)
    both = machine_with(2, by_pcie)
    finding = seen(dataclasses.replace(both, machine=full), "shared memory")
    assert (finding.level, finding.commands) == ("warning", ("ls -lh /dev/shm",))
    assert "8.0 GiB of shared memory (/dev/shm), 100 MiB free" in finding.what
    assert seen(facts_of(H200, machine=full), "shared memory").level == "ok"
    assert seen(both, "shared memory").level == "ok"


def test_what_torch_says_of_nccl() -> None:
    assert torch_of({"version": "2.13.0", "nccl": "2.27.5"}).nccl == "2.27.5"
    assert torch_of({"version": "2.13.0"}).nccl == ""
