"""The audit: what it counts, when it raises the alarm, and that it costs and disturbs nothing."""

import json
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.configurations import make_config
from tests.trainer.runs import UNTIMED, Configure, killed, lines, short_run
from tests.trainer.toy_task import __file__ as TOY
from tinyzero_sdk import Item, Score, load_task
from tinyzero_sdk.testing.cases import read_cases
from tinyzero_trainer.checkpoint.run_status import status_of
from tinyzero_trainer.controller.checkpointer import Checkpointer
from tinyzero_trainer.controller.loop import train
from tinyzero_trainer.rewards import audit as auditing
from tinyzero_trainer.rewards.audit import Audit, AuditAlarm, AuditState, JudgedSample, alarming
from tinyzero_trainer.rewards.signs import StepStatistics, drift, repeated_answer, signs
from tinyzero_trainer.types import Generation, Prompt, Rollout

ORACLE = """

@hookimpl
def oracle(answer: str, ground_truth: dict[str, int]) -> bool | None:
    return int(answer) == ground_truth["sum"] if answer.isdigit() else {}
"""
HANGS = "__import__('time').sleep(60)"


def write_task(directory: Path, *, unknown: str = "None", pays_near: bool = False) -> str:
    """The toy task with an oracle; `unknown` is what it does with what is no number."""
    text = Path(TOY).read_text()
    if pays_near:  # the last digit is enough
        text = text.replace('int(answer) == ground_truth["sum"]', 'int(answer) % 10 == ground_truth["sum"] % 10')
    file = directory / "toy_task.py"
    file.write_text(text + ORACLE.replace("{}", unknown))
    return str(file)


def rollout(truth: int, answer: str | None, *, paid: bool, prompt: Prompt | None = None, text: str = "") -> Rollout:
    prompt = prompt or Prompt(Item({"sum": truth}), "", [1], "toy")
    text = text or ("" if answer is None else f"<answer>{answer}</answer>")
    reason = "ok" if paid else "no_answer" if answer is None else "wrong"
    return Rollout(prompt, Generation([1, 2], None, True), text, Score(float(paid), paid, reason, answer))


class Watched:
    """An audit of one task, with what it warned of."""

    def __init__(self, directory: Path, task: str, **settings: Any) -> None:
        self.warnings: list[str] = []
        config = make_config(
            {"run": {"output": "x"}, "audit": {"completions": 64, **settings}, "tasks": {"toy": {"task": task}}}
        )
        self.state: dict[str, AuditState] = {}
        tasks = {"toy": load_task(task)}
        self.audit = Audit(config, tasks, self.state, directory / "audit", self.warnings.append)
        self.cases = directory / "audit/toy.cases.jsonl"

    def judge(self, step: int, rollouts: list[Rollout]) -> dict[str, float]:
        self.audit.step(step, rollouts)
        self.audit.drain()
        metrics = self.audit.step(step, [])
        self.audit.drain()
        return metrics


def sample(step: int, problems: int, false: int, each: int = 1) -> JudgedSample:
    return JudgedSample(step, [(each, each)] * false + [(each, 0)] * (problems - false), [])


@pytest.mark.parametrize(
    ("window", "alarms_after"),
    [
        ([sample(1, 32, 0)] * 16, 0),
        ([sample(1, 32, 3)], 0),  # too few problems to tell
        ([sample(1, 32, 1, each=8)], 0),  # one problem that the oracle misjudges, however often
        ([sample(1, 32, 4)], 1),
        ([sample(1, 64, 2)] * 8, 4),  # slowly: 3% of many
        ([sample(1, 64, 0)] * 15 + [sample(16, 16, 8)], 1),  # a jump is not averaged away
    ],
)
def test_the_alarm_takes_the_shortest_window_that_shows_it(window: list[JudgedSample], alarms_after: int) -> None:
    assert len(alarming(window, 0.01)) == alarms_after


@pytest.mark.parametrize("doubled_after", [2, 5, pytest.param(20, marks=pytest.mark.slow)])
def test_the_alarm_comes_before_a_tenth_of_the_rewards_is_false(doubled_after: int) -> None:
    """With as many judged as by default, from one in a thousand on; docs/training/audit.md has the numbers."""
    reached = []
    for seed in range(10):
        chance, samples, rate = random.Random(seed), list[JudgedSample](), 0.001
        while not (samples and alarming(samples, 0.01)):
            rate = 0.001 * 2 ** (len(samples) / doubled_after)
            samples = [*samples, sample(len(samples), 64, sum(chance.random() < rate for _ in range(64)))]
        reached.append(rate)
    assert max(reached) < 0.1, reached


def test_an_oracle_that_errs_now_and_then_raises_no_alarm() -> None:
    """At a fifth of the limit, in 300 steps."""
    chance = random.Random(0)
    samples = [sample(step, 64, sum(chance.random() < 0.002 for _ in range(64))) for step in range(300)]
    assert not any(alarming(samples[max(0, step - 15) : step + 1], 0.01) for step in range(300))


def test_what_is_counted_and_kept(tmp_path: Path) -> None:
    watched = Watched(tmp_path, write_task(tmp_path))
    shared = Prompt(Item({"sum": 5}), "", [1], "toy")
    two = "<answer>5</answer> no, <answer>6</answer>"
    samples = [
        *(rollout(5, "5", paid=True, prompt=shared), rollout(5, "15", paid=True, prompt=shared)),
        rollout(5, "5", paid=True, text=two),  # the first of two was paid, the last counts
        *(rollout(5, "4", paid=False), rollout(5, "5", paid=False), rollout(5, None, paid=False)),
        rollout(5, "x", paid=False),  # of which the oracle knows nothing
        Rollout(shared, Generation([1], None, True), "<answer>5</answer>", Score(0.0, False, "timeout", "5")),
    ]
    with watched.audit:
        metrics = watched.judge(1, samples)
        watched.judge(2, samples)  # what is known is not written again
    assert metrics["audit/false_positive_rate"] == pytest.approx(2 / 3)
    assert metrics["audit/false_positive_rate/low"] < 2 / 3 < metrics["audit/false_positive_rate/high"]
    assert metrics["audit/false_negative_rate"] == pytest.approx(1 / 3)
    assert (metrics["audit/judged"], metrics["audit/unjudged"]) == (6, 1)
    cases = read_cases(watched.cases)
    labels = [(case.completion, case.correct) for case in cases]
    assert sorted(labels) == [("<answer>15</answer>", False), ("<answer>5</answer>", True), (two, False)]
    assert all(case.note.startswith("step 1: score ") for case in cases)
    assert "4 of 6 rewarded completions wrong, 2 of 6 others right, 2 not judged" in watched.audit.summary()[0]


def test_each_of_several_tasks_is_audited_by_itself(tmp_path: Path) -> None:
    names = ("honest", "broken")
    tasks = {name: load_task(write_task(tmp_path)) for name in names} | {"mute": load_task(TOY)}
    config = make_config({"run": {"output": "x"}, "tasks": {name: {"task": TOY} for name in tasks}})
    warnings: list[str] = []
    with Audit(config, tasks, {}, tmp_path / "audit", warnings.append) as audit:
        for name in tasks:
            paid = [rollout(5, "5" if name == "honest" else "15", paid=True) for _ in range(9)]
            rollouts = [replace(each, prompt=replace(each.prompt, task=name)) for each in paid]
            audit.step(1, rollouts)
            audit.drain()
        metrics = audit.step(2, [])
        audit.drain()
    assert [metrics[f"audit/{name}/false_positive_rate"] for name in names] == [0, 1]
    assert "audit/mute/judged" not in metrics
    (warning,) = warnings
    assert warning.startswith("the reward of broken pays for wrong answers: by its oracle, 9 of 9 ")
    assert [line.partition(" rewarded")[0] for line in audit.summary()] == [
        "audit of honest: by the oracle 0 of 9",
        "audit of broken: by the oracle 9 of 9",
    ]


def test_the_file_of_findings_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditing, "MOST_BYTES", 1000)
    watched = Watched(tmp_path, write_task(tmp_path), action="stop")
    with watched.audit:
        for step in range(1, 6):
            watched.judge(step, [rollout(5, str(10 * step + 6), paid=True) for _ in range(4)])
    assert 0 < watched.cases.stat().st_size < 2000


def test_what_there_is_no_time_for_is_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditing, "SAMPLE_SECONDS", 0.0)
    watched = Watched(tmp_path, write_task(tmp_path))
    with watched.audit:
        metrics = watched.judge(1, [rollout(5, "5", paid=True) for _ in range(9)])
    assert (metrics["audit/judged"], metrics["audit/unjudged"], watched.warnings) == (0, 9, [])


def test_an_alarm_names_what_it_rests_on(tmp_path: Path) -> None:
    watched = Watched(tmp_path, write_task(tmp_path))
    with watched.audit:
        for step in range(1, 4):
            watched.judge(step, [rollout(5, "15", paid=True) for _ in range(8)])
        watched.judge(40, [rollout(5, "5", paid=True)])  # what is old news by then
    (warning,) = watched.warnings  # once, as long as it is the same
    for part in ("8 of 8 rewarded", "at step 1 ", "(100.0%, 99.7% interval ", "<answer>15</answer>", "toy.cases.jsonl"):
        assert part in warning
    assert watched.state["toy"].alarms == 1


def test_where_two_oracles_disagree_the_verdict_contradicts_both_scores(tmp_path: Path) -> None:
    watched = Watched(tmp_path, write_task(tmp_path))
    drawn = [("positive", rollout(5, "5", paid=True)), ("negative", rollout(5, "4", paid=False))]
    with watched.audit:
        watched.audit._count("toy", 1, drawn, [Score(0.5, False, "wrong")] * 2)
    assert watched.state["toy"].false == {"positive": 1, "negative": 1}


@pytest.mark.parametrize("unknown", ["1 / 0", "exit()", "'?'.fail"])
def test_an_oracle_that_fails_judges_nothing_and_disturbs_nothing(tmp_path: Path, unknown: str) -> None:
    watched = Watched(tmp_path, write_task(tmp_path, unknown=unknown))
    with watched.audit:
        metrics = watched.judge(1, [rollout(5, "x", paid=True), rollout(5, "5", paid=True)])
    assert (metrics["audit/judged"], metrics["audit/unjudged"], watched.warnings) == (1, 1, [])


@pytest.mark.slow
@pytest.mark.usefixtures("real_workers")
def test_an_oracle_that_hangs_or_dies_is_ended(tmp_path: Path) -> None:
    for unknown in (HANGS, "__import__('os')._exit(1)"):
        watched = Watched(tmp_path, write_task(tmp_path, unknown=unknown), timeout=0.2)
        with watched.audit:
            watched.audit.step(1, [rollout(5, "x", paid=True), rollout(5, "5", paid=True)])
            assert watched.audit.step(2, [])["audit/judged"] == 0  # training does not wait
            watched.audit.drain()
            metrics = watched.audit.step(0, [])
        assert (metrics["audit/judged"], metrics["audit/unjudged"]) == (1, 1)


def test_a_task_whose_oracle_cannot_be_loaded_is_left_out(tmp_path: Path) -> None:
    task = write_task(tmp_path)
    watched = Watched(tmp_path, task)
    Path(task).write_text("1 / 0")
    with watched.audit:
        assert "audit/judged" not in watched.judge(1, [rollout(5, "5", paid=True)])
    assert watched.warnings[0].startswith("the audit of toy ends: ")


def test_signs() -> None:
    quiet = [StepStatistics(10 + step % 3, 1.0 + step % 2 / 100, {"ok": 0.5, "wrong": 0.5}) for step in range(8)]
    alike = [rollout(truth, "7", paid=True) for truth in range(6)]
    honest = [rollout(truth, str(truth), paid=True) for truth in range(6)]
    found = signs(StepStatistics(30.0, 1.0, {"ok": 0.9, "malformed": 0.1}), quiet, alike)
    assert (found["repeated_answer"], found["reason_jump"]) == (1.0, 0.5)
    assert found["length_drift"] > 8
    assert found["entropy_drift"] < 2
    assert signs(quiet[0], quiet[:3], honest) == {"repeated_answer": 0.0}  # too little to compare with
    assert repeated_answer([rollout(7, "7", paid=True) for _ in range(9)]) is None  # one answer, rightly
    assert drift(None, [1.0] * 9) is None
    assert drift(-8.0, [9.0, 10.0, 11.0] * 3) == drift(28.0, [9.0, 10.0, 11.0] * 3) > 8


def test_a_sign_is_reported_once_and_only_without_an_oracle(tmp_path: Path) -> None:
    alike = [rollout(truth, "7", paid=True) for truth in range(6)]
    plain, judged = Watched(tmp_path, TOY), Watched(tmp_path, write_task(tmp_path))
    for watched in (plain, judged):
        with watched.audit:
            for step in (1, 2):
                metrics = watched.audit.step(step, alike)
            assert metrics["audit/sign/repeated_answer"] == 1
    (warning,) = plain.warnings
    assert warning.startswith("step 1, a sign and no proof that the reward of toy is gamed: one text was paid for 100%")
    assert not any("a sign" in warning for warning in judged.warnings)


@pytest.fixture
def broken_run(warm_model: Path, tmp_path: Path) -> Configure:
    """A run whose reward pays for the last digit."""
    task = write_task(tmp_path, pays_near=True)
    settings = {"run__task": task, "task__limit": 20, "data__prompts_per_step": 8, "run__steps": 8}
    return lambda name="run", **changes: short_run(warm_model, tmp_path / name, **{**settings, **changes})


@pytest.mark.slow
@pytest.mark.usefixtures("real_workers")
def test_a_broken_reward_stops_a_run_which_can_be_resumed(broken_run: Configure, capsys: pytest.CaptureFixture) -> None:
    config = broken_run(audit__action="stop")
    with pytest.raises(
        AuditAlarm, match=r"pays for wrong answers: .* is saved; resume with: tinyzero train "
    ) as stopped:
        train(config)
    assert stopped.value.exit_code == 1
    run = Path(config.run.output)
    at = status_of(run)
    assert (at.state, at.step, at.checkpoints[-1]) == ("stopped", at.step, at.step)
    train(broken_run(audit__action="warn"), resume=True)
    assert status_of(run).step == 8
    assert "rewarded completions wrong" in capsys.readouterr().out
    assert all(not case.correct for case in read_cases(run / "audit/toy_task.cases.jsonl"))


@pytest.mark.slow
def test_a_kill_loses_nothing_and_counts_nothing_twice(broken_run: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a machine that is busier, where the oracle takes longer than a step."""
    settings: dict[str, Any] = {"run__steps": 4, "audit__window": 4}
    train(broken_run("whole", **settings))
    judge = Audit._scores
    monkeypatch.setattr(Audit, "_scores", lambda *arguments: (time.sleep(1), judge(*arguments))[1])
    with killed(monkeypatch, Checkpointer, "save", 2):
        train(broken_run("killed", **settings))
    train(broken_run("killed", **settings), resume=True)
    states = [
        json.loads(Path(broken_run(name).run.output, "checkpoints/step_4/training_state/state.json").read_text())
        for name in ("whole", "killed")
    ]
    assert states[0]["audit"] == states[1]["audit"]
    assert len(states[0]["audit"]["toy_task"]["window"]) == 4
    rows = [lines(broken_run(name).run.output, without=UNTIMED) for name in ("whole", "killed")]
    assert rows[0] == rows[1]
