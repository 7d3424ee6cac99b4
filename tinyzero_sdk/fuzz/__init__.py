"""The fuzzer: a search for completions that a task's reward and its oracle judge differently.

`fuzz` is the call behind `tinyzero fuzz`; what it finds are `Finding`s, which become labelled cases.
"""

from tinyzero_sdk.fuzz.findings import Finding
from tinyzero_sdk.fuzz.runner import FuzzReport, fuzz

__all__ = ["Finding", "FuzzReport", "fuzz"]
