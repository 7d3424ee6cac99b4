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
from transformers import AutoModelForCausalLM

from tests.trainer.machines import GIB, H200
from tinyzero_trainer.doctor import probe, torch_probe
from tinyzero_trainer.doctor.facts import (
    Model,
    Process,
    Torch,
)


def probe_with(code: str, timeout: float = 30.0) -> Torch:
    return probe.torch_and_driver_cuda(probe.torch_probe((sys.executable, "-c", code), timeout))[0]


def test_an_import_that_kills_its_process_is_told_apart() -> None:
    crash = 'import os\nprint(\'{"stage": "transformers", "version": "2.13.0"}\', flush=True)\nos.abort()'
    assert probe_with(crash) == Torch("2.13.0", transformers_error="its process ended with code -6")
    assert probe_with("import os; os.abort()").error == "its process ended with code -6"


def test_a_driver_that_hangs_is_told_apart() -> None:
    hang = 'import time\nprint(\'{"stage": "cuda", "version": "2.13.0"}\', flush=True)\ntime.sleep(60)'
    assert probe_with(hang, timeout=1.0).cuda_error == "it takes longer than 1 s"


SMI = """#!/bin/sh
case "$1" in
*query-gpu*)
    echo "0, GPU-a, NVIDIA H200, 9.0, 143771, 20000, 580.82.07"
    echo "1, GPU-b, Odd, [N/A], 100, [N/A], 580.82.07";;
*) echo "GPU-a, 4711, 123000, /usr/bin/python3";;
esac
"""


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    (folder / "nvidia-smi").write_text(script)
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_what_nvidia_smi_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, SMI)
    driver = probe.nvidia_driver((13, 0))
    first, second = driver.cards
    assert (driver.version, driver.cuda, driver.error) == ("580.82.07", (13, 0), "")
    assert (first.capability, first.free, first.uuid) == ((9, 0), 20000 * 2**20, "a")
    assert first.processes == (Process(4711, "python3", 123000 * 2**20),)
    assert (second.capability, second.free, second.memory) == (None, None, 100 * 2**20)
    used = probe.with_use(Torch("2.13.0", cards=(dataclasses.replace(H200, free=None),)), driver)
    assert (used.cards[0].free, used.cards[0].processes) == (first.free, first.processes)


def test_an_nvidia_smi_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, "#!/bin/sh\necho Failed to initialize NVML\nexit 18\n")
    assert probe.nvidia_driver(None).error == "nvidia-smi: Failed to initialize NVML"


def test_a_server_that_does_not_answer_costs_no_more_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe.reach("no address", 0.2).startswith("unknown url type")
    release = threading.Event()

    def resolve_for_ever(*_: object, **__: object) -> None:
        release.wait(20)
        raise OSError("nobody knows the name")

    monkeypatch.setattr(probe.urllib.request, "urlopen", resolve_for_ever)
    started = time.monotonic()
    assert probe.reach("https://wandb.example", 0.1) == "no answer within 0.1 s"
    assert time.monotonic() - started < 10
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


def test_a_models_size_is_read_from_its_headers(toy_model_path: Path, tmp_path: Path) -> None:
    held = sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(toy_model_path).parameters())
    assert probe.find_model("m", toy_model_path, tmp_path) == Model("m", True, held)
    snapshot = tmp_path / "models--org--name" / "snapshots" / "abc"
    snapshot.parent.mkdir(parents=True)
    toy_model_path.rename(snapshot)
    assert probe.find_model("m", Path("org/name"), tmp_path) == Model("m", False, held)
    (snapshot / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0[1, 2]  ")
    assert probe.find_model("m", Path("org/name"), tmp_path).parameters is None


def test_cards_as_torch_describes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, total_memory=140 * GIB, uuid="GPU-a")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    said: dict[str, object] = {"version": "2.13.0+cu130", "cuda": "13.0", "driver_cuda": [13, 1]}
    torch_probe._cuda(said)
    read, driver_cuda = probe.torch_and_driver_cuda(json.loads(json.dumps(said)))
    assert (read.cards[1].index, driver_cuda) == (1, (13, 1))
    assert read.cards[0] == dataclasses.replace(H200, free=None)


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
    monkeypatch.setattr(probe, "_read", lambda path: files.get(path, ""))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert probe.main_memory() == (2**29, 2**28)
    assert probe.cores() == 1
    files["/sys/fs/cgroup/memory.max"] = files["/sys/fs/cgroup/cpu.max"] = "max"
    assert probe.main_memory()[1] == GIB
    assert probe.cores() == 8


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


def test_where_the_hub_keeps_models(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert probe.hub_cache() == Path("~/.cache/huggingface/hub")
    monkeypatch.setenv("HF_HOME", "/data/hf")
    assert probe.hub_cache() == Path("/data/hf/hub")
    monkeypatch.setenv("HF_HUB_CACHE", "/data/models")
    assert probe.hub_cache() == Path("/data/models")


def test_a_directory_that_does_not_exist_yet(tmp_path: Path) -> None:
    found = probe.folder(tmp_path / "a" / "b")
    assert found.writable
    assert found.free > 0
    (tmp_path / "file").write_text("")
    assert not probe.folder(tmp_path / "file" / "run").writable
