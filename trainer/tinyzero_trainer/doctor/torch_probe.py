"""What torch sees: run as a script in a child process of probe.py, where an import may crash or hang.

It adds to a mapping stage by stage and prints it as a line of JSON before each, so the last line that was printed holds
whatever is known.
"""

import json
import os
import re
import warnings
from typing import Any


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


STAGES = {"torch": look_at_torch, "cuda": look_at_gpus, "transformers": look_at_transformers}


def main() -> None:
    """Run the stages, each of which adds what it sees to a mapping, and exit; all others need the first to succeed."""
    warnings.simplefilter("ignore")
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print goes to stderr
    seen: dict[str, Any] = {}
    for name, look in STAGES.items():
        print(json.dumps(seen | {"stage": name}), file=output, flush=True)
        try:
            look(seen)
        except Exception as error:  # libraries may be broken in any way
            seen[f"{name}_error"] = root_cause(error)
            if name == "torch":
                break
    print(json.dumps(seen), file=output, flush=True)
    os._exit(0)  # a broken library may crash on its way out too


if __name__ == "__main__":
    main()
