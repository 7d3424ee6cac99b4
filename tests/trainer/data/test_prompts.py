"""Prompts of a task whose data come divided: its own splits are taken, and a fraction for them is refused."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.trainer import toy_task
from tinyzero_sdk import Task, load_task
from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.cli.start import check
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.data.prompts import PromptSource


@pytest.fixture
def divided_task(tmp_path: Path) -> Task:
    path = tmp_path / "divided.py"
    own = "\n\n@hookimpl\ndef has_own_splits() -> bool:\n    return True\n"
    path.write_text(Path(toy_task.__file__).read_text() + own)
    return load_task(str(path))


def test_the_tasks_own_splits_are_taken_whatever_the_fraction(divided_task: Task) -> None:
    tokenizer = SimpleNamespace(chat_template=None)
    chosen, default = (PromptSource(divided_task, tokenizer, **words) for words in ({"test_fraction": 0.4}, {}))
    assert list(chosen.items(0, 3)) == list(default.items(0, 3))


def test_a_fraction_is_refused_where_it_is_typed_and_not_where_a_model_recorded_it(divided_task: Task) -> None:
    config = make_config({"tasks": {"divided": {"task": divided_task.source}}, "data": {"test_fraction": 0.4}})
    assert list(check(config, {}, resume=False)) == ["divided"]
    with pytest.raises(SettingsError, match=r"a test fraction \(0\.4\) has no effect on 'divided'"):
        check(config, {"data": {"test_fraction": 0.4}}, resume=False)
