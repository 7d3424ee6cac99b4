"""The SDK is light: what importing it and asking for help may cost, and what they must not import."""

import resource
import subprocess
import sys

import pytest

HEAVY = {"torch", "transformers", "ray", "numpy", "pyarrow", "pydantic", "matplotlib"}
IMPORT = "import tinyzero_sdk"
HELP = "import sys; sys.argv = ['tinyzero', '--help']\nfrom tinyzero_sdk.cli import main\nmain()"


def processor_seconds(code: str) -> float:
    """What `python -c code` costs; unlike the time on the wall it hardly depends on what else is running."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.slow
@pytest.mark.parametrize(("code", "limit"), [(IMPORT, 0.15), (HELP, 0.35)], ids=["import", "help"])
def test_start_up_time_over_a_bare_interpreter(code, limit):
    bare = min(processor_seconds("pass") for _ in range(3))
    # Beside busy neighbours a core is slower for a while, in processor seconds too.
    assert any(processor_seconds(code) - bare < limit for _ in range(40))


@pytest.mark.slow
@pytest.mark.parametrize("code", [IMPORT, HELP], ids=["import", "help"])
def test_nothing_heavy_is_imported(code):
    code = f"import atexit, sys\natexit.register(lambda: print('loaded', *sys.modules))\n{code}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = run.stdout.splitlines()[-1].split()
    assert loaded[0] == "loaded"
    assert not HEAVY & set(loaded)
