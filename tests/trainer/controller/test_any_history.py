"""Any history of a run (kills, signals, a full disk, settings, lost checkpoints) against a model of what must hold.

In this process a kill is an exception; every night it is SIGKILL, to a process of its own.
"""

import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.trainer import preloaded
from tests.trainer.runs import Killed, assert_same_weights, lines, on_call, short_run
from tinyzero_sdk.errors import SettingsError, TinyZeroError
from tinyzero_sdk.settings import build, to_mapping
from tinyzero_trainer.checkpoint import store
from tinyzero_trainer.checkpoint.run_directory import OWNER
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.resume import resume_config
from tinyzero_trainer.controller import collector, ending, heldout_eval, loop
from tinyzero_trainer.controller.step import TrainingStep
from tinyzero_trainer.monitoring.metrics_log import MetricsLog
from tinyzero_trainer.training.policy import Policy

STEPS = 6
DAMAGED = "damaged"  # a file in a checkpoint that this test has damaged, which the manifest does not name
FULL, TERMINATED, KILLED = 2, 128 + signal.SIGTERM, 128 + signal.SIGKILL  # exit codes
MOMENTS: list[tuple[Any, str]] = [
    (TrainingStep, "take"),
    (collector, "generate"),
    (collector, "score"),
    (Policy, "update"),
    (heldout_eval, "evaluate"),
    (MetricsLog, "append"),
    (store, "save"),
    (Policy, "export"),
    (store, "_seal"),
    (os, "rename"),
    (ending, "plot_curve"),
]
Session = Callable[[dict[str, Any], int, int, str], int]
"""Train or resume with these settings; at the call of a moment something happens; the exit code."""


def play(values: dict[str, Any], moment: int, call: int, event: str, die: Callable[[], None]) -> int:
    config, (owner, name) = build(TrainConfig, values), MOMENTS[moment]
    acts = {"killed": die, "terminated": lambda: os.kill(os.getpid(), signal.SIGTERM)}
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(ending, "plot_curve", lambda *args, **kwargs: None)  # it takes as long as the run
        if event in acts:
            stack.enter_context(on_call(patch, owner, name, call, acts[event]))
        for more in range(STEPS if event == "full" else 0):
            stack.enter_context(on_call(patch, Policy, "export", call + more, OSError(28, "No space left on device")))
        try:
            loop.train(config, resume=Path(config.run.output, "config.toml").exists())
        except TinyZeroError as error:
            return error.exit_code
        except Killed:
            return KILLED
    return 0


def in_this_process(values: dict[str, Any], moment: int, call: int, event: str) -> int:
    def die() -> None:
        raise Killed

    return play(values, moment, call, event, die)


def in_a_process(values: dict[str, Any], moment: int, call: int, event: str) -> int:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preloaded.__name__])
    process = context.Process(target=_exit_with, args=(values, moment, call, event))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode if process.exitcode >= 0 else 128 - process.exitcode


def _exit_with(*given: Any) -> None:
    torch.set_num_threads(1)
    sys.exit(play(*given, die=lambda: os.kill(os.getpid(), signal.SIGKILL)))


class History(RuleBasedStateMachine):
    """A run, and what was done to it."""

    def __init__(self, config: TrainConfig, whole: Path, session: Session) -> None:
        super().__init__()
        self.output, self.whole, self.session = Path(config.run.output), whole, session
        self.config, self.expected = config, lines(whole)
        shutil.rmtree(self.output, ignore_errors=True)

    @property
    def sealed(self) -> dict[int, Path]:
        root = self.output / "checkpoints"
        return dict(store.sealed(root)) if root.is_dir() else {}

    @property
    def newest(self) -> int | None:
        """The step of the newest sound checkpoint."""
        return max((step for step, folder in self.sealed.items() if not (folder / DAMAGED).exists()), default=None)

    @property
    def last(self) -> int:
        """The step of the last line of metrics, -1 if there is none."""
        return len(lines(self.output)) - 1 if (self.output / "metrics.jsonl").exists() else -1

    @rule(
        moment=st.sampled_from(range(len(MOMENTS))),
        call=st.integers(1, STEPS),
        event=st.sampled_from(["killed", "killed", "terminated", "full", "none"]),
    )
    def train(self, moment: int, call: int, event: str) -> None:
        before, lost = self.newest, bool(self.sealed) and self.newest is None
        code = self.session(to_mapping(self.config), moment, call, event)
        if lost:
            assert code == 2, "nothing can be resumed, and nothing is started in its place"
            return
        possible = {"killed": KILLED, "terminated": TERMINATED, "full": FULL}
        assert code in (0, possible.get(event, 0))
        after, last = self.newest, self.last
        assert (after if after is not None else -1) >= (before if before is not None else -1)
        if code == 0:
            assert after == last == self.config.run.steps
        elif code == TERMINATED:  # in the evaluation of a step, whose line is then left to the resumed run
            assert after in (last, last + 1)
        elif code == KILLED and last > 0:
            every = self.config.checkpoint.every
            assert (after or 0) >= (last - 1) // every * every, "what was due before it is saved"
        if code != KILLED:
            assert not list(self.output.glob("checkpoints/*.tmp-*"))
        if after:
            assert_same_weights(self.output, self.whole, after)

    @precondition(lambda self: (self.output / "config.toml").exists())
    @rule(every=st.integers(1, 3), keep=st.integers(2, 3), steps=st.integers(4, STEPS))
    def change_what_may_change(self, every: int, keep: int, steps: int) -> None:
        steps = max(steps, self.config.run.steps or 0)
        changes = {"checkpoint": {"every": every, "keep": keep}, "run": {"steps": steps}}
        self.config = resume_config(self.output, changes)

    @precondition(lambda self: self.newest is not None)
    @rule()
    def change_what_is_learned(self) -> None:
        before = self.content()
        with pytest.raises(SettingsError, match=r"cannot change optimizer\.learning_rate"):
            resume_config(self.output, {"optimizer": {"learning_rate": 2e-3}})
        other = replace(self.config, optimizer=replace(self.config.optimizer, learning_rate=2e-3))
        with pytest.raises(SettingsError, match=r"config\.toml has changed"):
            loop.train(other, resume=True)
        with pytest.raises(SettingsError, match="not lower it"):
            resume_config(self.output, {"run": {"steps": 3}})
        assert self.content() == before

    def content(self) -> dict[Path, bytes]:
        files = {path for path in self.output.rglob("*") if path.is_file()} - {self.output / OWNER}
        return {path: path.read_bytes() for path in files}

    @precondition(lambda self: self.sealed)
    @rule(place=st.integers(0, 9))
    def delete_a_checkpoint(self, place: int) -> None:
        shutil.rmtree(sorted(self.sealed.values())[place % len(self.sealed)])

    @precondition(lambda self: self.newest is not None)
    @rule(
        file=st.sampled_from(["model.safetensors", "manifest.json", "training_state/optimizer.safetensors"]),
        damage=st.sampled_from(["flipped", "cut", "gone"]),
    )
    def damage_the_newest(self, file: str, damage: str) -> None:
        assert self.newest is not None
        folder = self.sealed[self.newest]
        path = folder / file
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        if damage == "flipped":
            path.write_bytes(content)
        elif damage == "cut":
            path.write_bytes(content[: len(content) // 2])
        else:
            path.unlink()
        (folder / DAMAGED).touch()

    @invariant()
    def metrics_are_those_of_a_run_that_nothing_happened_to(self) -> None:
        if self.last >= 0:
            assert lines(self.output) == self.expected[: self.last + 1]


@pytest.fixture
def history(warm_model: Path, toy_task: str, tmp_path: Path) -> Callable[..., None]:
    """Try so many histories of so many events."""
    given: dict[str, Any] = {"run__task": toy_task, "task__limit": 5, "eval__every": 1, "eval__greedy": False}
    given |= {"eval__num_problems": 4}  # at the last step as at each before it: `run.steps` may be raised
    kept: dict[str, Any] = {"checkpoint__every": 1, "checkpoint__keep": STEPS}
    loop.train(short_run(warm_model, tmp_path / "whole", run__steps=STEPS, **kept, **given))
    run = short_run(warm_model, tmp_path / "run", run__steps=4, **given)

    def try_out(session: Session, examples: int, events: int) -> None:
        chosen = settings(max_examples=examples, stateful_step_count=events, suppress_health_check=list(HealthCheck))
        run_state_machine_as_test(lambda: History(run, tmp_path / "whole", session), settings=chosen)

    return try_out


@pytest.mark.slow
def test_any_history_leads_to_the_same_run(history: Callable[..., None]) -> None:
    history(in_this_process, 2, 6)


@pytest.mark.nightly(reason="takes minutes; every change tries a few histories, with exceptions for kills")
@pytest.mark.parametrize(("session", "examples"), [(in_this_process, 60), (in_a_process, 20)])
def test_many_histories_lead_to_the_same_run(history: Callable[..., None], session: Session, examples: int) -> None:
    history(session, examples, 15)
