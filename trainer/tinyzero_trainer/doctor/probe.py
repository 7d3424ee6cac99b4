"""Looks at this machine. It judges nothing: what it sees goes into the records of facts.py.

Each function looks at one thing, waits for at most a few seconds, and turns what cannot be seen into "not known".
"""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from tinyzero_trainer.doctor.facts import Facts, Folder, Machine, Package, Torch
from tinyzero_trainer.doctor.package_checks import WATCHED
from tinyzero_trainer.hardware.gpu import Driver, GpuInfo
from tinyzero_trainer.hardware.host import cores, host_memory
from tinyzero_trainer.hardware.nvml import nvidia_driver
from tinyzero_trainer.models.files import find_model, hub_cache

TORCH_SECONDS = 120.0
"""Importing torch and transformers from a cold disk may take most of it."""


OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
"""Either forbids downloads from the Hub."""


def look(*, output: Path, model: str, model_path: Path) -> Facts:
    """Everything about this machine that the checks ask for.

    Args:
        output: run directory, which need not exist.
        model: its name for the user.
        model_path: its directory, or its name on the Hub.
    """
    torch, driver, cache = torch_of(torch_probe()), nvidia_driver(), hub_cache()
    return Facts(
        machine=machine(),
        torch=with_use(torch, driver),
        driver=driver,
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        packages=packages(),
        output=folder(output),
        hub_cache=folder(cache),
        offline=any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in OFFLINE),
        model=find_model(model, model_path, cache),
    )


# ---- torch and the driver --------------------------------------------------------------------------------------------


def torch_probe(command: Iterable[str] = (), timeout: float = TORCH_SECONDS) -> dict[str, Any]:
    """What torch_probe.py says; where it crashed or hung, the error is under the name of its stage.

    Args:
        command: another one to run, for tests.
        timeout: seconds.
    """
    # -P: nothing in the working directory can stand in for a library.
    command = tuple(command) or (sys.executable, "-P", "-m", "tinyzero_trainer.doctor.torch_probe")
    return ask_apart(command, timeout, "torch")


def ask_apart(command: Iterable[str], timeout: float, first: str) -> dict[str, Any]:
    """The last line of JSON that a process said; where it crashed or hung, the error is under the name of its stage.

    Args:
        command: that says a mapping a line, with the name of its stage under `stage` until it is through.
        timeout: seconds; then it is ended.
        first: the stage of one that said nothing.
    """
    try:
        done = subprocess.run(
            tuple(command), capture_output=True, text=True, errors="replace", timeout=timeout, check=False
        )
        text, why = done.stdout, f"its process ended with code {done.returncode}"
    except subprocess.TimeoutExpired as error:
        text = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
        why = f"it takes longer than {timeout:g} s"
    lines = [line for line in text.splitlines() if line.endswith("}")]
    seen: dict[str, Any] = json.loads(lines[-1]) if lines else {"stage": first}
    if stage := seen.pop("stage", None):
        seen[f"{stage}_error"] = why
    return seen


def torch_of(seen: dict[str, Any]) -> Torch:
    """A record of torch_probe.py's output."""
    gpus = tuple(GpuInfo(**gpu | {"capability": tuple(gpu["capability"])}) for gpu in seen.get("gpus", ()))
    return Torch(
        version=seen.get("version", ""),
        cuda=seen.get("cuda"),
        hip=seen.get("hip", False),
        archs=tuple(seen.get("archs", ())),
        gpus=gpus,
        error=seen.get("torch_error", "") or ("" if "version" in seen else "nothing is known of it"),
        cuda_error=seen.get("cuda_error", ""),
        transformers_error=seen.get("transformers_error", ""),
        nccl=seen.get("nccl", ""),
    )


def with_use(torch: Torch, driver: Driver | None) -> Torch:
    """Torch's GPUs, with what the driver knows of the same ones' use."""
    known = {gpu.uuid: gpu for gpu in driver.gpus if gpu.uuid} if driver else {}
    gpus = []
    for gpu in torch.gpus:
        same = known.get(gpu.uuid)
        use = {"free": same.free, "used": same.used, "processes": same.processes} if same else {}
        gpus.append(GpuInfo(**vars(gpu) | use))
    return Torch(**vars(torch) | {"gpus": tuple(gpus)})


def packages(names: Iterable[str] = WATCHED) -> tuple[Package, ...]:
    """Those that are installed."""
    found = []
    for name in names:
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        requires = tuple(distribution.requires or ())
        found.append(Package(canonicalize_name(name), distribution.version, requires))
    return tuple(found)


# ---- the machine -----------------------------------------------------------------------------------------------------


def machine() -> Machine:
    """CPU, memory and limits."""
    memory, free = host_memory()
    shared = shutil.disk_usage("/dev/shm") if Path("/dev/shm").is_dir() else None
    return Machine(
        python=sys.version_info[:3],
        cores=cores(),
        memory=memory,
        memory_free=free,
        shared_memory=shared.total if shared else None,
        open_files=open_files(),
        container=Path("/.dockerenv").exists() or Path("/run/.containerenv").exists(),
        shared_memory_free=shared.free if shared else None,
    )


def open_files() -> tuple[int, int]:
    """Limit on open files and its own limit; a very large number stands for none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 2**31
    return tuple(most if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard))  # type: ignore[return-value]


def folder(path: Path) -> Folder:
    """A directory, or the nearest one above it that exists."""
    shown, path = str(path), path.expanduser().absolute()
    there = next((parent for parent in (path, *path.parents) if parent.exists()), Path("/"))
    return Folder(shown, shutil.disk_usage(there).free, there.is_dir() and os.access(there, os.W_OK | os.X_OK))


def without_user(address: str) -> str:
    """An address without a user's name and password, and without a query, in which there may be a key.

    Whatever stands before the last `@` goes, since a password that was not quoted may hold any character.

    Example:
        >>> without_user("https://user:s3/cret@wandb.example:8443/api?key=s3cret")
        'https://wandb.example:8443/api'
    """
    found = re.match(r"[a-z][a-z0-9+.-]*://", address.strip(), re.IGNORECASE)
    scheme = found[0] if found else ""
    host = address.strip()[len(scheme) :].rpartition("@")[2]
    return scheme + re.split(r"[?#]", host)[0]
