"""Findings on the driver and the GPUs."""

from collections.abc import Iterator
from dataclasses import replace

from tinyzero_trainer.doctor.facts import Facts, Finding, Requirements, as_size
from tinyzero_trainer.hardware.compute_capability import (
    MIN_DRIVER,
    build_for,
    install,
    missing_kernels,
    parse_cuda,
)
from tinyzero_trainer.hardware.gpu import Driver, GpuInfo
from tinyzero_trainer.hardware.gpu_specs import has_bfloat16

IN_USE_FRACTION = 0.1  # of a GPU's memory: what other processes may hold before there is a warning
CONTAINER = ("docker run --gpus all …",)


def check_driver(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """Whether there is a driver, and whether it is new enough for the CUDA that torch was built for."""
    driver = facts.driver
    if driver is None:
        if requirements.device.startswith("cuda"):
            do = "set run.device=auto, or start the container with its GPUs"
            yield Finding("driver", "error", f"run.device={requirements.device}, but no NVIDIA driver", do, CONTAINER)
        elif not facts.torch.hip:
            yield Finding("driver", "note", "no NVIDIA GPU: training runs on the CPU, which suits the tiny model")
    elif driver.error:
        commands: tuple[str, ...] = ("nvidia-smi",)
        do = "see the output of nvidia-smi; after an update of the driver, or if a GPU has failed, reboot"
        if facts.machine.container:
            do, commands = f"{do}; a container has to be started with its GPUs", (*commands, *CONTAINER)
        yield _if_used(Finding("driver", "error", driver.error, do, commands), requirements)
    else:
        yield _if_used(_driver_version(facts, driver), requirements)


def _if_used(finding: Finding, requirements: Requirements, *devices: str) -> Finding:
    """A finding on GPUs, which is a note at most where they are not used."""
    used = requirements.device in devices if devices else requirements.device != "cpu"
    return finding if used or finding.level == "ok" else replace(finding, level="note")


def _driver_version(facts: Facts, driver: Driver) -> Finding:
    what = f"NVIDIA driver {driver.version}"
    if driver.cuda is None or not facts.torch.cuda:
        return Finding("driver", "ok", what)
    built = parse_cuda(facts.torch.cuda)
    what += f" supports CUDA up to {driver.cuda[0]}.{driver.cuda[1]}, torch was built for CUDA {facts.torch.cuda}"
    if built[0] > driver.cuda[0]:
        build = build_for(_capability(driver), driver.cuda) if driver.cuda >= (12, 0) else None  # the oldest builds
        do = f"update the driver (to {MIN_DRIVER.get(built[0], f'one for CUDA {built[0]}')} or newer)"
        do += ", or install a torch built for its CUDA" if build else ""
        return Finding("driver", "error", what, do, (install(build),) if build else ())
    return Finding("driver", "ok", what)


def _capability(driver: Driver) -> tuple[int, int] | None:
    return driver.gpus[0].capability if driver.gpus else None


def check_visibility(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """Whether torch sees the GPUs that the driver knows, and the one that run.device names."""
    torch, driver, device = facts.torch, facts.driver, requirements.device
    seen = [f"cuda:{gpu.index}" for gpu in torch.gpus]
    hidden = "" if facts.visible is None else f" (CUDA_VISIBLE_DEVICES={facts.visible!r})"
    if seen:
        if device.startswith("cuda:") and device not in seen:
            what = f"run.device={device}, but torch sees {' '.join(seen)} only{hidden}"
            yield Finding("gpu", "error", what, "give one that it sees, or run.device=auto")
        return
    if torch.error or torch.hip or driver is None or driver.error:
        return
    count = len(driver.gpus)
    gpus = f"the {driver.gpus[0].name}" if count == 1 else f"any of the {count} GPUs" if count else "a GPU"
    commands: tuple[str, ...] = ("nvidia-smi",)
    what = f"torch {torch.version} does not see {gpus}"
    if torch.cuda is None:
        build = build_for(_capability(driver), driver.cuda)
        what += ": it was built for the CPU only"
        do = "install a torch built for CUDA" if build else "train on the CPU: no torch is built for such a GPU"
        commands = (install(build),) if build else ()
    else:
        what += f"{hidden}: {torch.cuda_error or 'it gives no reason'}"
        do = "fix that, or train on the CPU with run.device=cpu"
        if hidden:
            do, commands = "if the variable hides them, unset it", ("unset CUDA_VISIBLE_DEVICES", *commands)
    yield _if_used(Finding("gpu", "error", what, do, commands), requirements)


def check_gpus(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """Each visible GPU: whether torch has kernels for it, and who else uses it."""
    torch = facts.torch
    if torch.hip:
        yield Finding("gpu", "note", f"torch {torch.version} is built for AMD's GPUs, on which this is not tested")
        return
    for gpu in torch.gpus:
        check = f"gpu {gpu.index}"
        missing = gpu.capability and missing_kernels(
            gpu.name,
            gpu.capability,
            torch=torch.version,
            cuda=torch.cuda,
            archs=torch.archs,
            driver=facts.driver.cuda if facts.driver else None,
        )
        state = Finding(check, "error", missing.what, missing.do, missing.commands) if missing else _state(check, gpu)
        yield _if_used(state, requirements, "auto", "cuda", f"cuda:{gpu.index}")


def _state(check: str, gpu: GpuInfo) -> Finding:
    """A GPU that torch can use."""
    capability = "" if gpu.capability is None else f", sm_{gpu.capability[0]}{gpu.capability[1]}"
    what = f"{gpu.name}{capability}, {as_size(gpu.memory)}"
    if gpu.free is not None and gpu.memory - gpu.free > IN_USE_FRACTION * gpu.memory:
        by = ", ".join(f"{process.name} ({process.pid}): {as_size(process.used)}" for process in gpu.processes)
        what += f", {as_size(gpu.memory - gpu.free)} of it in use{f' by {by}' if by else ''}"
        do = "end the processes that use it, or choose another GPU by CUDA_VISIBLE_DEVICES"
        return Finding(check, "warning", what, do, ("nvidia-smi",))
    if not has_bfloat16(gpu.capability):
        return Finding(check, "note", f"{what}; it has no bfloat16: model.dtype=auto is float32 on it, which is slow")
    return Finding(check, "ok", what + ("" if gpu.free is None else f", {as_size(gpu.free)} free"))


CHECKS = (check_driver, check_visibility, check_gpus)
