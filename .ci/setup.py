"""Sets up the Makefile's virtual environment; run with the base Python: python3 .ci/setup.py .venv

Versions come from constraints.txt. If the base Python has a CUDA build of torch, the environment sees its packages,
which keep their versions: nothing of a working GPU stack is replaced.
"""

import os
import re
import subprocess
import sys
import sysconfig
from importlib.metadata import distributions
from pathlib import Path

BEFORE = ("hatchling", "uv")  # what builds the distributions, and what installs several times as fast as pip
EVERYTHING = ("--no-build-isolation", "-r", "requirements.txt", "-e", ".[dev]")
INDEXES = ("index-url", "extra-index-url", "find-links")
"""What pip may be set to, and uv is told; its options have the same names."""


def main(folder: Path) -> None:
    """Create the environment if it is missing, and install all distributions and the development tools."""
    over_base = has_cuda_torch()
    if not (folder / "pyvenv.cfg").exists():
        make_environment(folder, over_base)
    print(f"Installing the tested versions into {folder} (the first time: minutes, and torch is a large download)")
    pins = folder / "constraints.txt"
    pins.write_text(constraints(Path("constraints.txt").read_text(), names_of_base() if over_base else set()))
    python, quiet = folder / "bin" / "python", ("-qq", "--constraint", pins)
    pip = (python, "-m", "pip", "install", "--disable-pip-version-check", *quiet)
    pip += ("--no-compile",)  # as uv; see `compile_imports`
    subprocess.run((*pip, *BEFORE), check=True)
    uv = (python, "-m", "uv", "pip", "install", "--python", python, *index_options(), *quiet)
    # Over another environment, which uv does not see, and where uv lacks more of pip's settings, pip installs.
    if over_base or subprocess.run((*uv, *EVERYTHING), check=False).returncode:
        subprocess.run((*pip, *EVERYTHING), check=True)
    compile_imports(python)


def compile_imports(python: Path) -> None:
    """Compile what a run imports, a seventh of what is installed; the first run would take twice as long to start."""
    modules = (
        "import tinyzero_trainer.cli.start, tinyzero_trainer.controller.loop, tinyzero_trainer.executors.local.build"
    )
    subprocess.run((python, "-c", modules), check=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""})


def index_options() -> list[str]:
    """Where pip is set to look for packages, as options of uv."""
    command = (sys.executable, "-m", "pip", "config", "list")
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    options = ["--index-strategy", "unsafe-best-match"]  # as pip: the newest version of any index
    for key, value in re.findall(r"^\S+\.([a-z-]+)='(.*)'$", said, re.MULTILINE):
        if key in INDEXES:
            options += [word for place in value.split() for word in (f"--{key}", place)]
    return options


def has_cuda_torch() -> bool:
    """Whether this Python has a torch built for CUDA."""
    try:
        import torch
    except (ImportError, OSError):  # torch or one of its libraries is missing
        return False
    return torch.version.cuda is not None


def make_environment(folder: Path, over_base: bool) -> None:
    """An empty environment, or one that sees the packages of the base Python."""
    print(f"Making {folder} with Python {sys.version.split()[0]}" + (" over its CUDA torch" if over_base else ""))
    base_is_environment = sys.prefix != sys.base_prefix  # which --system-site-packages would look past
    options = ["--system-site-packages"] if over_base and not base_is_environment else []
    subprocess.run([sys.executable, "-m", "venv", *options, folder], check=True)
    if over_base and base_is_environment:
        packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        (packages / "base.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")


def names_of_base() -> set[str]:
    """Normalised names of the distributions of the base Python."""
    return {normalise(distribution.name) for distribution in distributions() if distribution.name}


def constraints(pins: str, without: set[str]) -> str:
    """The lines of a constraints file, except pins of the packages named in `without`."""
    return "".join(line for line in pins.splitlines(keepends=True) if normalise(line.split("==")[0]) not in without)


def normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).strip().lower()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except subprocess.CalledProcessError:
        sys.exit(f"make: setting up {sys.argv[1]} failed (see above)")
