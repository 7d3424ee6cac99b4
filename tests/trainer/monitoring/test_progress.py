"""Bars in a terminal, lines in a log: the same content, in 80 columns."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from tinyzero_trainer.monitoring.metrics_log import (
    ACCURACY,
    LENGTH,
    REWARD,
    THROUGHPUT,
)
from tinyzero_trainer.monitoring.progress import Progress, outcome_line

METRICS = {REWARD: 0.4123, ACCURACY: 0.382, LENGTH: 57.4, THROUGHPUT: 12345.6, "actor/entropy": 1.0}


@pytest.fixture
def clock():
    """A clock that tests set."""
    return SimpleNamespace(now=100.0)


@pytest.fixture
def plain(clock):
    return Progress(Console(file=io.StringIO(), width=80), clock=lambda: clock.now)


@pytest.fixture
def terminal(clock):
    file = io.StringIO()
    file.isatty = lambda: True
    console = Console(file=file, width=80, force_terminal=True, force_interactive=True, color_system=None)
    return Progress(console, clock=lambda: clock.now)


def printed(display):
    return display._console.file.getvalue().splitlines()


def live(display):
    """What the live part of the terminal shows now."""
    console = Console(file=io.StringIO(), width=80)
    console.print(display._bars.get_renderable())
    lines = console.file.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    return lines


def test_a_phase_is_printed_at_once_and_then_every_few_seconds(plain, clock):
    with plain:
        plain.phase("evaluating", total=1024, unit="problems")
        assert printed(plain) == ["evaluating: 1,024 problems"]
        for _ in range(12):
            clock.now += 1
            plain.advance(64)
    assert printed(plain) == [
        "evaluating: 1,024 problems",
        "evaluating: 320/1,024 problems  0:11 left",
        "evaluating: 640/1,024 problems  0:06 left",
    ]


def test_the_start_up_is_told_by_part(plain, clock):
    for part, seconds in {"imports": 5.0, "warm_up": 2.5, "evaluation": 1.0}.items():
        clock.now += seconds
        plain.record_startup(part)
    assert plain.ready() == {
        "timing_s/startup/imports": 5.0,
        "timing_s/startup/warm_up": 2.5,
        "timing_s/startup/evaluation": 1.0,
    }
    assert printed(plain) == ["ready in 8.5 s: imports 5.0, warm up 2.5, evaluation 1.0"]


def test_steps_print_metrics_and_time_left_every_few_seconds(plain, clock):
    plain.train(100)
    for step in range(1, 101):
        clock.now += 1
        plain.step(step, METRICS)
    lines = printed(plain)
    assert lines[0] == "training: 100 steps"
    assert lines[1] == "step 1/100  1:39 left  reward 0.412  accuracy 38.2%  length 57  12,346 tokens/s"
    assert lines[2].startswith("step 3/100  1:37 left")
    assert lines[-1] == "step 100/100  reward 0.412  accuracy 38.2%  length 57  12,346 tokens/s"
    assert len(lines) == 52


def test_a_resumed_run_estimates_by_its_own_steps(plain, clock):
    plain.train(100, done=90)
    clock.now += 6
    plain.step(91, {REWARD: None, ACCURACY: 0.5})  # missing metrics are left out
    assert printed(plain) == ["training: 10 steps", "step 91/100  0:54 left  accuracy 50.0%"]


TWO_TASKS = METRICS | {"task/countdown/acc": 0.3312, "task/multiply/acc": 0.5249, "task/multiply/score": 0.6}


def test_several_tasks_have_an_accuracy_each_if_it_fits(plain, clock):
    plain.train(100)
    clock.now += 1
    plain.step(1, TWO_TASKS)
    clock.now += 5
    plain.step(2, TWO_TASKS | {f"task/another-{number}/acc": 0.5 for number in range(3)})
    first, second = printed(plain)[1:]
    assert first == "step 1/100  1:39 left  reward 0.412  countdown 33.1%  multiply 52.5%"
    assert second == "step 2/100  4:54 left  reward 0.412  accuracy 38.2%  length 57  12,346 tokens/s"
    assert max(map(len, (first, second))) <= 80


def test_held_out_accuracy_and_notes_stay(plain):
    plain.held_out(0, {"countdown": 0.231})
    plain.held_out(1250, {"countdown": 0.5, "multiply": 0.625})
    plain.log("[wandb] is not markup")
    assert printed(plain) == [
        "held-out accuracy before training: 23.1%",
        "held-out accuracy after step 1,250: countdown 50.0%, multiply 62.5%",
        "[wandb] is not markup",
    ]


def test_progress_goes_to_stderr_and_results_to_stdout(capsys):
    with Progress() as display:
        display.phase("loading")
        display.done("the result, which is longer than eighty columns and is still one line, as a script wants it")
    captured = capsys.readouterr()
    assert captured.err == "loading\n"
    assert captured.out.count("\n") == 1


def test_the_terminal_shows_step_numbers_and_phase(terminal, clock):
    terminal.train(94)
    for step, reward in ((1, 0.1), (2, 0.4)):
        clock.now += 1.5
        terminal.step(step, METRICS | {REWARD: reward})
    terminal.phase("evaluating on held-out problems, sampled at temperature 1", 1024, "problems")
    clock.now += 65
    terminal.advance(512)
    bar, numbers, phase, phase_bar = live(terminal)
    assert bar.endswith("step 2/94  1:13 left")
    assert numbers == "reward 0.400  accuracy 38.2%  length 57  12,346 tokens/s"
    assert phase.endswith("evaluating on held-out problems, sampled at temperature 1  1:05")
    assert phase_bar.endswith("512/1,024 problems  1:05 left")
    terminal.end_phase()
    assert len(live(terminal)) == 2


def test_the_terminal_names_what_a_slow_step_does(terminal, clock):
    terminal.train(94)
    with terminal.activity("sampling completions", total=64) as advance:
        clock.now += 0.9
        assert len(live(terminal)) == 1  # fast steps do not flicker
        clock.now += 9.1
        advance(32)
        assert live(terminal)[1].endswith("sampling completions  0:10  32/64  0:10 left")
    assert len(live(terminal)) == 1


def test_the_outcome_is_one_line():
    of_task = outcome_line("multiply", 0.231, 0.49, problems=1024, temperature=1.0)
    assert of_task == "multiply: 23.1% -> 49.0% (+25.9 points; 1,024 problems at T=1)"
    assert "(-1.0 points; 8 problems at T=0.6)" in outcome_line(None, 0.5, 0.49, problems=8, temperature=0.6)
