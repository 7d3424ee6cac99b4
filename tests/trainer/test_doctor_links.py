"""How several GPUs are linked: what `nvidia-smi topo -m` printed on real machines, and what is said of it."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.machines import H200, RTX_5090, facts_of, machine, seen
from tests.trainer.test_doctor_nvidia_smi import smi
from tinyzero_trainer.doctor import checks, probe
from tinyzero_trainer.doctor.facts import Facts, Wanted
from tinyzero_trainer.doctor.finding import Finding
from tinyzero_trainer.doctor.interconnect_checks import check_links
from tinyzero_trainer.hardware.gpu import Driver, GpuInfo, Link
from tinyzero_trainer.hardware.nvml import ask_links, parse_links

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_10
"""
EIGHT_H100 = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tNIC0\tNIC1"
    "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\tPXB\tNODE\t0-63,128-191\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\tNODE\tPXB\t0-63,128-191\t0\t\tN/A\n"
    "GPU2\tNV18\tNV18\t X \tNV18\tNV18\tNV18\tNV18\tNV18\tNODE\tNODE\t0-63,128-191\t0\t\tN/A\n"
    "GPU3\tNV18\tNV18\tNV18\t X \tNV18\tNV18\tNV18\tNV18\tNODE\tNODE\t0-63,128-191\t0\t\tN/A\n"
    "GPU4\tNV18\tNV18\tNV18\tNV18\t X \tNV18\tNV18\tNV18\tSYS\tSYS\t64-127,192-255\t1\t\tN/A\n"
    "GPU5\tNV18\tNV18\tNV18\tNV18\tNV18\t X \tNV18\tNV18\tSYS\tSYS\t64-127,192-255\t1\t\tN/A\n"
    "GPU6\tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\t X \tNV18\tSYS\tSYS\t64-127,192-255\t1\t\tN/A\n"
    "GPU7\tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\t X \tSYS\tSYS\t64-127,192-255\t1\t\tN/A\n"
    "NIC0\tPXB\tNODE\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\t X \tNODE\t\t\t\t\n"
    "NIC1\tNODE\tPXB\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\tNODE\t X \t\t\t\t\n" + LEGEND
)
EIGHT_V100 = (
    "\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tmlx5_0\tmlx5_2\tCPU Affinity\n"
    "GPU0\t X \tNV1\tNV1\tNV2\tNV2\tSYS\tSYS\tSYS\tPIX\tSYS\t0-19,40-59\n"
    "GPU1\tNV1\t X \tNV2\tNV1\tSYS\tNV2\tSYS\tSYS\tPIX\tSYS\t0-19,40-59\n"
    "GPU2\tNV1\tNV2\t X \tNV2\tSYS\tSYS\tNV1\tSYS\tPHB\tSYS\t0-19,40-59\n"
    "GPU3\tNV2\tNV1\tNV2\t X \tSYS\tSYS\tSYS\tNV1\tPHB\tSYS\t0-19,40-59\n"
    "GPU4\tNV2\tSYS\tSYS\tSYS\t X \tNV1\tNV1\tNV2\tSYS\tPIX\t20-39,60-79\n"
    "GPU5\tSYS\tNV2\tSYS\tSYS\tNV1\t X \tNV2\tNV1\tSYS\tPIX\t20-39,60-79\n"
    "GPU6\tSYS\tSYS\tNV1\tSYS\tNV1\tNV2\t X \tNV2\tSYS\tPHB\t20-39,60-79\n"
    "GPU7\tSYS\tSYS\tSYS\tNV1\tNV2\tNV1\tNV2\t X \tSYS\tPHB\t20-39,60-79\n"
    "mlx5_0\tPIX\tPIX\tPHB\tPHB\tSYS\tSYS\tSYS\tSYS\t X \tSYS\t\n"
    "mlx5_2\tSYS\tSYS\tSYS\tSYS\tPIX\tPIX\tPHB\tPHB\tSYS\t X \t\n" + LEGEND
)
THREE_A6000 = (
    "\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\n"
    "GPU0\t X \tNV4\tNODE\t0-31,64-95\t0\n"
    "GPU1\tNV4\t X \tNODE\t0-31,64-95\t0\n"
    "GPU2\tNODE\tNODE\t X \t0-31,64-95\t0\n" + LEGEND
)
TWO_5090 = (
    "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tPHB\t0-63\t0\t\tN/A\n"
    "GPU1\tPHB\t X \t0-63\t0\t\tN/A\n" + LEGEND
)
TWO_SOCKETS = (
    "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tSYS\t0,2,4,6,8,10\t0\t\tN/A\n"
    "GPU1\tSYS\t X \t1,3,5,7,9,11\t1\t\tN/A\n" + LEGEND
)
FIVE_MIXED = (  # copied from a screen, with spaces
    "        GPU0    GPU1    GPU2    GPU3    GPU4    CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
    "GPU0     X      SYS     SYS     SYS     SYS     8-15,24-31      1               N/A\n"
    "GPU1    SYS      X      PHB     NODE    NODE    0-7,16-23       0               N/A\n"
    "GPU2    SYS     PHB      X      NODE    NODE    0-7,16-23       0               N/A\n"
    "GPU3    SYS     NODE    NODE     X      PHB     0-7,16-23       0               N/A\n"
    "GPU4    SYS     NODE    NODE    PHB      X      0-7,16-23       0               N/A\n" + LEGEND
)
ONE = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-19\t0\t\tN/A\n" + LEGEND
RECORDED = {
    8: (EIGHT_H100, EIGHT_V100),
    5: (FIVE_MIXED,),
    3: (THREE_A6000,),
    2: (TWO_5090, TWO_SOCKETS),
}


def kinds(text: str) -> dict[tuple[int, int], str]:
    return {(link.first, link.second): link.kind for link in parse_links(text)}


def test_recorded_drawings_are_read_to_the_last_pair() -> None:
    for count, texts in RECORDED.items():
        for text in texts:
            assert list(kinds(text)) == [(one, two) for one in range(count) for two in range(one + 1, count)]
    assert set(kinds(EIGHT_H100).values()) == {"NV18"}
    assert kinds(THREE_A6000) == {(0, 1): "NV4", (0, 2): "NODE", (1, 2): "NODE"}
    assert {pair for pair, kind in kinds(EIGHT_V100).items() if pair[0] == 2 and kind == "NV1"} == {(2, 6)}
    assert kinds(FIVE_MIXED)[3, 4] == "PHB"
    assert kinds(ONE) == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.",
        TWO_5090.replace("PHB", "C2C"),  # a way that is not known
        TWO_5090.replace("GPU1\tPHB", "GPU1\tPIX"),  # each side says something else
        TWO_5090.replace("GPU0\t X ", "GPU0\tPHB"),
        TWO_5090.replace("GPU1\tPHB\t X \t0-63\t0\t\tN/A\n", ""),  # a row is missing
        TWO_5090.replace("\tGPU0\tGPU1\tCPU", "\tGPU0\tCPU"),
        TWO_5090.replace("\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n", ""),
        TWO_5090.replace("GPU1\tPHB\t X \t0-63", "GPU1\tPHB"),
        TWO_5090.replace("GPU", "Device "),
        TWO_5090.replace("GPU1", "GPU0"),
    ],
)
def test_what_is_not_understood_counts_as_nothing(text: str) -> None:
    assert parse_links(text) == ()


@given(st.sampled_from([text for texts in RECORDED.values() for text in texts]), st.data())
def test_a_damaged_drawing_says_what_the_whole_one_says_or_nothing(text: str, data: st.DataObject) -> None:
    lines = text.splitlines(keepends=True)
    gone = data.draw(st.sets(st.integers(0, len(lines) - 1), max_size=3))
    cut = data.draw(st.integers(0, len(text)))
    whole = kinds(text)
    assert kinds("".join(line for place, line in enumerate(lines) if place not in gone)) in (whole, {})
    assert kinds(text[:cut]) in (whole, {})
    assert kinds(re.sub(r"\t", " \t  ", text)) == whole


def machine_with(text: str, count: int, *, order: Sequence[int] = (), visible: str | None = None) -> Facts:
    """GPUs of a drawing; `order` are those that torch sees, by nvidia-smi's numbers."""
    gpus = tuple(dataclasses.replace(H200, index=place, uuid=f"u{place}") for place in range(count))
    shown = [dataclasses.replace(gpus[number], index=place) for place, number in enumerate(order or range(count))]
    return facts_of(*shown, driver=Driver("580", (13, 0), gpus, links=parse_links(text)), visible=visible)


def on_links(facts: Facts) -> Finding:
    return seen(facts, "links")


@pytest.mark.parametrize(
    ("text", "count", "level", "said", "command"),
    [
        (EIGHT_H100, 8, "ok", "NVLink between all 8 GPUs (NV18)", ""),
        (EIGHT_V100, 8, "ok", "NVLink joins all 8 GPUs (NV1, NV2), though not every pair directly", ""),
        (THREE_A6000, 3, "note", "NVLink between cuda:0 and cuda:1 only (NV4); elsewhere PCIe (NODE)", "0,1"),
        (TWO_5090, 2, "note", "no NVLink: PCIe between both GPUs (PHB)", ""),
        (TWO_SOCKETS, 2, "note", "PCIe between both GPUs, and the link between processors (SYS)", ""),
        (FIVE_MIXED, 5, "note", "and in part the link between processors (NODE, PHB, SYS)", "1,2,3,4"),
    ],
)
def test_what_is_said_of_links(text: str, count: int, level: str, said: str, command: str) -> None:
    finding = on_links(machine_with(text, count))
    assert (finding.level, said in finding.what) == (level, True)
    assert finding.commands == ((f"export CUDA_VISIBLE_DEVICES={command}",) if command else ())


def test_links_are_between_the_gpus_that_torch_sees_in_its_order() -> None:
    finding = on_links(machine_with(THREE_A6000, 3, order=(2, 1, 0), visible="2,1,0"))
    assert "NVLink between cuda:1 and cuda:2 only" in finding.what
    assert finding.commands == ("export CUDA_VISIBLE_DEVICES=1,0",)
    assert on_links(machine_with(THREE_A6000, 3, order=(1, 0))).what == "NVLink between both GPUs (NV4)"
    assert "no NVLink: PCIe between both GPUs (NODE)" in on_links(machine_with(THREE_A6000, 3, order=(0, 2))).what


def test_nothing_is_said_where_the_links_are_not_known() -> None:
    def said(facts: Facts) -> list[str]:
        return [finding.check for finding in check_links(facts, Wanted())]

    assert said(machine_with("", 2)) == ["nccl"]
    assert said(machine_with(TWO_5090, 2, order=(1,))) == []  # one GPU
    assert said(machine_with(TWO_5090, 3)) == ["nccl"]  # one of which the drawing knows nothing
    assert said(dataclasses.replace(machine_with(TWO_5090, 2), driver=None)) == ["nccl"]
    facts = machine_with(TWO_5090, 2)
    nameless = tuple(dataclasses.replace(gpu, uuid="") for gpu in facts.torch.gpus)
    assert said(dataclasses.replace(facts, torch=dataclasses.replace(facts.torch, gpus=nameless))) == ["nccl"]


def test_several_gpus_need_nccl_and_are_as_fast_as_the_slowest() -> None:
    assert seen(machine_with(EIGHT_H100, 8), "nccl").what == "NCCL 2.27.5 comes with torch"
    gpus: tuple[GpuInfo, ...] = (H200, dataclasses.replace(RTX_5090, index=1))
    finding = on_links(facts_of(*gpus))
    assert finding.level == "note"
    assert "unlike (NVIDIA H200, NVIDIA GeForce RTX 5090)" in finding.what


def test_shared_memory_that_others_fill_is_too_little_for_several_gpus() -> None:
    full = machine(shared_memory_free=100 * 2**20)
    both = machine_with(TWO_5090, 2)
    finding = seen(dataclasses.replace(both, machine=full), "shared memory")
    assert (finding.level, finding.commands) == ("warning", ("ls -lh /dev/shm",))
    assert "8.0 GiB of shared memory (/dev/shm), 100 MiB free" in finding.what
    assert seen(facts_of(H200, machine=full), "shared memory").level == "ok"
    assert seen(both, "shared memory").level == "ok"


def test_the_drawing_is_asked_for_where_there_are_several_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "drawing").write_text(EIGHT_H100)
    rows = "".join(f"{one}, GPU-{one}, NVIDIA H100, 9.0, 81559, 81000, 4, 580.82.07\\n" for one in range(8))
    script = f'#!/bin/sh\ncase "$1" in topo) cat {tmp_path}/drawing;; *query-gpu*) printf "{rows}";; esac\n'
    smi(tmp_path, monkeypatch, script)
    monkeypatch.setattr(probe, "torch_probe", dict)
    facts = probe.look(Wanted(), output=tmp_path, model="nobody/nothing", model_path=Path("nobody/nothing"))
    assert facts.driver is not None
    assert len(facts.driver.links) == 28
    assert facts.driver.links[0] == Link(0, 1, "NV18")
    assert facts.machine.shared_memory_free is None or facts.machine.shared_memory is not None
    smi(tmp_path, monkeypatch, "#!/bin/sh\nexec sleep 20\n")
    assert ask_links(timeout=0.1) == ()
    smi(tmp_path, monkeypatch, "#!/nowhere/at/all\n")
    assert ask_links() == ()


def test_what_torch_says_of_nccl() -> None:
    assert probe.torch_and_driver_cuda({"version": "2.13.0", "nccl": "2.27.5"})[0].nccl == "2.27.5"
    assert probe.torch_and_driver_cuda({"version": "2.13.0"})[0].nccl == ""
    assert check_links in checks.CHECKS
