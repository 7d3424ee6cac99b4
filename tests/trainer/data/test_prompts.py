"""Prompts of a task whose data come divided: its own splits are taken, and a share for them is refused."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.trainer import toy_task
from tinyzero_sdk import Task, load_task
from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.data.prompts import PromptSource


@pytest.fixture
def divided_task(tmp_path: Path) -> Task:
    path = tmp_path / "divided.py"
    own = "\n\n@hookimpl\ndef has_own_splits() -> bool:\n    return True\n"
    path.write_text(Path(toy_task.__file__).read_text() + own)
    return load_task(str(path))


def test_a_test_share_without_effect_is_refused_before_anything_is_asked(divided_task: Task) -> None:
    tokenizer = SimpleNamespace(chat_template=None)
    source = PromptSource(divided_task, tokenizer, test_fraction=0.4)
    for ask in (lambda: source.held_out(3), lambda: next(source.items(0, 3)), lambda: next(source.stream(seed=0))):
        with pytest.raises(SettingsError, match=r"a test fraction \(0\.4\) has no effect on 'divided'"):
            ask()
