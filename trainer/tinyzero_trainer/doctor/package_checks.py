"""Findings on torch, and on packages whose versions have to fit together by their own metadata."""

from collections.abc import Iterator, Mapping

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tinyzero_trainer import kinds
from tinyzero_trainer.doctor.facts import Facts, Finding, Level, Package, Requirements
from tinyzero_trainer.kinds import find_engine, kind_names

OURS = "tinyzero-trainer"

SUSPECTS = ("torchvision", "torchaudio")
"""transformers imports them wherever they are installed, so a broken one breaks what never uses it."""

ENGINES = tuple(package for name in kind_names(kinds.ENGINE_PACKAGE) for package in find_engine(name).packages)
"""Packages of rollout engines."""

WATCHED = (OURS, "torch", "transformers", *ENGINES, *SUSPECTS, "peft", "ray", "wandb")
"""Packages that break each other, or a run, when one of them is changed alone."""


def check_imports(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    torch = facts.torch
    if torch.error:
        what = f"torch cannot be imported: {torch.error}"
        yield Finding("torch", "error", what, "reinstall it", (_reinstall("torch"),))
        return
    built = f"CUDA {torch.cuda}" if torch.cuda else "ROCm" if torch.hip else "the CPU"
    yield Finding("torch", "ok", f"torch {torch.version}, built for {built}, in Python {facts.machine.python}")
    if torch.transformers_error:
        what = f"transformers cannot be imported: {torch.transformers_error}"
        present = [name for name in SUSPECTS if name in facts.installed]
        if any(name in torch.transformers_error for name in present):
            do = f"uninstall {' and '.join(present)} (training needs neither), or install what fits torch"
            yield Finding("transformers", "error", what, do, (f"pip uninstall -y {' '.join(present)}",))
        else:
            yield Finding("transformers", "error", what, "reinstall it", (_reinstall("transformers"),))


def check_versions(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """Whether each watched package finds the others in versions that it supports."""
    needed = {"torch", "transformers", *SUSPECTS}
    needed |= {*requirements.engine.packages}
    needed |= {"ray"} if requirements.address is not None or requirements.dims is not None else set()
    for package in facts.packages:
        misfits = list(_misfits(package, facts.installed, facts.torch.version)) if package.name != "torch" else []
        for requirement, present in misfits:
            required = canonicalize_name(requirement.name)
            blamed = required if package.name == OURS else package.name
            level: Level = "error" if blamed in needed else "warning"
            there = f"{required} {present}" if present else "it"
            what = f"{package.name} {package.version} needs {required}{requirement.specifier}, but {there} is "
            what += "installed" if present else "not installed"
            do, commands = "install one that fits", [f"pip install '{requirement.name}{requirement.specifier}'"]
            if package.name in SUSPECTS:
                do = "install the one that fits torch, or uninstall it: training does not need it"
                pair = f"pip install {package.name} 'torch=={facts.torch.version.partition('+')[0]}'"
                commands = [pair, f"pip uninstall -y {package.name}"]
            yield Finding(blamed, level, what, do, tuple(commands))
        if not misfits and package.name not in (OURS, "torch"):
            yield Finding(package.name, "ok", f"{package.name} {package.version}")
    engine = requirements.engine
    if engine.packages and facts.installed.keys().isdisjoint(engine.packages):
        extra = engine.extras[0 if facts.torch.gpus or facts.driver else 1]
        what = f"rollout.engine={engine.name}, but it is not installed"
        yield Finding(engine.name, "error", what, "install it", (f"pip install '{OURS}[{extra}]'",))


def _misfits(package: Package, installed: Mapping[str, Package], torch: str) -> Iterator[tuple[Requirement, str]]:
    """Requirements on watched packages that are not met, with the installed version (empty = none)."""
    # Our own extras count where their package is installed. Those of others do not.
    extras = ("", *installed) if package.name == OURS else ("",)
    for requirement in map(Requirement, package.requires):
        name, marker = canonicalize_name(requirement.name), requirement.marker
        if name not in WATCHED or (marker and not any(marker.evaluate({"extra": extra}) for extra in extras)):
            continue
        present = torch if name == "torch" else installed[name].version if name in installed else ""
        if not present or not requirement.specifier.contains(Version(present), prereleases=True):
            yield requirement, present


def _reinstall(package: str) -> str:
    return f"pip install --force-reinstall --no-cache-dir {package}"


CHECKS = (check_imports, check_versions)
