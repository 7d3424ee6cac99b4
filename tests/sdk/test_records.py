"""The records: frozen, comparable, picklable, with the defaults that tasks rely on."""

import dataclasses
import pickle
from typing import get_args

import pytest

from tinyzero_sdk import Completion, Item, Score, TaskInfo
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.records import REASONS, Reason

RECORDS = [
    Item({"a": [1]}, {"b": 2}),
    Completion("text", 3, False),
    Score(1.0, True, parts={"x": 1.0}),
    TaskInfo("one line"),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_record_is_frozen_and_pickles(record):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, dataclasses.fields(record)[0].name, None)
    assert pickle.loads(pickle.dumps(record)) == record


def test_defaults_are_known_and_not_shared():
    Score(1.0, True).parts["length"] = -1.0
    assert (Score(1.0, True).parts, Item(1).data) == ({}, {})
    score = Score(1.0, True)
    assert (score.reason, score.answer, score.masked) == ("ok", None, False)
    assert Completion("x") == Completion("x", token_count=None, finished=True)
    assert get_args(Reason) == REASONS


def test_every_error_has_an_exit_code_of_the_command_line():
    assert {error.exit_code for error in (TinyZeroError, *TinyZeroError.__subclasses__())} <= {1, 2}
