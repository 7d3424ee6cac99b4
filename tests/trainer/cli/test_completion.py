"""What the shell completes: commands, tasks, recipes and the keys of a command."""

import pytest

from tests.trainer.configurations import call


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("tinyzero warm", ["warmstart"]),
        ("tinyzero train --task countd", ["countdown"]),
        ("tinyzero check countd", ["countdown"]),
        ("tinyzero train --recipe dap", ["dapo"]),
        ("tinyzero train rollout.group", ["rollout.group_size="]),
        ("tinyzero sft data.batch", ["data.batch_size="]),
        ("tinyzero train data.batch", []),
    ],
)
def test_the_shell_completes(typed, completed, monkeypatch, capsys):
    monkeypatch.setenv("_TINYZERO_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    assert call(capsys)[1].split() == completed
