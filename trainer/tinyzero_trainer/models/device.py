"""The device of a run: a GPU that torch has kernels for, or the CPU."""

import os
import warnings

import torch

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.config.run import DEVICES, is_device
from tinyzero_trainer.errors import first_line
from tinyzero_trainer.hardware.compute_capability import missing_kernels


class DeviceError(TinyZeroError):
    """A device cannot be used."""


def choose_device(name: str) -> torch.device:
    """`auto` = a GPU where there is one; a DeviceError if torch does not see the device, or has no kernels for it."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not is_device(name):
        raise DeviceError(f"run.device={name!r} cannot be used; give {DEVICES}")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"torch\.cuda")  # about a GPU without kernels: an error below
            device = torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        count, hides = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
        visible = f"torch sees {count} GPUs" + ("" if hides is None else f" with CUDA_VISIBLE_DEVICES={hides!r}")
        raise DeviceError(
            f"run.device={name!r} cannot be used ({first_line(error)}); {visible}; give cpu or auto (tinyzero doctor "
            "says more)"
        ) from error
    if device.type == "cuda":
        _check_kernels(device)
        # cuDNN's planning takes 70 ms for each new length, which in generation is every step.
        torch.backends.cuda.enable_cudnn_sdp(False)
    return device


def _check_kernels(device: torch.device) -> None:
    """Fail before a model is loaded, with the message of `tinyzero doctor`; torch would fail at the first kernel."""
    capability, archs = torch.cuda.get_device_capability, torch.cuda.get_arch_list()
    missing = missing_kernels(
        torch.cuda.get_device_name(device),
        capability(device),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        archs=archs,
    )
    if missing is not None:
        raise DeviceError(str(missing))
