"""The SDK is light: what importing it and asking for help may cost, and what they must not import."""

import resource
import subprocess
import sys

import pytest

HEAVY = {"torch", "transformers", "ray", "numpy", "pyarrow", "pydantic", "matplotlib"}
IMPORT = "import tinyzero_sdk"
LIBRARY = "import asyncio, http.server, logging.config, multiprocessing.pool, unittest.mock, xml.dom.minidom"
LOAD = "import tinyzero_sdk; tinyzero_sdk.load_task({task!r})"
HELP = "import sys; sys.argv = ['tinyzero', '--help']\nfrom tinyzero_sdk.cli import main\nmain()"


def processor_seconds(code):
    """What `python -c code` costs; unlike the time on the wall it hardly depends on what else is running."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.slow
@pytest.mark.parametrize(("code", "times"), [(IMPORT, 2), (HELP, 6)], ids=["import", "help"])
def test_start_up_costs_no_more_than_a_few_modules_of_the_standard_library(code, times):
    bare = min(processor_seconds("pass") for _ in range(3))
    # Some 0.08 s. Beside busy neighbours a core is slower for a while, in processor seconds too, so all are asked anew.
    assert any(processor_seconds(code) - bare < times * (processor_seconds(LIBRARY) - bare) for _ in range(20))


@pytest.mark.slow
@pytest.mark.parametrize("code", [IMPORT, HELP, LOAD], ids=["import", "help", "load_task"])
def test_nothing_heavy_is_imported(code, write_task):
    code = code.format(task=write_task())
    code = f"import atexit, sys\natexit.register(lambda: print('loaded', *sys.modules))\n{code}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = run.stdout.splitlines()[-1].split()
    assert loaded[0] == "loaded"
    assert not HEAVY & set(loaded)
