"""Environments for tests against packages that the project does not need: each a new one laid over the running one.

What is installed here is seen there and stays untouched; what a package lacks, or needs in another version, is
installed beside it. torch keeps its version. Needs an index of packages, so whoever uses it is a slow test.
"""

import json
import os
import subprocess
import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest


def lay_over(folder: Path, *requirements: str, without_dependencies: tuple[str, ...] = ()) -> Path:
    """A new environment with `requirements` over the running one; returns its Python.

    Args:
        folder: where to make it; must not exist.
        requirements: as for pip; what they need is installed too, where it is missing or does not fit.
        without_dependencies: the same, but what they need is not looked at.
    """
    _run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    python = folder / "bin" / "python"
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (packages / "base.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    constraints = folder / "constraints.txt"
    constraints.write_text(f"torch=={version('torch')}\n")
    install = (sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--disable-pip-version-check")
    if without_dependencies:
        _run(*install, "--no-deps", *without_dependencies)
    if requirements:
        _run(*install, "-c", str(constraints), *requirements)
    return python


def run_script(python: Path, script: Path, *arguments: str, cwd: Path) -> Any:
    """What a script says in the last line it prints, as JSON; it runs away from the checkout."""
    root = Path(__file__).parents[1]
    done = _run(str(python), "-W", "ignore", str(script), *arguments, cwd=cwd, PYTHONPATH=str(root))
    return json.loads(done.stdout.splitlines()[-1])


def _run(*command: str, cwd: Path | None = None, **environment: str) -> "subprocess.CompletedProcess[str]":
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, env=kept | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"{' '.join(command)} exited with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}")
    return done
