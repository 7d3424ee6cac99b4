"""A configuration as options, on a fake one; `test_tasks.py` has those of reasoning-gym."""

import dataclasses
import datetime
import typing

import pytest

from tinyzero_reasoning_gym.config import make_config, options_type
from tinyzero_sdk.errors import SettingsError, TaskNotFoundError
from tinyzero_sdk.settings import build, describe


@dataclasses.dataclass
class Config:
    """What reasoning-gym's look like."""

    least: int = 1  # The least
    most: int = 9
    share: float = 0.5
    word: typing.Optional[str] = None  # noqa: UP045
    style: typing.Literal["plain", "bold"] = "plain"
    operators: tuple = ("+", "-")  # Allowed
    names: list[str] = dataclasses.field(default_factory=lambda: ["a", "b"])
    day: datetime.date = datetime.date(2000, 1, 1)
    ranges: list[tuple[int, int]] = dataclasses.field(default_factory=lambda: [(1, 2)])
    seed: typing.Optional[int] = None  # noqa: UP045
    size: int = 500

    def validate(self):
        assert self.most >= self.least, "most must be >= least"


def test_fields_that_a_command_line_can_set_are_options():
    fields = {field.key: field for field in describe(options_type(Config), prefix="task.")}
    assert {key: field.type for key, field in fields.items()} == {
        "task.reward": "partial | binary",
        "task.least": "int",
        "task.most": "int",
        "task.share": "float",
        "task.word": "str | none",
        "task.style": "plain | bold",
        "task.operators": "list of str",
        "task.names": "list of str",
    }
    assert fields["task.least"].help == "The least"
    assert fields["task.most"].help == ""


def test_what_is_set_arrives_in_the_configuration():
    options = build(options_type(Config), {"least": 3, "operators": ["*"], "names": ["c"]}, prefix="task.")
    assert hash(options) == hash(options)
    config = make_config(Config, options, seed=4, size=5)
    assert config == Config(least=3, operators=("*",), names=["c"], seed=4, size=5)


def test_what_the_configuration_refuses_is_a_settings_error():
    with pytest.raises(SettingsError, match="task: most must be >= least"):
        build(options_type(Config), {"least": 10}, prefix="task.")


def test_what_is_refused_can_be_allowed():
    options = options_type(Config, "it pays for nothing")
    with pytest.raises(TaskNotFoundError, match="it pays for nothing"):
        build(options, {}, prefix="task.")
    assert make_config(Config, build(options, {"allow_unsound": True}, prefix="task."), seed=4) == Config(seed=4)
