"""What an executor declares of itself, and what it takes to add one."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.runs import lines
from tinyzero_trainer.kinds import EXECUTOR_PACKAGE, find_executor, kind_names

KIND = """
from tinyzero_trainer.kinds import ExecutorKind

KIND = ExecutorKind(name="spoken", build="tinyzero_trainer.executors.spoken.build")
"""
BUILD = """
from tinyzero_trainer.executors.local.build import build_workers as build_locally


def build_workers(config, tasks, device, *, display, **given):
    display.log(f"spoken: {config.run.executor}")
    return build_locally(config, tasks, device, display=display, **given)
"""
TRAIN = """
import sys
import tinyzero_trainer.executors

tinyzero_trainer.executors.__path__.append(sys.argv.pop(1))
from tinyzero_sdk.cli import main

main(sys.argv[1:])
"""


@pytest.mark.parametrize("name", kind_names(EXECUTOR_PACKAGE))
def test_a_folder_holds_the_executor_of_its_name(name: str) -> None:
    assert find_executor(name).name == name


@pytest.mark.nightly(reason="runs with an executor in a folder of its own; every change tests the executors there are")
def test_a_new_executor_is_a_folder_of_two_files(toy_task: str, warm_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "executors/spoken"
    folder.mkdir(parents=True)
    (folder / "kind.py").write_text(KIND)
    (folder / "build.py").write_text(BUILD)
    words = ["train", "--task", toy_task, "--model", str(warm_model), "--output", str(tmp_path / "run")]
    words += ["run.executor=spoken", "run.device=cpu", "run.steps=1", "data.prompt_template=base", "task.limit=5"]
    words += ["data.test_fraction=0.4", "rollout.max_completion_tokens=4", "eval.num_problems=2"]
    command = [sys.executable, "-c", TRAIN, str(folder.parent), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "spoken: spoken" in done.stderr
    assert [line["step"] for line in lines(tmp_path / "run")] == [0, 1]
    refused = subprocess.run([*command, "ray.gpus=1"], capture_output=True, text=True, check=False)
    assert "run.executor='spoken' has no such setting; give --gpus N" in refused.stderr
