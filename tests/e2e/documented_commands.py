"""Checks a command of the documentation that a test cannot run: its options exist and its settings are taken.

Such a command needs a GPU, a cluster, a network, another package, or minutes.
"""

import json
import re
import shlex
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from tests.dummy_runs import write_run
from tinyzero_sdk import load_task
from tinyzero_sdk.cli.app import build_app
from tinyzero_sdk.scoring.score_file import score_file
from tinyzero_trainer.kinds import find_engine

ROOT = Path(__file__).parents[2]
ANY_MODEL = re.compile(r"(?<=--model )\S+|(?<=model\.teacher=)\S+")
STOPS = [  # where a command has read its settings, and looks at the machine, loads a model or calls an endpoint
    "tinyzero_trainer.cli.start.imported",
    "tinyzero_trainer.cli.doctor._look",
    "tinyzero_trainer.advisor.target_gpu.choose_target",
    "tinyzero_trainer.executors.ray.cluster.ask_gpu_node",
    "tinyzero_sdk.evaluation.evaluate.evaluate",
    "tinyzero_trainer.sft.default_model.DefaultModel.settle",
    "tinyzero_sdk.report.server.make_server",
]


class _Accepted(Exception):
    pass


NOT_RUN = re.compile(
    r"(make|pip|sbatch|kubectl|ray|inspect|python benchmarks/|python -m verl|pytest --tinyzero-task"
    r"|tinyzero (train|sft|warmstart|replay|eval|doctor|plan|view))\b"
)
ELSEWHERE = re.compile(r"--(resume|config)\b|^tinyzero replay\b| rg\b|gsm8k(?!.* task.source=synthetic)")
"""Needs a run that is not here, another package, or the Hugging Face Hub: the options alone are checked."""


def is_run(command: str) -> bool:
    """Whether a test runs the command, rather than `check` it."""
    return not NOT_RUN.match(command) and not (command.startswith("tinyzero") and ELSEWHERE.search(command))


def split(code: str) -> list[str]:
    """The commands of a console block; in one with `$ command` lines, the others are output."""
    lines = code.replace("\\\n", " ").splitlines()
    typed = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return [line for line in typed or lines if line.strip() and not line.startswith("#")]


def make_runs(directory: Path) -> None:
    """The runs and evaluations that commands of the documentation name, and that would take minutes to make."""
    for name in ("mine", "other", "grpo", "dapo"):
        write_run(directory / "runs" / name, steps=20, completions=400)
    (directory / "runs/mine/checkpoints/step_20").mkdir(parents=True)
    truth = {"target": 48, "numbers": [3, 7, 12]}
    for name, answer in (("mine.parquet", "(7 - 3) * 12"), ("other.parquet", "7 + 3")):
        row = {"completion": f"<answer>{answer}</answer>", "ground_truth": truth}
        (directory / "rows.jsonl").write_text(json.dumps(row), encoding="utf-8")
        score_file(load_task("countdown"), directory / "rows.jsonl", directory / name)


def check(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the command; an AssertionError or a TinyZeroError says what is wrong."""
    program, *words = shlex.split(command.replace("…", "").partition(" > ")[0], comments=True)
    if program == "tinyzero":
        _check_ours(words, command, monkeypatch)
    elif program == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert set(words) - {word for word in words if "=" in word} <= set(targets), command
    elif program == "pip":
        _check_packages(words[1:], command)
    elif program == "python" and words[0].startswith("benchmarks/"):
        text = (ROOT / words[0]).read_text(encoding="utf-8")
        for option in re.findall(r"(?<= )--[a-z-]+", command):
            assert option in text or option[2:].replace("-", "_") in text, f"{words[0]} has no {option}"


def _check_ours(words: list[str], command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "--endpoint" not in words:
        typed = command.partition(" > ")[0]
        typed = re.sub(r"(?<=--output )runs/", "new/", typed)  # for `make_runs` may have made it
        words = shlex.split(ANY_MODEL.sub("tiny", typed), comments=True)[1:]
        if words[0] == "eval" and "--task" not in words:  # else it is the task of the model's run
            words += ["--task", "countdown"]
    if "default_model." in command:
        monkeypatch.setattr("tinyzero_trainer.hardware.nvml.sees_gpu", lambda device: True)
    if "vllm" in command and words[0] == "train":
        installed = replace(find_engine("vllm"), require_installed=lambda: None)
        monkeypatch.setattr(
            "tinyzero_trainer.config.rollout.find_engine",
            lambda name: installed if name == installed.name else find_engine(name),
        )
    monkeypatch.setattr("tinyzero_trainer.executors.ray.cluster.check_address", lambda address: None)

    def stop(*args: object, **kwargs: object) -> None:
        raise _Accepted

    for place in STOPS:
        monkeypatch.setattr(place, stop)
    ours = typer.main.get_command(build_app())
    if "--endpoint" not in words and ELSEWHERE.search(command):
        ours.commands[words[0]].make_context(words[0], words[1:])
        return
    with pytest.raises((_Accepted, typer.Exit)):
        ours.main(words, standalone_mode=False)


def _check_packages(words: list[str], command: str) -> None:
    """Each of our distributions is in the repository, and has the extras that are named."""
    projects = [tomllib.loads(path.read_text(encoding="utf-8"))["project"] for path in ROOT.rglob("pyproject.toml")]
    extras = {project["name"]: set(project.get("optional-dependencies", ())) for project in projects}
    for word in words:
        name, _, named = word.removesuffix("]").partition("[")
        if name.startswith("tinyzero-"):
            assert set(filter(None, named.split(","))) <= extras[name], command
