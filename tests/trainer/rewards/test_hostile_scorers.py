"""Whatever a scorer does within `tinyzero train`: it is counted and masked, told once, and nothing of it remains."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tests.trainer import runs
from tests.trainer.rewards.hostile_task import FAULTS, LATE, RIGHT, fault_of

TASK = Path(__file__).with_name("hostile_task.py")
RAY = ("run.executor=ray", "parallel.world_size=1")


def train(model, output, *words):
    settings = {
        "run.output": output,
        "run.device": "cpu",
        "run.steps": 1,
        "data.prompts_per_step": 3 * len(FAULTS),
        "data.prompt_template": "base",
        "rollout.group_size": 3,
        "rollout.max_completion_tokens": 8,
        "reward.num_workers": 2,
        "reward.memory_limit_gb": 2,
        "eval.num_problems": 2,
        "log.rollouts_every": 1,
        "log.rollouts_count": 1000,
    }
    command = [sys.executable, "-c", "from tinyzero_sdk.cli import main; main()", "train", "--task", str(TASK)]
    command += ["--model", str(model), *(f"{key}={value}" for key, value in settings.items()), *words]
    environment = {**os.environ, "HOSTILE_RUN": str(output)}
    return subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment, check=False)


def left_over(output):
    """Processes that the run has started and that are still there."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("HOSTILE_RUN") == str(output) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.cmdline())
        except psutil.Error:
            pass  # it has ended
    return found


def expected(row):
    fault = fault_of(row["ground_truth"]["number"], row["completion"])
    if fault is None or fault in RIGHT:
        return "wrong"
    return "timeout" if fault in LATE else "error"


@pytest.mark.nightly(reason="dozens of scorers that hang or die; the pool's own tests have the same faults")
@pytest.mark.parametrize("executor", [(), RAY], ids=["local", "ray"])
@pytest.mark.fault(
    "F15",
    "A scorer in training fails in every way, local and with Ray",
    made=(
        "on half of the completions it raises, exits, is killed, hangs, loops in C, takes all memory, prints a "
        "gigabyte, leaves processes, returns NaN, infinity, a text, a list, None or numpy's numbers"
    ),
    seen="the scorer of task 'hostile_task' failed on …",
    kept="every completion is scored, or counted as failed and masked; told once; no process is left",
)
def test_a_run_goes_on_whatever_its_scorer_does(fault_row, toy_model_path, tmp_path, executor):
    output = tmp_path / "run"
    done = train(toy_model_path, output, "reward.max_failure_rate=1", "reward.timeout=5", *executor)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [row | {"ground_truth": json.loads(row["ground_truth"])} for row in runs.completions(output)]
    assert len(rows) == 9 * len(FAULTS)
    assert {fault_of(row["ground_truth"]["number"], row["completion"]) for row in rows} == {None, *FAULTS}
    # Under load, what takes its time may be taken for late.
    wrong = [row for row in rows if row["reason"] not in (expected(row), "timeout")]
    assert wrong == []
    counts = Counter(row["reason"] for row in rows)
    (metrics,) = [row for row in runs.lines(output) if "reward/error_frac" in row]
    for name in ("error", "timeout"):
        assert metrics[f"reward/{name}_frac"] == pytest.approx(counts[name] / len(rows))
    assert metrics["critic/score/max"] == 0.25
    assert done.stderr.count("the scorer of task 'hostile_task' failed on") == 1
    assert "Traceback" not in done.stderr
    fault_row.check(done.stderr)
    assert len(done.stderr) < 10_000 * (10 + sum(row["reason"] != "error" for row in rows))
    assert left_over(output) == []


@pytest.mark.nightly(reason="a run in a process; tests of the loop stop it in theirs")
@pytest.mark.fault(
    "F15",
    "A scorer in training fails, and `reward.max_failure_rate` is 0",
    made="on half of the completions it raises, exits, hangs, takes all memory, or returns what is no score",
    seen=(
        "error: the scorer of task 'hostile_task' failed on …expected at most reward.max_failure_rate=0: fix the task, "
        "or raise reward.timeout…"
    ),
    kept="all steps before; no process is left",
    code=2,
)
def test_above_the_threshold_a_run_stops_with_the_first_error(fault_row, toy_model_path, tmp_path):
    done = train(toy_model_path, tmp_path / "run", "reward.max_failure_rate=0", "reward.timeout=1")
    fault_row.check(done.stderr, done.returncode)
    assert "Traceback" not in done.stderr
    assert left_over(tmp_path / "run") == []
