"""No function of the trainer is longer than 80 lines; the longest are usually the command line and the loop."""

from pathlib import Path

import pytest

import tinyzero_trainer
from benchmarks.house import function_lengths

LIMIT = 80
FOLDER = Path(tinyzero_trainer.__file__).parent


@pytest.mark.slow
def test_the_longest_function_of_the_trainer_stays_under_eighty_lines() -> None:
    files = {str(path.relative_to(FOLDER)): path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.py")}
    longest = {file: max(function_lengths(text), default=0) for file, text in files.items()}
    assert len(longest) > 100
    assert {file: lines for file, lines in longest.items() if lines >= LIMIT} == {}
