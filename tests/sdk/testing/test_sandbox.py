"""The parent's side of the child that scores."""

import pytest

from tinyzero_sdk import load_task
from tinyzero_sdk.records import Item
from tinyzero_sdk.testing.sandbox import Sandbox


@pytest.mark.slow
@pytest.mark.parametrize("what", ["os._exit(1)", "time.sleep(60)", "raise ValueError(1)"])
def test_a_solve_that_does_not_come_back_costs_its_process_only(write_task, what):
    solve = "import os, time\n\n@hookimpl\ndef solve(item):\n"
    solve += f"    if item.ground_truth == 0:\n        {what}\n    return f'<answer>{{item.ground_truth}}</answer>'\n"
    with Sandbox(load_task(write_task(extra=solve)), hash_seed=1) as child:
        child.patience = 0.3
        assert child.solve(Item(0, {"number": 0})) is None
        assert child.solve(Item(7, {"number": 7})).answer == "7"
        assert child.kills == (0 if "raise" in what else 1)
