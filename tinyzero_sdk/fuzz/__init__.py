"""The fuzzer: a search, for as long as it has time, for completions on which a task's reward and its oracle disagree.

`fuzz` is the call behind `tinyzero fuzz`; its `Finding`s become labelled cases. The named checks are in `testing`.
"""

from tinyzero_sdk.fuzz.findings import Finding
from tinyzero_sdk.fuzz.runner import FuzzReport, fuzz

__all__ = ["Finding", "FuzzReport", "fuzz"]
