"""Training on a task whose scorer must not be trusted with a model's text: refused at once, or done with permission."""

from pathlib import Path

import pytest

from tests.sdk.conftest import task_source
from tests.trainer.configurations import call

UNSAFE = "@hookimpl\ndef info(): return TaskInfo(unsafe_scorer='it evaluates it')"
SMALL = (
    "run.steps=1 eval.num_problems=4 eval.num_problems_during=4 data.prompts_per_step=2 rollout.max_completion_tokens=8"
)


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    path = tmp_path / "say.py"
    path.write_text(task_source(extra=UNSAFE))
    return ["train", "--task", str(path), "--output", str(tmp_path / "run"), *SMALL.split()]


def test_it_is_refused_before_anything_is_written(words, tmp_path, capsys):
    code, _, error = call(capsys, *words)
    assert (code, error.count("\n")) == (2, 1)
    assert "--allow-unsafe-scorers" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("real_workers")
def test_with_permission_it_trains_and_the_run_keeps_the_permission(words, tmp_path, capsys):
    assert call(capsys, *words, "--allow-unsafe-scorers")[0] == 0
    assert "allow_unsafe = true" in (tmp_path / "run/config.toml").read_text()
    assert (tmp_path / "run/checkpoints/step_1").is_dir()
