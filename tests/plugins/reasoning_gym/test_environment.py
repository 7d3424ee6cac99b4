"""The tests that need reasoning-gym, in an environment that has it. Slow: installs it, and it needs a C compiler."""

import subprocess
from pathlib import Path

import pytest

from tests.environments import lay_over

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.slow


def test_every_data_set_is_a_task(tmp_path: Path) -> None:
    [pin] = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("reasoning-gym==")]
    python = lay_over(tmp_path / "environment", pin, "-e", str(ROOT / "plugins/reasoning_gym"))
    tests = Path(__file__).parent / "test_tasks.py"
    command = (python, *["-m", "pytest", "-q", "-n2", "-p", "no:cacheprovider"], tests)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout
