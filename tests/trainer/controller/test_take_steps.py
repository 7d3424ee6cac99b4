"""The order of the loop, and which steps it saves, with fakes of all that it calls."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.checkpoint.run_directory import RunDirectory
from tinyzero_trainer.checkpoint.store import CheckpointError
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.run import CheckpointConfig
from tinyzero_trainer.controller import loop
from tinyzero_trainer.controller.loop import take_steps
from tinyzero_trainer.controller.session import Session
from tinyzero_trainer.controller.state import TrainerState
from tinyzero_trainer.utils.signals import Interrupted, StopFlag


class Events(list[str]):
    """What a run of five steps does, in order; `fails` are the steps whose checkpoint cannot be written."""

    def __init__(self, directory: Path, *, every: int = 2, fails: tuple[int, ...] = (), step: int = 0) -> None:
        super().__init__()
        self.fails = fails
        run = RunDirectory(directory)
        run.checkpoints.mkdir(parents=True)
        run.config.touch()
        self.session = Session(
            config=TrainConfig(),
            saved_config=TrainConfig(checkpoint=CheckpointConfig(every=every)),
            run=run,
            workers=MagicMock(),
            eval_tasks={},
            state=TrainerState(step, None if step else {}),
            saved=None,
            stop=StopFlag(),
            checkpointer=MagicMock(save=self.save, timing=dict),
            log=MagicMock(append=lambda step, metrics: self.append(f"line {step}")),
            completions=MagicMock(),
            trackers=MagicMock(),
        )
        self.step = SimpleNamespace(last=5, policy_intact=True, failure=None, take=self.take, save=None)
        self.evaluation = SimpleNamespace(
            is_due=lambda step, last: step in (0, 4, last), run=self.evaluate, rollouts=[]
        )

    def take(self, step: int) -> tuple[list[Any], dict[str, float]]:
        self.append(f"step {step}")
        return [], {"timing_s/step": 1.0}

    def evaluate(self, step: int, last: int) -> dict[str, float]:
        self.append(f"evaluation {step}")
        return {}

    def save(self, state: TrainerState, ahead: Any) -> None:
        if state.step in self.fails:
            raise CheckpointError("it cannot be saved")
        if f"checkpoint {state.step}" not in self:
            self.append(f"checkpoint {state.step}")

    def run(self) -> "Events":
        take_steps(self.session, self.step, self.evaluation)  # type: ignore[arg-type]
        return self


@pytest.fixture(autouse=True)
def _nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "report", lambda *args, **options: None)


@pytest.mark.parametrize(
    ("every", "fails", "saved"),
    [
        (0, (), [5]),
        (1, (), [1, 2, 3, 4, 5]),
        (2, (2,), [3, 4, 5]),  # as soon as it can be
        (4, (4,), [5]),
    ],
)
def test_a_checkpoint_that_cannot_be_saved_is_tried_after_each_step(
    every: int, fails: tuple[int, ...], saved: list[int], tmp_path: Path
) -> None:
    events = Events(tmp_path, every=every, fails=fails).run()
    assert [event for event in events if "check" in event] == [f"checkpoint {step}" for step in saved]


@pytest.mark.parametrize("event", ["a failure", "an alarm", "an alarm while it is saved", "a signal"])
def test_what_ends_the_run_after_a_step_comes_before_the_next_one(event: str, tmp_path: Path) -> None:
    events = Events(tmp_path, step=2, every=3)

    def take(step: int) -> tuple[list[Any], dict[str, float]]:
        if step == 3 and event == "a failure":
            events.step.failure = TinyZeroError("it died meanwhile")
        elif step == 3 and event == "a signal":
            events.session.stop.handle(15)
        elif step == 3 and event == "an alarm":
            sound_alarm()
        return events.take(step)

    def sound_alarm() -> None:
        events.session.audit.alarm = TinyZeroError("an alarm")  # type: ignore

    events.step.take = take
    drain = sound_alarm if "saved" in event else lambda: None
    events.session.audit = MagicMock(alarm=None, step=lambda *_: {}, drain=drain)
    with pytest.raises(Interrupted if event == "a signal" else TinyZeroError):
        events.run()
    line = [] if event == "a failure" else ["line 3"]  # a resumed run evaluates it, and writes its line
    assert events == ["step 3", *line, "checkpoint 3"]
    assert (events.session.state.pending_metrics is None) == bool(line)
