"""Looks at this machine, and judges nothing: what it sees goes into the records of facts.py.

Each function looks at one thing, for a few seconds at most; what cannot be seen is "not known".
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from tinyzero_sdk.workers.process import host_memory
from tinyzero_trainer.doctor.facts import Facts, Folder, Machine, Package, Torch
from tinyzero_trainer.doctor.package_checks import WATCHED
from tinyzero_trainer.hardware.gpu import Driver, GpuInfo
from tinyzero_trainer.hardware.nvml import nvidia_driver
from tinyzero_trainer.models.files import find_model, hub_cache

TORCH_SECONDS = 120.0  # importing torch and transformers from a cold disk may take most of it


def look(*, output: Path, model: str, model_path: Path) -> Facts:
    """All facts about this machine."""
    driver, cache = nvidia_driver(), hub_cache()
    offline = (os.environ.get(name, "").upper() for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return Facts(
        machine=machine(),
        torch=with_usage(installed_torch(), driver),
        driver=driver,
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        packages=packages(),
        output=folder(output),
        hub_cache=folder(cache),
        offline=any(value in ("1", "ON", "YES", "TRUE") for value in offline),
        model=find_model(model, model_path, cache),
    )


def installed_torch(
    command: Sequence[str] = ("-m", "tinyzero_trainer.doctor.torch_probe"), timeout: float = TORCH_SECONDS
) -> Torch:
    """The installed torch, and the GPUs it sees; torch_probe.py runs in a child process, which may crash or hang."""
    try:
        # -P: no file in the working directory can replace a library.
        process = subprocess.run((sys.executable, "-P", *command), capture_output=True, timeout=timeout, check=False)
        output, reason = process.stdout, f"its process ended with code {process.returncode}"
    except subprocess.TimeoutExpired as error:
        output, reason = error.stdout or b"", f"no answer within {timeout:g} s"
    lines = [line for line in output.decode(errors="replace").splitlines() if line.endswith("}")]
    seen: dict[str, Any] = json.loads(lines[-1]) if lines else {"stage": "torch"}
    if stage := seen.pop("stage", None):
        seen[f"{stage}_error"] = reason
    gpus = tuple(GpuInfo(**gpu | {"capability": tuple(gpu["capability"])}) for gpu in seen.get("gpus", ()))
    message, archs = seen.pop("torch_error", ""), tuple(seen.get("archs", ()))
    return Torch(**seen | {"error": message, "archs": archs, "gpus": gpus})


def with_usage(torch: Torch, driver: Driver | None) -> Torch:
    """Torch's GPUs, with their memory and processes as the driver reports them."""
    known = {gpu.uuid: gpu for gpu in driver.gpus if gpu.uuid} if driver else {}
    by_driver = ((gpu, known.get(gpu.uuid, gpu)) for gpu in torch.gpus)
    gpus = (replace(gpu, free=same.free, used=same.used, processes=same.processes) for gpu, same in by_driver)
    return replace(torch, gpus=tuple(gpus))


def packages() -> tuple[Package, ...]:
    installed = []
    for name in WATCHED:
        with suppress(metadata.PackageNotFoundError):
            distribution = metadata.distribution(name)
            installed.append(Package(canonicalize_name(name), distribution.version, tuple(distribution.requires or ())))
    return tuple(installed)


def machine() -> Machine:
    memory, free = host_memory()
    return Machine(
        python=platform.python_version(),
        cores=len(os.sched_getaffinity(0)),
        memory=memory,
        memory_free=free,
        shared_memory=shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None,
        container=Path("/.dockerenv").exists() or Path("/run/.containerenv").exists(),
    )


def folder(path: Path) -> Folder:
    """A directory, or the nearest one above it that exists."""
    shown, path = str(path), path.expanduser().absolute()
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    return Folder(shown, shutil.disk_usage(existing).free, existing.is_dir() and os.access(existing, os.W_OK | os.X_OK))
