"""A run whose model cannot answer says so, once and with a command; one whose model can does not."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.trainer.runs import Configure, lines, short_run
from tinyzero_sdk import Item, Score, load_task
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.controller.loop import train
from tinyzero_trainer.controller.signal_monitor import SignalMonitor
from tinyzero_trainer.types import Generation, Prompt, Rollout


@pytest.fixture
def watch(toy_task):
    """Makes a monitor of a run on the toy task, and the list of its warnings."""

    def watch(*names: str, **changes):
        tasks = {name: {"task": toy_task} for name in names or ("toy_task",)}
        config = make_config({"tasks": tasks, "data": {"prompts_per_step": 40}, **changes})
        warned: list[str] = []
        task = SimpleNamespace(task=load_task(toy_task))
        workers = SimpleNamespace(tasks=dict.fromkeys(tasks, task), display=SimpleNamespace(warn=warned.append))
        return SignalMonitor(config, workers), warned

    return watch


def prompt(task: str) -> Prompt:
    return Prompt(Item({"sum": 1}, {"numbers": [0, 1]}), "0+1=", [1, 2], task)


def groups(values: list[float], count: int = 40, task: str = "toy_task", *, finished: bool = True) -> list[Rollout]:
    """`count` groups whose completions have these rewards."""
    return [
        Rollout(each, Generation([1], None, finished), "", Score(value, value == 1, "ok" if value == 1 else "wrong"))
        for each in (prompt(task) for _ in range(count))
        for value in values
    ]


def test_it_warns_once_and_only_of_the_first_steps(watch):
    monitor, warned = watch()
    monitor.step(1, groups([0.0] * 8))
    monitor.step(2, groups([0.0] * 8))
    assert len(warned) == 1
    assert warned[0].startswith("0.0% of 320 completions are right, and 100.0% of the groups have one and the same")
    assert "tinyzero sft --task" in warned[0]

    monitor, warned = watch()
    monitor.step(1, groups([0.0] * 7 + [1.0]))
    monitor.step(2, groups([0.0] * 8))  # half of the groups have something
    monitor.step(3, groups([0.0] * 8, count=1000))  # too late to tell the start
    assert warned == []


def test_small_batches_decide_together(watch):
    monitor, warned = watch(data={"prompts_per_step": 4}, rollout={"group_size": 4})
    for step in range(1, 8):
        monitor.step(step, groups([0.0] * 4, count=4))
        assert bool(warned) == (step == 7)  # 28 groups


def test_each_task_is_judged_on_its_own(watch):
    monitor, warned = watch("short", "long")
    monitor.step(1, groups([1.0] * 8, task="short") + groups([0.0, 1.0] * 4, task="long"))
    (text,) = warned
    assert text.startswith("short: 100.0% of 320 completions are right")
    assert "a harder option" in text


CUT, WRONG = groups([0.0, 1.0] * 4, finished=False), groups([0.0] * 8)
ALIKE = groups([0.0] * 8, count=20) + groups([1.0] * 8, count=20)


@pytest.mark.parametrize(
    ("changes", "rollouts", "warns"),
    [
        ({}, CUT, True),
        ({"rollout": {"ignore_eos": True}}, CUT, False),
        ({"length_control": {"mode": "adaptive"}}, CUT, False),
        ({"algorithm": {"advantage_estimator": "grpo"}}, ALIKE, True),
        ({"algorithm": {"advantage_estimator": "reinforce_pp"}}, ALIKE, False),  # it compares prompts with each other
        ({"algorithm": {"advantage_estimator": "raft"}}, ALIKE, False),
        ({"algorithm": {"advantage_estimator": "raft"}}, WRONG, True),
        (
            {"algorithm": {"advantage_estimator": "on_policy_distillation"}, "model": {"teacher": "tiny"}},
            WRONG,
            False,
        ),
    ],
)
def test_what_the_settings_intend_or_can_learn_from_is_no_fault(watch, changes, rollouts, warns):
    monitor, warned = watch(**changes)
    monitor.step(1, rollouts)
    assert len(warned) == warns


@pytest.fixture
def run(toy_task: str, tmp_path: Path) -> Configure:
    """Makes the configuration of a step on the toy task with a model, and enough problems to judge it by."""
    settings = {"run__task": toy_task, "run__steps": 1, "eval__num_problems": 32, "eval__greedy": False}
    return lambda model, **changes: short_run(model, tmp_path / "run", **settings, **changes)


@pytest.mark.slow
def test_a_random_model_is_warned_of_before_training(run, toy_model_path, capsys):
    output = train(run(toy_model_path)).output
    error = capsys.readouterr().err
    before, rest = error.split("training: 1 step")
    assert "warning: 100.0% of 32 completions have no answer, and 100.0% are cut off at 8 tokens" in before
    assert f"--model {toy_model_path} --output DIR" in before
    assert error.count("warning:") == 1
    assert "no answer 100.0%  cut off 100.0%  zero-variance groups 100.0%" in rest
    first = lines(output)[0]
    assert (first["val-aux/toy_task/no_answer_frac"], first["val-aux/toy_task/truncated_frac"]) == (1.0, 1.0)


@pytest.mark.slow
def test_a_model_that_can_answer_is_not(run, warm_model, capsys):
    train(run(warm_model, task__limit=5))
    error = capsys.readouterr().err
    assert "warning" not in error
    assert "  no answer " in error
