"""When torch is imported, what it finds in the environment, and that nothing looks for garbage meanwhile."""

import gc
import os
import subprocess
import sys

import pytest

from tinyzero_trainer.utils.startup import set_torch_environment, without_collector

SEEN = """
import gc, sys
from tinyzero_trainer.utils.startup import without_collector
seen = ["torch" in sys.modules]
try:
    with without_collector():
        seen += [gc.isenabled(), gc.get_freeze_count()]
        raise ImportError
except ImportError:
    print(*seen, gc.isenabled(), gc.get_freeze_count() > 1000)
"""


def test_what_is_imported_is_never_looked_through() -> None:
    done = subprocess.run([sys.executable, "-c", SEEN], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "0", "True", "True"]


AT_THE_END = """
import atexit, gc
from tinyzero_trainer.utils.startup import without_collector
atexit.register(lambda: print(gc.get_freeze_count() > 1000))
with without_collector():
    pass
gc.unfreeze()
"""


def test_it_is_not_looked_through_when_the_process_ends_either() -> None:
    done = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]


def test_a_process_that_has_torch_already_keeps_its_garbage() -> None:
    import torch  # noqa: F401

    before = gc.isenabled(), gc.get_freeze_count()
    with without_collector():
        assert gc.isenabled()
    assert (gc.isenabled(), gc.get_freeze_count()) == before


CHECKED = """
import sys
from tinyzero_sdk.cli import main
from tinyzero_trainer.cli import start
def checked():
    raise SystemExit(str({"torch", "transformers"} & set(sys.modules)))
start.set_torch_environment = checked
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_settings_are_checked_before_torch_is_imported(tmp_path) -> None:
    words = ["train", "--task", "multiply", "--model", "tiny", "--output", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-c", CHECKED, *words], capture_output=True, text=True, check=False)
    assert done.stderr.endswith("loading PyTorch\nset()\n")


@pytest.mark.slow
@pytest.mark.fault(
    "-OO",
    "Python removes docstrings",
    made="`python -OO` starts a training run",
    seen="error: python -OO removes the docstrings that transformers needs; use -O, or PYTHONOPTIMIZE=1",
    kept="nothing has begun",
    code=2,
)
def test_without_docstrings_the_model_is_not_blamed(tmp_path, fault_row) -> None:
    words = ["train", "--task", "multiply", "--model", "tiny", "--output", str(tmp_path / "run")]
    command = [sys.executable, "-OO", "-c", "from tinyzero_sdk.cli import main; main()", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    fault_row.check(done.stderr, done.returncode)


def test_compiled_kernels_are_kept_in_the_users_cache_unless_they_say_where(tmp_path, monkeypatch) -> None:
    variables = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
    for name in (*variables, "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR"):
        monkeypatch.setenv(name, "elsewhere")  # what is set below is undone
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    set_torch_environment()
    compiled = tmp_path / "tinyzero" / "compiled"
    assert list(compiled.iterdir()) == [compiled / "inductor"]
    assert [os.environ[name] for name in variables] == ["elsewhere", str(compiled / "inductor")]

    monkeypatch.delenv("TRITON_CACHE_DIR")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # nothing can be written there
    set_torch_environment()
    assert "TRITON_CACHE_DIR" not in os.environ
