"""What torch sees, for `probe.py`: run as a script in a process of its own, where an import may crash or hang.

Each stage adds to a mapping and prints it as a line of JSON; the last line that came out is what is known.
"""

import json
import os
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any


def main() -> None:
    """Look, and tell."""
    # Whatever the libraries print goes to stderr.
    back = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    seen: dict[str, Any] = {}
    warnings.simplefilter("ignore")
    for stage, look in STAGES.items():
        seen["stage"] = stage
        print(json.dumps(seen), file=back, flush=True)
        try:
            look(seen)
        except Exception as error:  # the border to libraries that may be broken in any way
            seen[f"{stage}_error"] = _one_line(error)
            if stage == "torch":
                break
    del seen["stage"]
    print(json.dumps(seen), file=back, flush=True)


def _torch(seen: dict[str, Any]) -> None:
    import torch

    seen |= {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip is not None,
        "archs": torch.cuda.get_arch_list(),
    }


def _cuda(seen: dict[str, Any]) -> None:
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return
    torch.cuda.init()  # says why it fails, which is_available() does not
    seen["gpus"] = [_gpu(torch.cuda.get_device_properties(index), index) for index in range(torch.cuda.device_count())]


def _gpu(properties: Any, index: int) -> dict[str, Any]:
    return {
        "index": index,
        "name": properties.name,
        "capability": [properties.major, properties.minor],
        "memory": properties.total_memory,
        "uuid": str(getattr(properties, "uuid", "")).removeprefix("GPU-"),
    }


def _transformers(seen: dict[str, Any]) -> None:
    import transformers

    # Imported only when asked for, and with them what they import wherever it is installed, such as torchvision.
    for name in ("AutoModelForCausalLM", "PreTrainedModel"):
        getattr(transformers, name)


def _nccl(seen: dict[str, Any]) -> None:
    import torch

    if torch.version.cuda is not None and torch.distributed.is_nccl_available():
        seen["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))


STAGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "torch": _torch,
    "cuda": _cuda,
    "transformers": _transformers,
    "nccl": _nccl,
}


def _one_line(error: BaseException) -> str:
    while error.__cause__ is not None:  # transformers says only that an import failed
        error = error.__cause__
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return re.sub(r"\s+", " ", text) or type(error).__name__


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # a broken library may crash on its way out too
