"""What is seen of a machine, and that no probe can crash or hang the doctor."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.trainer.doctor.machines import GIB, H200
from tinyzero_sdk.workers import process as host
from tinyzero_trainer.doctor import probe, torch_probe
from tinyzero_trainer.doctor.facts import Torch
from tinyzero_trainer.hardware.gpu import Driver


def probe_with(code: str, timeout: float = 30.0) -> Torch:
    return probe.installed_torch(("-c", code), timeout)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("os.abort()", Torch(error="its process ended with code -6")),
        (
            'print(\'{"stage": "transformers", "version": "2.13.0"}\', flush=True); os.abort()',
            Torch("2.13.0", transformers_error="its process ended with code -6"),
        ),
        ("os.write(1, b'\\xff\\n'); os.write(2, b'\\xff'); print('{\"version\": \"2.13.0\"}')", Torch("2.13.0")),
    ],
)
def test_a_crash_is_an_error_of_its_stage(code: str, expected: Torch) -> None:
    assert probe_with(f"import os; {code}") == expected


@pytest.mark.slow
def test_a_probe_that_hangs_is_an_error_of_its_stage() -> None:
    hang = 'import time\nprint(\'{"stage": "cuda", "version": "2.13.0"}\', flush=True)\ntime.sleep(60)'
    assert probe_with(hang, timeout=1.0).cuda_error == "no answer within 1 s"


@pytest.mark.parametrize(
    ("failing", "expected"),
    [
        ("", {"torch": 1, "cuda": 1}),
        ("torch", {"torch_error": "broken"}),
        ("cuda", {"torch": 1, "cuda_error": "broken"}),
    ],
)
def test_stages_continue_after_an_error_except_after_the_first(failing: str, expected: dict[str, object]) -> None:
    code = (
        "from tinyzero_trainer.doctor import torch_probe\n"
        "def stage(name):\n"
        "    def look(seen):\n"
        "        print('noise')\n"
        f"        if name == {failing!r}: raise RuntimeError('broken')\n"
        "        seen[name] = 1\n"
        "    return look\n"
        "torch_probe.STAGES = {name: stage(name) for name in ('torch', 'cuda')}\n"
        "torch_probe.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == expected


def test_gpus_as_torch_describes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, total_memory=140 * GIB, uuid="GPU-a")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    found: dict[str, object] = {"version": "2.13.0+cu130", "cuda": "13.0"}
    torch_probe.look_at_gpus(found)
    read = probe_with(f"print({json.dumps(found)!r})")
    assert (read.gpus[0], read.gpus[1].index) == (dataclasses.replace(H200, free=None), 1)
    used = probe.with_usage(read, Driver(gpus=(H200,)))
    assert (used.gpus[0].free, used.gpus[0].index) == (H200.free, 0)


def test_the_root_cause_is_reported() -> None:
    error = RuntimeError("could not import PreTrainedModel")
    error.__cause__ = RuntimeError("\n operator torchvision::nms\n does not exist")
    assert torch_probe.root_cause(error) == "operator torchvision::nms"
    assert torch_probe.root_cause(KeyError()) == "KeyError"


def test_a_containers_limits_count(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 1048576 kB",
        "/sys/fs/cgroup/memory.max": str(2**29),
        "/sys/fs/cgroup/memory.current": str(2**28),
    }
    monkeypatch.setattr(host, "_read", lambda path: files.get(path, ""))
    assert host.host_memory() == (2**29, 2**28)
    files["/sys/fs/cgroup/memory.max"] = "max"
    assert host.host_memory()[1] == GIB


def test_a_directory_that_does_not_exist_yet(tmp_path: Path) -> None:
    found = probe.folder(tmp_path / "a" / "b")
    assert found.writable
    assert found.free > 0
    (tmp_path / "file").write_text("")
    assert not probe.folder(tmp_path / "file" / "run").writable


@pytest.mark.slow
def test_a_broken_torch_does_not_break_the_doctor() -> None:
    code = (
        "import sys; sys.modules |= {'torch': None, 'transformers': None}\n"
        "import tinyzero_trainer.doctor.checks, tinyzero_trainer.doctor.probe, tinyzero_trainer.doctor.cluster_probe"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
