"""A new rollout engine is one folder: no other file names it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

KIND = """
from tinyzero_trainer.kinds import EngineKind

KIND = EngineKind(name="echo", build="tinyzero_trainer.rollout.echo.build")
"""

BUILD = """
from contextlib import nullcontext
from dataclasses import replace

from tinyzero_trainer.rollout.engine import SamplingEngine
from tinyzero_trainer.types import Generation


class EchoEngine(SamplingEngine):
    '''Answers with the end of the prompt.'''

    def __init__(self, eos_id):
        self.eos_id, self.groups = eos_id, []

    def submit(self, groups):
        self.groups += groups

    def advance(self, params, on_progress):
        group = self.groups.pop(0)
        answer = Generation([*group.prompt[-group.max_tokens + 1 :], self.eos_id], [-1.0] * group.max_tokens, True)
        on_progress(len(group.completions))
        return [replace(group, completions=(answer,) * len(group.completions))]

    def unfinished(self):
        return self.groups

    def isolated(self):
        return nullcontext()


def refuse(config, device, architecture): ...


def build(config, language_model, report, source, number):
    return EchoEngine(min(language_model.eos_ids))
"""

COMMAND = """
import sys, tinyzero_trainer.rollout
tinyzero_trainer.rollout.__path__.append(sys.argv[1])
from tinyzero_sdk.cli.app import main
main(sys.argv[2:])
"""


@pytest.mark.nightly(reason="a run with an engine in a folder of its own; every change tests the engines there are")
def test_a_folder_with_its_record_is_an_engine_that_trains(tmp_path: Path) -> None:
    folder = tmp_path / "engines/echo"
    folder.mkdir(parents=True)
    for name, content in (("__init__", ""), ("kind", KIND), ("build", BUILD)):
        (folder / f"{name}.py").write_text(content)

    def train(*words: str) -> "subprocess.CompletedProcess[str]":
        command = ["train", "--task", "countdown", "--output", str(tmp_path / "run"), "rollout.engine=echo", *words]
        command += ["run.steps=1", "data.prompts_per_step=2", "rollout.group_size=2", "eval.num_problems=2"]
        command += ["run.device=cpu", "rollout.max_completion_tokens=8"]
        full = [sys.executable, "-c", COMMAND, str(folder.parent), *command]
        return subprocess.run(full, capture_output=True, text=True, check=False)

    refused = train("rollout.max_async_level=1")
    assert "rollout.max_async_level=1 is more than rollout.engine='echo' can sample ahead" in refused.stderr
    assert "vllm.timeout=9.0 has no effect: rollout.engine='echo' has no such setting" in train("vllm.timeout=9").stderr
    trained = train()
    assert trained.returncode == 0, trained.stderr
    (_, row) = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    assert row["response_length/mean"] == 8
