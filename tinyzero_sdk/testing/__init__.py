"""The conformance kit: properties that every reward must have, and the search for counterexamples.

`check_task(load_task("countdown"))` checks a task; `strategies` has hypothesis strategies for completions, for tests of
your own; docs/tasks/conformance.md lists the checks. The open-ended search for holes is in `fuzz`.
"""

from tinyzero_sdk.testing.checker import Checker, check_task, known_cases, local_cases_path
from tinyzero_sdk.testing.gold import Gold, TestCompletion, find_gold, golds
from tinyzero_sdk.testing.properties import PROPERTIES, find_properties
from tinyzero_sdk.testing.property import Failure, Property
from tinyzero_sdk.testing.report import Report, Result

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
]
