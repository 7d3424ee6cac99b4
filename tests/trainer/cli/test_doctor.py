"""`tinyzero doctor`: settings in, findings out. The findings themselves are tested in tests/trainer/doctor."""

import json
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from tests.trainer.doctor.machines import (
    ADDRESS,
    CU124,
    GIB,
    NODE,
    OTHER,
    RTX_5090,
    SEVEN_B,
    TRANSFORMERS,
    VERSIONS,
    eight_gpu_nodes,
    facts_of,
    machine,
    reporting,
    with_ray,
)
from tests.trainer.doctor.test_findings import VLLM_PACKAGE as VLLM
from tinyzero_sdk.cli import main
from tinyzero_trainer.cli import doctor as command
from tinyzero_trainer.config import AlgorithmConfig, ModelConfig, TrainConfig
from tinyzero_trainer.doctor import cluster_probe, probe
from tinyzero_trainer.doctor.facts import Facts, Folder, Requirements

BAD = facts_of(
    RTX_5090,
    archs=CU124,
    machine=machine(shared_memory=64 * 2**20, cores=2, container=True),
    packages=(VLLM, TRANSFORMERS),
    output=Folder("runs/of-a-long-name-that-nobody-would-type-twice", GIB),
    model=SEVEN_B,
)


def run(facts: Facts, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(command.stdout, "_width", 80)
    monkeypatch.setattr(probe, "look", lambda *_, **__: facts)
    monkeypatch.setattr(cluster_probe, "look_at_ray", lambda *_, **__: facts.ray)
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *words])
    return int(ended.value.code or 0)


def test_eighty_columns_and_an_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(BAD, monkeypatch, "--output", "runs") == 1
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "  pip install --force-reinstall torch -i https://download.pytorch.org/whl/cu130" in lines
    assert lines[-1] == "2 errors, 2 warnings"
    cluster = with_ray(
        NODE, reporting(OTHER, packages=VERSIONS | {"torch": "2.11.0"}, directory="missing", shared_memory=2**26)
    )
    assert run(cluster, monkeypatch, "--address", ADDRESS, "--gpus", "32") == 1
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "  pip install 'torch==2.13.0+cu130'" in lines
    assert lines[-1] == "4 errors"
    assert run(facts_of(), monkeypatch) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "no problems found"


def test_the_report_is_markdown_that_does_not_name_the_user(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", "/home/you")
    assert run(replace(BAD, output=Folder("/home/you/runs", GIB)), monkeypatch, "--report") == 1
    printed = capsys.readouterr().out
    assert printed.startswith("- Python ")
    assert f"tinyzero-sdk {version('tinyzero-sdk')}, " in printed
    assert f"{VLLM.name} {VLLM.version}" in printed
    assert RTX_5090.name in printed.splitlines()[0]
    assert "\n```text\n" in printed
    assert "error   gpu 0: " in printed
    assert " ~/runs" in printed
    assert "/home/you" not in printed


@pytest.mark.parametrize("home", ["/", None])
def test_a_report_without_a_home_directory_keeps_its_paths(
    home: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.path.expanduser", lambda path: home or path)
    assert run(replace(BAD, output=Folder("/data/runs", GIB)), monkeypatch, "--report") == 1
    assert " /data/runs" in capsys.readouterr().out


def test_what_a_configuration_requires() -> None:
    config = TrainConfig(algorithm=AlgorithmConfig(advantage_estimator="gae", kl_coefficient=0.001))
    assert command.requirements_of(config) == Requirements(trained_models=2, frozen_models=1, names_model=False)
    assert command.requirements_of(TrainConfig(model=ModelConfig(path="tiny"))) == Requirements()


def test_flags_are_those_of_train(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    facts = with_ray(*eight_gpu_nodes(8, 8))
    words = ["--address", ADDRESS, "--gpus", "16", "run.task=countdown", "rollout.engine=vllm"]
    run(facts, monkeypatch, "--json", *words, "rollout.num_engines=2", "vllm.tensor_parallel=4")
    printed = json.loads(capsys.readouterr().out)
    [layout] = [finding for finding in printed["findings"] if finding["check"] == "layout"]
    assert layout["what"].startswith("8 ranks and 2 engines of 4 GPUs take 16 GPUs and 10 CPUs")
    assert [node["gpus_free"] for node in printed["facts"]["ray"]["nodes"]] == [8, 8]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reward.num_wrokers=9"], "reward.num_workers"),
        (["run.device=cuda:x"], "give auto, cpu, cuda or cuda:N"),
        (["--model", "./nowhere"], "there is no directory ./nowhere"),
        (["--gpus", "16", "rollout.num_engines=16"], "of ray.gpus=16"),
        (["--address", ADDRESS, f"ray.address={ADDRESS}"], "given twice"),
    ],
)
def test_what_train_would_refuse_is_refused(words, message, monkeypatch, capsys):
    assert run(BAD, monkeypatch, *words) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_the_guide_shows_the_output(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--gpus 16 rollout.engine=vllm rollout.num_engines=1 vllm.tensor_parallel=4"
    guide = (Path(__file__).parents[3] / "docs/training/doctor.md").read_text(encoding="utf-8")
    assert f"\n$ tinyzero doctor --address auto {words}\n" in guide
    run(with_ray(*eight_gpu_nodes(8, 4)), monkeypatch, "--address", ADDRESS, *words.split())
    shown = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    sample = shown[next(number for number, line in enumerate(shown) if " layout " in line) : -1]
    assert "\n".join(sample) in guide


@pytest.mark.slow
def test_this_machine(tmp_path: Path) -> None:
    code = "import sys; from tinyzero_sdk.cli import main; main(sys.argv[1:])"
    arguments = ["doctor", "--json", "run.device=cpu", "--output", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    printed = json.loads(done.stdout)
    levels = {finding["check"]: finding["level"] for finding in printed["findings"]}
    assert (printed["facts"]["torch"]["version"], levels["torch"]) == (torch.__version__, "ok")
    assert levels["model"] == "ok"
    assert printed["facts"]["machine"]["cores"] >= 1
    assert done.returncode == (0 if printed["ok"] else 1)
    assert done.stderr == ""
