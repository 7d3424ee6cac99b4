"""No function is longer than 80 lines; the longest are usually the command line and the loop."""

from pathlib import Path
from types import ModuleType

import pytest

import tinyzero_sdk
import tinyzero_trainer
from benchmarks.house import function_lengths

LIMIT = 80


@pytest.mark.slow
@pytest.mark.parametrize("package", [tinyzero_sdk, tinyzero_trainer])
def test_the_longest_function_stays_within_eighty_lines(package: ModuleType) -> None:
    folder = Path(str(package.__file__)).parent
    files = {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in folder.rglob("*.py")}
    longest = {file: max(function_lengths(text), default=0) for file, text in files.items()}
    assert len(longest) > 100
    assert {file: lines for file, lines in longest.items() if lines > LIMIT} == {}
