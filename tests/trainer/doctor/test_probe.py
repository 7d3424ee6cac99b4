"""How the doctor looks at a machine: what it reads, and that nothing it asks can hang it."""

import dataclasses
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.doctor.machines import GIB, H200
from tinyzero_trainer.doctor import probe, torch_probe
from tinyzero_trainer.doctor.facts import Torch
from tinyzero_trainer.hardware import host


def probe_with(code: str, timeout: float = 30.0) -> Torch:
    return probe.torch_of(probe.torch_probe((sys.executable, "-c", code), timeout))


def test_an_import_that_kills_its_process_is_told_apart() -> None:
    crash = 'import os\nprint(\'{"stage": "transformers", "version": "2.13.0"}\', flush=True)\nos.abort()'
    assert probe_with(crash) == Torch("2.13.0", transformers_error="its process ended with code -6")
    assert probe_with("import os; os.abort()").error == "its process ended with code -6"


@pytest.mark.slow
def test_a_driver_that_hangs_is_told_apart() -> None:
    hang = 'import time\nprint(\'{"stage": "cuda", "version": "2.13.0"}\', flush=True)\ntime.sleep(60)'
    assert probe_with(hang, timeout=1.0).cuda_error == "it takes longer than 1 s"


def test_gpus_as_torch_describes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, total_memory=140 * GIB, uuid="GPU-a")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    said: dict[str, object] = {"version": "2.13.0+cu130", "cuda": "13.0"}
    torch_probe._cuda(said)
    read = probe.torch_of(json.loads(json.dumps(said)))
    assert read.gpus[1].index == 1
    assert read.gpus[0] == dataclasses.replace(H200, free=None)


def test_the_first_cause_is_told() -> None:
    error = RuntimeError("could not import PreTrainedModel")
    error.__cause__ = RuntimeError("\n operator torchvision::nms\n does not exist")
    assert torch_probe._one_line(error) == "operator torchvision::nms"
    assert torch_probe._one_line(KeyError()) == "KeyError"


def test_a_containers_limits_count(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 1048576 kB",
        "/sys/fs/cgroup/memory.max": str(2**29),
        "/sys/fs/cgroup/memory.current": str(2**28),
        "/sys/fs/cgroup/cpu.max": "150000 100000",
    }
    monkeypatch.setattr(host, "_read", lambda path: files.get(path, ""))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert host.host_memory() == (2**29, 2**28)
    assert host.cores() == 1
    files["/sys/fs/cgroup/memory.max"] = files["/sys/fs/cgroup/cpu.max"] = "max"
    assert host.host_memory()[1] == GIB
    assert host.cores() == 8


@given(st.text(st.characters(codec="ascii", exclude_characters="s3cret"), max_size=12))
def test_no_password_stays_in_an_address(around: str) -> None:
    assert "s3cret" not in probe.without_user(f"https://user:{around}s3cret{around}@host")
    assert "s3cret" not in probe.without_user(f"user:{around}s3cret{around}@host")


def test_a_library_that_prints_no_text_is_no_trouble() -> None:
    code = "import os, sys\nos.write(1, b'\\xff\\n')\nos.write(2, b'\\xff')\nprint('{\"version\": \"2.13.0\"}')"
    assert probe_with(code).version == "2.13.0"


def test_a_directory_that_does_not_exist_yet(tmp_path: Path) -> None:
    found = probe.folder(tmp_path / "a" / "b")
    assert found.writable
    assert found.free > 0
    (tmp_path / "file").write_text("")
    assert not probe.folder(tmp_path / "file" / "run").writable
