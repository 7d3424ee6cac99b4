"""The parent's side of the child that scores."""

import pytest

from tinyzero_sdk import load_task
from tinyzero_sdk.errors import BrokenTaskError
from tinyzero_sdk.records import Item
from tinyzero_sdk.testing.gold import TestCompletion
from tinyzero_sdk.testing.sandbox import Sandbox
from tinyzero_sdk.workers import supervisor


class Ended:
    """A child that has ended, and whose last words come just after somebody waited for them."""

    def __init__(self, *arguments):
        self.connection = self.timer = self
        self._looks = 0

    seconds = 0.0

    def has_ended(self):
        return True

    def poll(self, patience=0.0):
        self._looks += 1
        return self._looks > 1

    def recv(self):
        return BrokenTaskError("the task says why")

    def close(self):
        pass


def test_the_last_words_of_a_child_are_heard(write_task, monkeypatch):
    monkeypatch.setattr(supervisor, "WorkerProcess", Ended)
    with (
        Sandbox(load_task(write_task()), hash_seed=1) as child,
        pytest.raises(BrokenTaskError, match="the task says why"),
    ):
        child.observe([TestCompletion("text", 1)])


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
