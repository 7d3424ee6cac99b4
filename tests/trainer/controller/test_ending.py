"""Every way in which a run ends: what is saved, what is said, and with which exit code."""

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.checkpoint.run_directory import RunDirectory
from tinyzero_trainer.checkpoint.store import CheckpointError
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.run import RunConfig
from tinyzero_trainer.controller.ending import ending
from tinyzero_trainer.errors import EngineDiedError, NoCapacityError, VllmError, WorkerDiedError
from tinyzero_trainer.utils.oom import OutOfMemoryError
from tinyzero_trainer.utils.signals import Interrupted, StopFlag, Stopped, StopRequested

ERRORS: list[tuple[Exception, bool]] = [
    (TinyZeroError("it failed"), True),
    (EngineDiedError("it", "failed"), True),
    (WorkerDiedError("it", "failed", policy_intact=True), True),
    (WorkerDiedError("it", "failed", policy_intact=False), False),
    (NoCapacityError("it", "failed", policy_intact=True), True),
    (OutOfMemoryError("it failed"), False),
]
"""Errors, each with whether it leaves the policy intact."""


class Run(SimpleNamespace):
    """A session as far as its ending looks at it: step 7 is done, of which no checkpoint is saved yet."""

    def __init__(self, directory: Path) -> None:
        run = RunDirectory(directory)
        run.checkpoints.mkdir(parents=True)
        (run.checkpoints / "step_5").mkdir()
        super().__init__(
            run=run,
            saved_config=TrainConfig(run=RunConfig(output=str(directory))),
            stop=StopFlag(),
            state=SimpleNamespace(step=7),
            workers=SimpleNamespace(check=lambda: None, display=SimpleNamespace(warn=self.warn)),
            attempts=0,
            warned=[],
            fails=None,
        )

    def warn(self, line: str) -> None:
        self.warned.append(line)

    def save(self, step: Any) -> None:
        self.attempts += 1
        if self.fails:
            raise self.fails
        (self.run.checkpoints / f"step_{self.state.step}").mkdir()

    @property
    def resume(self) -> str:
        return f"resume with: tinyzero train --output '{self.run.path}' --resume"

    @property
    def saved(self) -> int:
        return max(int(path.name.removeprefix("step_")) for path in self.run.checkpoints.iterdir())

    def end(self, error: BaseException | None = None, *, intact: bool = True) -> None:
        step: Any = SimpleNamespace(policy_intact=intact)
        with ending(self, step):  # type: ignore[arg-type]
            if error is not None:
                raise error


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "a run")


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("error", "intact"), ERRORS)
def test_an_error_saves_what_is_whole_says_how_to_resume_and_leaves_a_signal_its_exit_code(
    error: TinyZeroError, intact: bool, whole: bool, stopped: bool, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(error, "args", error.args)  # each case begins with the same error
    run.stop.signal = signal.SIGTERM if stopped else None
    before = str(error)
    with pytest.raises(TinyZeroError) as ended:
        run.end(error, intact=whole)
    step = 7 if intact and whole else 5
    assert run.saved == step
    if isinstance(error, OutOfMemoryError):  # the command adds with which settings
        assert (ended.value, str(error)) == (error, before)
        return
    said = f"{before}; step {step} is saved; {run.resume}"
    if stopped:
        assert isinstance(ended.value, Stopped)
        assert (str(ended.value), ended.value.exit_code) == (f"stopped by SIGTERM with an error: {said}", 143)
    else:
        assert ended.value is error
        assert str(error) == said


@pytest.mark.parametrize("error", [VllmError("it failed"), WorkerDiedError("it", "failed", policy_intact=True)])
def test_an_error_before_the_first_step_saves_nothing(error: TinyZeroError, run: Run) -> None:
    run.state.step = 0
    (run.run.checkpoints / "step_5").rmdir()
    with pytest.raises(type(error), match=r"^it failed; nothing has been saved yet: start again$"):
        run.end(error)
    assert not run.attempts


@pytest.mark.parametrize("whole", [True, False])
def test_an_unexpected_error_saves_what_is_whole_and_says_how_to_resume(whole: bool, run: Run) -> None:
    with pytest.raises(KeyError, match=r"^'oops'$"):
        run.end(KeyError("oops"), intact=whole)
    assert run.warned == [f"an error ends the run; step {7 if whole else 5} is saved; {run.resume}"]


@pytest.mark.parametrize("error", [KeyError("oops"), VllmError("oops")])
@pytest.mark.parametrize("fails", [CheckpointError("no room"), ValueError("no room")])
def test_a_save_that_fails_does_not_hide_why_the_run_ended(error: Exception, fails: Exception, run: Run) -> None:
    run.fails = fails
    with pytest.raises(type(error), match="oops"):
        run.end(error)
    assert run.warned[0] == "while the run was saved: no room"


@pytest.mark.parametrize("step", [0, 7])
def test_a_signal_saves_the_last_whole_step_whichever_it_is(step: int, run: Run) -> None:
    run.stop.signal, run.state.step = signal.SIGUSR1, step
    with pytest.raises(Interrupted) as ended:
        run.end(StopRequested())
    assert str(ended.value) == f"stopped by SIGUSR1 after step {step}, which is saved; {run.resume}"
    assert ended.value.exit_code == 128 + signal.SIGUSR1
    assert run.attempts == 1
