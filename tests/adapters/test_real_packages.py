"""The adapters with the packages they are for, each installed beside the project. Slow: installs them once."""

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.environments import run_script

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly(reason="loads another trainer for a minute; test_adapters.py has the same calls"),
]

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs/evaluation/adapters.md"
BEFORE_TRL = """
from tinyzero_sdk.adapters.trl import RewardFunction

seen, original = [], RewardFunction.__call__

def watched(self, completions, ground_truth, **others):
    rewards = original(self, completions, ground_truth, **others)
    seen.extend(zip(completions, ground_truth, rewards, strict=True))
    return rewards

RewardFunction.__call__ = watched
"""
AFTER_TRL = """
import json, torch

before = dict(AutoModelForCausalLM.from_pretrained(BUILT_IN_MODEL).named_parameters())
same = [name for name, value in trainer.model.named_parameters() if torch.equal(before[name], value.cpu())]
print(json.dumps({"log": trainer.state.log_history[0], "seen": seen, "same": same}))
"""


def documented(first_line):
    """The block of the page that begins so."""
    blocks = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    [block] = [block for block in blocks if block.startswith(f"{first_line}\n")]
    return str(block)


def test_grpo_of_trl_takes_a_step_on_countdown(tmp_path):
    from tinyzero_sdk import load_task

    script = tmp_path / "step.py"
    script.write_text(BEFORE_TRL + documented("# needs trl") + AFTER_TRL)
    step = run_script("trl", script, cwd=tmp_path)
    log, seen = step["log"], step["seen"]
    assert math.isfinite(log["loss"])
    assert log["grad_norm"] > 0
    assert step["same"] == [], "parameters that did not change"
    assert len(seen) == 64
    task = load_task("countdown")
    assert [reward for *_, reward in seen] == [task.score_completion(text, truth).value for text, truth, _ in seen]
    solved = sum(reward for *_, reward in seen) / len(seen)
    assert 0 < solved < 1, "a group in which all are alike teaches nothing"
    assert log["rewards/countdown/mean"] == pytest.approx(solved)
    assert log["countdown/accuracy"] == pytest.approx(solved)


def test_verl_loads_and_calls_a_task(tmp_path):
    """Through its own loader of reward functions and its own reward manager."""
    data = ("data", "--task", "countdown", "--output", "data", "--size", "3", "--test-size", "0")
    subprocess.run([Path(sys.executable).parent / "tinyzero", *data], cwd=tmp_path, check=True, capture_output=True)
    found = run_script("verl", HERE / "verl_rewards.py", "data/train.parquet", cwd=tmp_path)
    assert found["types"] == "ndarray"
    assert found["evaluated"] == [[1.0, 0.0]] * 3
    right = {"score": 1.0, "acc": 1.0, "reason": "ok"}
    wrong = {"score": 0.1, "acc": 0.0, "reason": "wrong"}
    assert (
        found["managed"]
        == [{"reward_score": 1.0, "reward_extra_info": right}, {"reward_score": 0.1, "reward_extra_info": wrong}] * 3
    )


def test_verifiers_loads_an_environment_and_scores_rollouts(tmp_path):
    (tmp_path / "countdown_env.py").write_text(documented("# countdown_env.py"))
    found = run_script("verifiers", HERE / "verifiers_rollouts.py", cwd=tmp_path)
    assert found["environment"] == "SingleAgentEnv"
    assert len(set(found["prompts"])) == 4
    assert found["saved"], "the ground truth survives the trace's file"
    scores: list[dict[str, Any]] = [
        {"reward": 1.0, "metrics": {"correct": 1.0}},  # gold
        {"reward": 0.0, "metrics": {"correct": 0.0}},  # another answer
        {"reward": 0.0, "metrics": {"correct": 0.0}},  # none
    ]
    assert found["results"] == scores * 4
    assert found["asked"] == len(found["results"]), "a rollout is scored once, for the reward and the metric"
    script = tmp_path / "documented.py"
    script.write_text(documented("# needs verifiers") + "\nprint(len(list(environment.taskset)))")
    assert run_script("verifiers", script, cwd=tmp_path) == 100
