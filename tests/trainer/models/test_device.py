"""The device of a run, and why one is refused."""

from types import SimpleNamespace

import pytest
import torch

from tests.trainer.doctor.machines import CU124, CU130, GTX_1080, H200, RTX_5090, facts_of
from tinyzero_sdk.cli import main
from tinyzero_trainer.doctor.checks import examine
from tinyzero_trainer.doctor.facts import Requirements
from tinyzero_trainer.hardware.gpu import GpuInfo
from tinyzero_trainer.models.device import DeviceError, choose_device


def fake_cuda(patch: pytest.MonkeyPatch, gpu: GpuInfo, archs: tuple[str, ...], cuda: str | None) -> None:
    """A machine with one GPU."""
    replaced = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "get_device_capability": lambda _: gpu.capability,
        "get_device_name": lambda _: gpu.name,
        "get_arch_list": lambda: list(archs),
    }
    for name, function in replaced.items():
        patch.setattr(torch.cuda, name, function)
    patch.setattr(torch, "empty", lambda size, device: SimpleNamespace(device=torch.device(device, 0)))
    patch.setattr(torch.version, "cuda", cuda)
    patch.setattr(torch, "__version__", "2.13.0+cu130")
    patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_gpu_without_kernels_is_refused_in_the_doctors_words(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda(monkeypatch, GTX_1080, CU130, "13.0")
    with pytest.raises(DeviceError) as refused:
        choose_device(device)
    [finding] = [finding for finding in examine(facts_of(GTX_1080), Requirements()) if finding.check == "gpu 0"]
    assert str(refused.value) == f"{finding.what}; {finding.do}: {finding.commands[0]}"


@pytest.mark.parametrize(("archs", "cuda"), [(CU124, "12.4"), ((), "13.0"), (("gfx942",), None)])
def test_a_gpu_with_kernels_is_taken_and_one_that_cannot_be_judged(archs, cuda, monkeypatch):
    fake_cuda(monkeypatch, GTX_1080, archs, cuda)
    assert choose_device("auto") == torch.device("cuda", 0)
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_the_refusal_comes_before_a_model_is_loaded(toy_task, tmp_path, monkeypatch, capsys):
    fake_cuda(monkeypatch, RTX_5090, CU124, "12.4")
    monkeypatch.setattr("tinyzero_trainer.training.build.load_model", lambda *_: pytest.fail("a model is loaded"))
    with pytest.raises(SystemExit) as ended:
        main(["train", "--task", toy_task, "--output", str(tmp_path / "run")])
    error = capsys.readouterr().err
    assert (ended.value.code, "sm_120" in error, "whl/cu129" in error) == (2, True, True)


@pytest.mark.parametrize(("name", "visible"), [("cuda:7", None), ("cuda", "1")])
def test_why_a_device_cannot_be_used(name: str, visible: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda(monkeypatch, H200, CU130, "13.0")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: invalid device ordinal\n" + "a line of advice\n" * 20)

    monkeypatch.setattr(torch, "empty", fail)
    with pytest.raises(DeviceError) as refused:
        choose_device(name)
    hidden = "" if visible is None else f" with CUDA_VISIBLE_DEVICES={visible!r}"
    assert str(refused.value) == (
        f"run.device={name!r} cannot be used (CUDA error: invalid device ordinal); torch sees 1 GPUs{hidden}; give cpu "
        "or auto (tinyzero doctor says more)"
    )


@pytest.mark.parametrize("name", ["mps", "gpu", "meta", "", "cuda:x"])
def test_an_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(DeviceError) as refused:
        choose_device(name)
    assert str(refused.value) == f"run.device={name!r} cannot be used; give auto, cpu, cuda or cuda:N"
