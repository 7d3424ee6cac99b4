"""The device of a run: a GPU that torch has kernels for, or the CPU."""

import os
import warnings

import torch

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.config.run import DEVICES, is_device
from tinyzero_trainer.hardware.compute_capability import has_kernels, missing_kernels, named_outside


class DeviceError(TinyZeroError):
    """A device cannot be used."""


def choose_device(name: str) -> torch.device:
    """`auto` = a GPU where there is one.

    Raises:
        DeviceError: torch does not know or see the device, or has no kernels for the GPU.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not is_device(name):
        raise DeviceError(f"run.device={name!r} cannot be used; give {DEVICES}")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"torch\.cuda")  # about a GPU without kernels: an error below
            device = torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason, advice = str(error).partition("\n")[0], f"{_device_advice(name)} (tinyzero doctor says more)"
        raise DeviceError(f"run.device={name!r} cannot be used ({reason}); {advice}") from error
    if device.type == "cuda":
        _check_kernels(device)
        # cuDNN's planning takes 70 ms for each new length, which in generation is every step.
        torch.backends.cuda.enable_cudnn_sdp(False)
    return device


def _device_advice(name: str) -> str:
    count, visible = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    index = name.removeprefix("cuda").removeprefix(":")
    if count and index and int(index) >= count:
        return f"torch sees cuda:0{f' to cuda:{count - 1}' if count > 1 else ' only'}; give one it sees, or cuda"
    if not count and visible is not None and torch.version.cuda is not None:
        return f"CUDA_VISIBLE_DEVICES={visible!r} may hide the GPUs: unset CUDA_VISIBLE_DEVICES, or give cpu or auto"
    return "give cpu or auto"


def _check_kernels(device: torch.device) -> None:
    """Fail before a model is loaded, with the message of `tinyzero doctor`; torch would fail at the first kernel."""
    capability, archs = torch.cuda.get_device_capability, torch.cuda.get_arch_list()
    fine = [index for index in range(torch.cuda.device_count()) if has_kernels(capability(index), archs)]
    missing = missing_kernels(
        torch.cuda.get_device_name(device),
        capability(device),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        archs=archs,
        others=[named_outside(index, os.environ.get("CUDA_VISIBLE_DEVICES")) for index in fine],
    )
    if missing is not None:
        raise DeviceError(str(missing))
