"""Settings that make no sense are refused, with a line that says what would."""

import pytest

from tinyzero_sdk import load_task
from tinyzero_sdk.errors import SettingsError


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"numbers": []}, "expected counts from 2 to 5"),
        ({"numbers": [1, 3]}, "expected counts from 2 to 5"),
        ({"numbers": [6]}, "expected counts from 2 to 5"),
        ({"numbers": [3, 3, 4]}, "none twice"),
        ({"number_range": [0, 9]}, "number_range: got"),
        ({"number_range": [9, 3]}, "the lesser first"),
        ({"target_range": [0, 9]}, "target_range: got"),
        ({"target_range": [1, 1_000_000]}, "from 1 to 100000"),
        ({"difficulty_range": [5, 4]}, "difficulty_range: got"),
        ({"operators": ""}, "expected some of"),
        ({"operators": "+%"}, "expected some of"),
        ({"operators": "++"}, "none twice"),
        ({"operators": "+", "number_range": [50, 99]}, "expected some of 150 to 297"),
        ({"operators": "*", "number_range": [5, 9], "numbers": [3]}, "expected some of 125 to 729"),
        ({"operators": "+-", "number_range": [1, 3], "numbers": [3]}, "expected some of 0 to 9,"),
        ({"numbers": [5], "number_range": [1, 999]}, "too large to count"),
        ({"reward": "generous"}, "task.reward|reward"),
        ({"number": [3]}, "numbers"),
    ],
)
def test_impossible_settings(values, message):
    with pytest.raises(SettingsError, match=message):
        load_task("countdown", options=values)
