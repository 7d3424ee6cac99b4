"""The conformance kit: properties that every reward must have, and the search for counterexamples.

`check_task(load_task("countdown"))` checks a task; `strategies` has hypothesis strategies for completions, for tests of
your own; docs/tasks/conformance.md lists the checks. The open-ended search for holes is in `fuzz`. All but `Gold`
needs hypothesis: `pip install 'tinyzero-sdk[testing]'`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tinyzero_sdk.testing.gold import Gold, TestCompletion, find_gold, golds

if TYPE_CHECKING:
    from tinyzero_sdk.testing import strategies
    from tinyzero_sdk.testing.checker import Checker, check_task, known_cases, local_cases_path
    from tinyzero_sdk.testing.properties import PROPERTIES, find_properties
    from tinyzero_sdk.testing.property import Failure, Property
    from tinyzero_sdk.testing.report import Report, Result

_HOMES = {
    "checker": ("Checker", "check_task", "known_cases", "local_cases_path"),
    "property": ("Failure", "Property"),
    "properties": ("PROPERTIES", "find_properties"),
    "report": ("Report", "Result"),
}

__all__ = [
    "PROPERTIES",
    "Checker",
    "Failure",
    "Gold",
    "Property",
    "Report",
    "Result",
    "TestCompletion",
    "check_task",
    "find_gold",
    "find_properties",
    "golds",
    "known_cases",
    "local_cases_path",
    "strategies",
]


def __getattr__(name: str) -> Any:
    """Import late what needs hypothesis, which takes 0.2 s and may be missing."""
    if name == "strategies":
        return import_module("tinyzero_sdk.testing.strategies")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"tinyzero_sdk.testing.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
