"""The oracle as a scorer: a fraction where it judges two readings of a completion differently."""

import pytest

from tinyzero_sdk import Score, load_task
from tinyzero_sdk.records import ScoreColumns
from tinyzero_sdk.scoring.oracle import OracleScorer

ORACLE = """
@hookimpl
def oracle(answer, ground_truth):
    return None if answer == "?" else answer == str(ground_truth)
"""


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<answer>3</answer>", Score(1.0, True)),
        ("<answer>4</answer>", Score(0.0, False, "wrong")),
        ("<answer>3</answer> #### 4", Score(0.5, False, "wrong")),
        ("<answer>?</answer> #### 3", Score(1.0, True)),
        ("<answer>?</answer>", Score(0.0, False, "no_answer")),
        ("nothing", Score(0.0, False, "wrong")),
    ],
)
def test_the_value_is_the_fraction_of_the_readings_that_are_right(write_task, completion, expected):
    columns = ScoreColumns()
    OracleScorer(load_task(write_task(oracle=ORACLE))).score_into(columns, completion, 3)
    assert list(columns) == [expected]
