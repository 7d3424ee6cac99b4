"""What the tests of configurations and of commands share."""

from typing import Any

import pytest

from tinyzero_sdk.cli import main
from tinyzero_sdk.settings import merge, unflatten
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.compose import gather, make_config


def changed(values: dict[str, Any], changes: dict[str, Any]) -> TrainConfig:
    """The configuration of `values`, with `group__name=value` changed."""
    for key, value in changes.items():
        values = merge(values, unflatten({key.replace("__", "."): value}))
    return make_config(values)


def typed(*words, file=None, **flags):
    """What a user typed: words, a file, and flags of the group `run`."""
    return gather(TrainConfig, {f"run.{name}": value for name, value in flags.items()}, words, file)


def call(capsys, *words):
    """The command line's exit code, stdout and stderr."""
    with pytest.raises(SystemExit) as left:
        main(words)
    captured = capsys.readouterr()
    return left.value.code or 0, captured.out, captured.err
