"""The tests that need reasoning-gym, where it is installed. Slow: installs it once, which needs a C compiler."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.environments import ROOT, installed, variables


@pytest.mark.nightly(reason="a hundred datasets of a pinned package; the plugin is tested without it at every change")
def test_every_data_set_is_a_task(tmp_path):
    plugin = ("--no-deps", "--no-build-isolation", "--target", tmp_path, ROOT / "plugins/reasoning_gym")
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *plugin], check=True, capture_output=True)
    tests = Path(__file__).parent / "test_tasks.py"
    command = (sys.executable, *["-m", "pytest", "-q", "-n2", "-p", "no:cacheprovider"], tests)
    environment = variables(tmp_path, installed("reasoning-gym"))
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout
