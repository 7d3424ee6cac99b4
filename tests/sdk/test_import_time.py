"""The SDK is light: what importing it and asking for help may cost, and what they must not import."""

import subprocess
import sys
import time

import pytest

HEAVY = {"torch", "transformers", "ray", "numpy", "pyarrow", "pydantic", "matplotlib"}
IMPORT = "import tinyzero_sdk"
HELP = "import sys; sys.argv = ['tinyzero', '--help']\nfrom tinyzero_sdk.cli import main\nmain()"


def seconds(code: str) -> float:
    """The least of several runs of `python -c code`: what it costs on a machine that is not busy."""

    def once() -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - start

    return min(once() for _ in range(5))


@pytest.mark.parametrize(("code", "limit"), [(IMPORT, 0.15), (HELP, 0.35)], ids=["import", "help"])
def test_start_up_time_over_a_bare_interpreter(code, limit):
    assert seconds(code) - seconds("pass") < limit


@pytest.mark.parametrize("code", [IMPORT, HELP], ids=["import", "help"])
def test_nothing_heavy_is_imported(code):
    code = f"import atexit, sys\natexit.register(lambda: print('loaded', *sys.modules))\n{code}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = run.stdout.splitlines()[-1].split()
    assert loaded[0] == "loaded"
    assert not HEAVY & set(loaded)
