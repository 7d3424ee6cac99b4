"""Findings on the driver and the GPUs."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tinyzero_trainer.doctor.facts import Facts, Requirements
from tinyzero_trainer.doctor.finding import Finding, Level, as_size
from tinyzero_trainer.hardware.compute_capability import (
    MIN_DRIVER,
    build_for,
    has_kernels,
    install,
    missing_kernels,
    named_outside,
    parse_cuda,
)
from tinyzero_trainer.hardware.gpu import Capability, CudaVersion, Driver, GpuInfo
from tinyzero_trainer.hardware.gpu_specs import has_bfloat16

TAKEN_SHARE = 0.1
"""Of a GPU's memory: what others may hold before it is worth a word."""


def check_driver(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """Whether there is a driver, and whether it is new enough for the CUDA that torch was built for."""
    driver = facts.driver
    if driver is None:
        if facts.torch.hip and facts.torch.gpus:
            return
        if requirements.device.startswith("cuda"):
            do = "set run.device=auto, or start the container with its GPUs"
            yield Finding("driver", "error", f"run.device={requirements.device}, but no NVIDIA driver", do, _CONTAINER)
        else:
            yield Finding("driver", "note", "no NVIDIA GPU: training runs on the CPU, which suits the tiny model")
    elif driver.error:
        do, commands = "see the output of nvidia-smi; after an update of the driver, reboot", ("nvidia-smi",)
        if _FAILED.search(driver.error):
            do = _OF_FAILED
        elif facts.machine.container:
            do, commands = "start the container with its GPUs", _CONTAINER
        yield _if_used(Finding("driver", "error", driver.error, do, commands), requirements)
    else:
        yield _if_used(_fit_of_driver(facts, driver), requirements)
        if driver.failed:
            level: Level = "warning" if facts.torch.gpus else "error"
            what = f"some GPUs do not answer: {_short(driver.failed)}"
            yield _if_used(Finding("driver", level, what, _OF_FAILED, ("nvidia-smi",)), requirements)


def _if_used(finding: Finding, requirements: Requirements, *devices: str) -> Finding:
    """A finding on GPUs, which is no error where they are not used.

    Args:
        finding: on one GPU or all.
        requirements: names the device to train on.
        devices: what `run.device` may be for it to matter; whatever is not the CPU if none is given.
    """
    used = requirements.device in devices if devices else requirements.device != "cpu"
    return finding if used or finding.level == "ok" else replace(finding, level="note")


def _fit_of_driver(facts: Facts, driver: Driver) -> Finding:
    """The driver's CUDA against torch's."""
    name = f"NVIDIA driver {driver.version}".rstrip()
    if driver.cuda is None:
        return Finding("driver", "note", f"{name}; which CUDA it supports is not known", "look", ("nvidia-smi",))
    what = f"{name} supports CUDA up to {_dotted(driver.cuda)}"
    if not facts.torch.cuda:
        return Finding("driver", "ok", what)
    built = parse_cuda(facts.torch.cuda)
    fit = f"{what}, torch was built for CUDA {facts.torch.cuda}"
    if built[0] > driver.cuda[0]:
        needed = MIN_DRIVER.get(built[0], f"one for CUDA {built[0]}")
        # The oldest builds are for CUDA 12.
        build = build_for(_first_capability(driver), driver.cuda) if driver.cuda >= (12, 0) else None
        do = f"update the driver (to {needed} or newer)" + (", or install a torch built for its CUDA" if build else "")
        return Finding("driver", "error", fit, do, (install(build),) if build else ())
    if built > driver.cuda:
        do = f"nothing, unless a kernel cannot be compiled: then update it to one for CUDA {facts.torch.cuda}"
        return Finding("driver", "note", f"{fit}: that works within CUDA {built[0]}", do)
    return Finding("driver", "ok", fit)


def _first_capability(driver: Driver) -> Capability | None:
    return driver.gpus[0].capability if driver.gpus else None


def check_visibility(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """Whether torch sees the GPUs that the driver knows, and the one that is asked for."""
    torch, driver = facts.torch, facts.driver
    if torch.gpus:
        yield from _asked_for(facts, requirements)
        return
    if not torch.version or driver is None or driver.error:
        return
    if torch.hip or not (driver.gpus or torch.cuda_error):  # whether there is a GPU is not known
        if requirements.device.startswith("cuda"):
            what = f"run.device={requirements.device}, but torch {torch.version} sees no GPU"
            yield Finding("gpu", "error", what, "set run.device=auto, or install a torch built for the GPU")
        return
    gpus = f"any of the {len(driver.gpus)} GPUs" if driver.gpus else "a GPU"
    if len(driver.gpus) == 1:
        gpus = f"the {driver.gpus[0].name}"
    what = f"torch {torch.version} does not see {gpus}"
    commands: tuple[str, ...] = ("nvidia-smi",)
    if torch.cuda is None:
        what += ": it was built for the CPU only"
        build = build_for(_first_capability(driver), driver.cuda)
        do = "install a torch built for CUDA" if build else "train on the CPU: no torch is built for such a GPU"
        commands = (install(build),) if build else ()
    elif hidden := _hidden(facts.visible, driver):
        what += f": {hidden}"
        do, commands = "show them", ("unset CUDA_VISIBLE_DEVICES",)
    else:
        what += f": {torch.cuda_error or 'it gives no reason'}"
        do = "cure that, or train on the CPU with run.device=cpu"
    yield _if_used(Finding("gpu", "error", what, do, commands), requirements)


def _hidden(visible: str | None, driver: Driver) -> str:
    """How CUDA_VISIBLE_DEVICES hides all GPUs; empty if it does not.

    GPUs are seen up to the first name that is none (CUDA C++ Programming Guide, "CUDA environment variables").
    """
    if visible is None:
        return ""
    said, first = f"CUDA_VISIBLE_DEVICES={visible!r}", visible.partition(",")[0].strip()
    if first.startswith("MIG-"):
        return ""  # parts of a GPU, which are not asked for here
    if first.startswith("GPU-"):
        unknown = not any(f"GPU-{gpu.uuid}".startswith(first) for gpu in driver.gpus)
    else:
        number = int(first) if first.isascii() and first.isdigit() else None
        unknown = number is None or number >= len(driver.gpus)
    if not unknown:
        return ""
    if not first or first == "-1" or not driver.gpus or driver.failed:  # of a GPU that failed the number is not known
        return f"{said} hides them"
    names = "only GPU 0" if len(driver.gpus) == 1 else f"GPUs 0 to {len(driver.gpus) - 1}"
    return f"{said} hides all, since there is no GPU {first} ({names})"


def _asked_for(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """Whether torch sees the GPU that run.device names."""
    seen = [f"cuda:{gpu.index}" for gpu in facts.torch.gpus]
    if not requirements.device.startswith("cuda:") or requirements.device in seen:
        return
    what = f"run.device={requirements.device}, but torch sees {' '.join(seen)} only"
    if facts.visible is not None:
        what += f" (CUDA_VISIBLE_DEVICES={facts.visible!r})"
    yield Finding("gpu", "error", what, "give one that it sees, or run.device=auto")


def check_gpus(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """Each visible GPU: its kernels, and who else is on it."""
    torch, gpus = facts.torch, facts.torch.gpus
    if torch.hip:
        yield Finding("gpu", "note", f"torch {torch.version} is built for AMD's GPUs, on which nobody has tried this")
        return
    fine = [gpu for gpu in gpus if gpu.capability and has_kernels(gpu.capability, torch.archs)]
    for gpu in gpus:
        check = f"gpu {gpu.index}"
        missing = gpu.capability and missing_kernels(
            gpu.name,
            gpu.capability,
            torch=torch.version,
            cuda=torch.cuda,
            archs=torch.archs,
            driver=facts.driver.cuda if facts.driver else None,
            others=[named_outside(gpu.index, facts.visible) for gpu in fine],
        )
        if missing:
            state = Finding(check, "error", missing.what, missing.do, missing.commands)
        else:
            emptier = [named_outside(other.index, facts.visible) for other in fine if _emptier(other, gpu)]
            state = _state(check, gpu, emptier)
        yield _if_used(state, requirements, "auto", "cuda", f"cuda:{gpu.index}")


def _emptier(other: GpuInfo, gpu: GpuInfo) -> bool:
    return (other.free or 0) > (gpu.free or 0)


def _state(check: str, gpu: GpuInfo, emptier: list[str]) -> Finding:
    """A GPU that torch can use: what it is, and what is free."""
    capability = "" if gpu.capability is None else f", sm_{gpu.capability[0]}{gpu.capability[1]}"
    what = f"{gpu.name}{capability}, {as_size(gpu.memory)}"
    if gpu.free is not None and gpu.memory - gpu.free > TAKEN_SHARE * gpu.memory:
        taken = f"{as_size(gpu.memory - gpu.free)} of it in use"
        by = ", ".join(f"{process.name} ({process.pid}): {as_size(process.used)}" for process in gpu.processes)
        do = "end what holds it" + (f", or take CUDA_VISIBLE_DEVICES={emptier[0]}" if emptier else "")
        return Finding(check, "warning", f"{what}, {taken}{f' by {by}' if by else ''}", do, ("nvidia-smi",))
    if not has_bfloat16(gpu.capability):
        return Finding(check, "note", f"{what}; it has no bfloat16: model.dtype=auto is float32 on it, which is slow")
    return Finding(check, "ok", what + ("" if gpu.free is None else f", {as_size(gpu.free)} free"))


def _short(lines: Sequence[str]) -> str:
    return textwrap.shorten(" / ".join(lines), 300, placeholder=" …")


_FAILED = re.compile(r"\bGPU \d+: |\blost\b|unknown error", re.IGNORECASE)
"""In NVML's errors of a GPU that is there and does not answer."""

_OF_FAILED = "a GPU may have failed: look at the output of nvidia-smi, and reboot if it persists"

_CONTAINER = ("docker run --gpus all …",)


def _dotted(version: CudaVersion) -> str:
    return f"{version[0]}.{version[1]}"
