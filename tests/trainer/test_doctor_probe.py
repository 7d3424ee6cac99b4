"""How the doctor looks at a machine: what it reads, and that nothing it asks can hang it."""

import dataclasses
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.machines import GIB, H200
from tinyzero_trainer.doctor import probe, torch_probe
from tinyzero_trainer.doctor.facts import Torch
from tinyzero_trainer.hardware import host


def probe_with(code: str, timeout: float = 30.0) -> Torch:
    return probe.torch_and_driver_cuda(probe.torch_probe((sys.executable, "-c", code), timeout))[0]


def test_an_import_that_kills_its_process_is_told_apart() -> None:
    crash = 'import os\nprint(\'{"stage": "transformers", "version": "2.13.0"}\', flush=True)\nos.abort()'
    assert probe_with(crash) == Torch("2.13.0", transformers_error="its process ended with code -6")
    assert probe_with("import os; os.abort()").error == "its process ended with code -6"


@pytest.mark.slow
def test_a_driver_that_hangs_is_told_apart() -> None:
    hang = 'import time\nprint(\'{"stage": "cuda", "version": "2.13.0"}\', flush=True)\ntime.sleep(60)'
    assert probe_with(hang, timeout=1.0).cuda_error == "it takes longer than 1 s"


def test_a_server_that_does_not_answer_costs_no_more_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe.reach("no address", 0.2).startswith("unknown url type")
    release = threading.Event()

    def resolve_for_ever(*_: object, **__: object) -> None:
        release.wait(300)
        raise OSError("nobody knows the name")

    monkeypatch.setattr(probe.urllib.request, "urlopen", resolve_for_ever)
    started = time.monotonic()
    assert probe.reach("https://wandb.example", 0.1) == "no answer within 0.1 s"
    assert time.monotonic() - started < 120
    release.set()


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", ""),
        (b"HTTP/1.0 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", ""),
        (b"220 mail\r\n", "220 mail"),
    ],
)
def test_a_server_that_speaks_http_at_all_can_be_reached(
    reply: bytes, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    def answer() -> None:
        with listener.accept()[0] as connection:
            connection.recv(4096)
            connection.sendall(reply)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=answer)
        server.start()
        assert probe.reach(f"http://127.0.0.1:{listener.getsockname()[1]}", 5.0).strip() == error
        server.join()


def test_gpus_as_torch_describes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, total_memory=140 * GIB, uuid="GPU-a")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    said: dict[str, object] = {"version": "2.13.0+cu130", "cuda": "13.0", "driver_cuda": [13, 1]}
    torch_probe._cuda(said)
    read, driver_cuda = probe.torch_and_driver_cuda(json.loads(json.dumps(said)))
    assert (read.gpus[1].index, driver_cuda) == (1, (13, 1))
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


def test_who_asks_wandb_and_that_no_key_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(probe, "reach", lambda *about: asked.append(about) or "nobody")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example")
    assert (probe.wandb(ask=False).error, probe.wandb(ask=False).has_key) == (None, False)
    assert probe.wandb(ask=True).error == "nobody"
    assert asked == [("https://wandb.example", probe.WANDB_SECONDS)]
    (tmp_path / ".netrc").write_text("machine wandb.example login user password s3cret")
    (tmp_path / ".netrc").chmod(0o600)
    way = probe.wandb(ask=False)
    assert way.has_key
    assert "s3cret" not in repr(way)
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert probe.wandb(ask=True).error is None


@pytest.mark.parametrize(
    "address",
    [
        "https://user:s3cret@wandb.example:8443/api",
        "https://user:s3/cr@et@wandb.example:8443/api",
        "https://s3cret@wandb.example:8443/api?key=s3cret#s3cret",
        " https://user:s3cret@wandb.example:8443/api ",
        "https://wandb.example:8443/api",
    ],
)
def test_nobody_is_told_the_password_in_an_address(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(probe, "reach", lambda *about: asked.append(about[0]) or "nobody")
    monkeypatch.setenv("WANDB_BASE_URL", address)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert probe.wandb(ask=True).server == "https://wandb.example:8443/api"
    assert asked == ["https://wandb.example:8443/api"]  # with the rest urllib finds no port in it


@given(st.text(st.characters(codec="ascii", exclude_characters="s3cret"), max_size=12))
def test_no_password_stays_in_an_address(around: str) -> None:
    assert "s3cret" not in probe.without_user(f"https://user:{around}s3cret{around}@host")
    assert "s3cret" not in probe.without_user(f"user:{around}s3cret{around}@host")


@pytest.mark.parametrize("address", ["https://[broken", "no address", "://", "user:s3cret@host"])
def test_an_address_that_is_none_is_a_finding(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", address)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    way = probe.wandb(ask=True)
    assert way.error
    assert "s3cret" not in repr(way)


def test_a_library_that_prints_no_text_is_no_trouble() -> None:
    code = "import os, sys\nos.write(1, b'\\xff\\n')\nos.write(2, b'\\xff')\nprint('{\"version\": \"2.13.0\"}')"
    assert probe_with(code).version == "2.13.0"


def test_a_directory_that_does_not_exist_yet(tmp_path: Path) -> None:
    found = probe.folder(tmp_path / "a" / "b")
    assert found.writable
    assert found.free > 0
    (tmp_path / "file").write_text("")
    assert not probe.folder(tmp_path / "file" / "run").writable
