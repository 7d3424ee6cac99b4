"""What torch sees: run as a script in a child process of probe.py, where an import may crash or hang."""

import re
import warnings
from typing import Any

from tinyzero_trainer.doctor.child import run_stages


def look_at_torch(seen: dict[str, Any]) -> None:
    import torch

    seen |= {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip is not None,
        "archs": torch.cuda.get_arch_list(),
    }


def look_at_gpus(seen: dict[str, Any]) -> None:
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return
    torch.cuda.init()  # raises the reason of a failure, which is_available() does not
    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    seen["gpus"] = [
        {
            "index": index,
            "name": gpu.name,
            "capability": [gpu.major, gpu.minor],
            "memory": gpu.total_memory,
            "uuid": str(getattr(gpu, "uuid", "")).removeprefix("GPU-"),
        }
        for index, gpu in enumerate(gpus)
    ]


def look_at_transformers(seen: dict[str, Any]) -> None:
    """Whether its models can be imported; they are lazy, and import torchvision wherever it is installed."""
    import transformers

    _ = transformers.AutoModelForCausalLM, transformers.PreTrainedModel


def root_cause(error: BaseException) -> str:
    """The first line of the exception at the end of the chain: transformers says only that an import failed."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return re.sub(r"\s+", " ", text) or type(error).__name__


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    run_stages({"torch": look_at_torch, "cuda": look_at_gpus, "transformers": look_at_transformers}, root_cause)
