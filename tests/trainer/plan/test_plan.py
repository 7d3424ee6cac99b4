"""`tinyzero plan`, as it is typed: what it says, in words and as JSON."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.configurations import call
from tests.trainer.plan.planned import HALF_B, PUBLISHED
from tinyzero_trainer.estimate.fit import usable
from tinyzero_trainer.hardware.gpu import GIB, Driver, GpuInfo
from tinyzero_trainer.plan import target_gpu as target


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "nvidia_driver", lambda: None)
    monkeypatch.setattr(target, "visible_gpus", lambda: None)


PPO = ("--task", "countdown", "--model", HALF_B, "--recipe", "tinyzero-ppo", "rollout.engine=vllm")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        (*PPO, "--gpu", "RTX 4090"),
        (
            "--model",
            "Qwen/Qwen2.5-7B",
            "--gpu",
            "H200",
            "algorithm.advantage_estimator=gae",
            "algorithm.kl_coefficient=0.1",
        ),
        ("--model", "Qwen/Qwen2.5-7B", "--gpu-memory", "8GB"),
    ],
)
def test_eighty_columns(words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    from tinyzero_trainer.cli import plan_report as view

    monkeypatch.setattr(view.stdout, "_width", 80)
    code, out, _ = call(capsys, "plan", *words)
    assert max(len(line) for line in out.splitlines() if not line.startswith("tinyzero train")) <= 80
    assert code == (1 if "8GB" in words else 0)
    assert ("to train with them:" in out) == (code == 0)


def test_without_a_model_it_plans_the_one_that_train_makes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--task", "countdown", "--gpu", "H200", "--json")
    found = json.loads(call(capsys, "plan", *words)[1])
    assert found["model"]["parameters"] == 9_926_784
    assert found["work"]["completions"] == 128 * 16
    smaller = json.loads(call(capsys, "plan", *words, "default_model.layers=4", "data.prompts_per_step=8")[1])
    assert smaller["model"]["layers"] == 4
    assert smaller["work"]["completions"] == 8 * 16
    assert json.loads(call(capsys, "plan", *words, "--model", "tiny")[1])["model"]["parameters"] == 653_824


def test_what_to_type_is_what_was_typed_and_what_is_proposed(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*PPO, "optimizer.micro_batch_tokens=65536", "task.numbers=[3, 4]", "--gpu", "4090")
    out = call(capsys, "plan", *words)[1]
    [line] = [line for line in out.splitlines() if line.startswith("tinyzero train")]
    assert line.startswith(
        f"tinyzero train --task countdown --model {HALF_B} --recipe tinyzero-ppo rollout.engine=vllm"
    )
    assert "'task.numbers=[3, 4]'" in line
    assert line.count("optimizer.micro_batch_tokens=") == 1
    assert "micro_batch_tokens=65536" not in line
    assert " vllm.gpu_memory_gb=" in line
    assert " vllm.sleep_mode=true" in line


@pytest.mark.slow
def test_what_others_hold_of_the_gpu_that_is_here_is_planned_around(
    capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    from tinyzero_trainer.cli import plan_report as view

    def planned(taken: int, *more: str) -> tuple[int, str]:
        gpu = GpuInfo(0, "NVIDIA GeForce RTX 4090", (8, 9), 24 * GIB, used=taken, uuid="a")
        monkeypatch.setattr(target, "nvidia_driver", lambda: Driver(gpus=(gpu,)))
        monkeypatch.setattr(target, "visible_gpus", lambda: (gpu,))
        return call(capsys, "plan", "--task", "countdown", "--model", HALF_B, *more)[:2]

    monkeypatch.setattr(view.stdout, "_width", 80)
    line = "NVIDIA GeForce RTX 4090: 24.0 GiB, 9.0 GiB of it in use by other processes"
    code, out = planned(9 * GIB)
    assert (code, line in out.splitlines()) == (0, True)
    assert ", of 15.0 GiB; " in out
    assert max(len(line) for line in out.splitlines() if not line.startswith("tinyzero train")) <= 80
    assert "other processes" not in planned(2**20)[1]
    assert planned(23 * GIB)[0] == 1
    found = json.loads(planned(9 * GIB, "--json")[1])
    assert found["gpu"]["in_use"] == 9 * GIB
    assert found["gpu"]["usable"] == usable(15 * GIB) >= found["proposed"]["peak"]


def test_json_holds_all_that_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(call(capsys, "plan", *PPO, "--gpu", "RTX 4090", "--json")[1])
    assert found["model"]["parameters"] == PUBLISHED[HALF_B]
    assert found["gpu"] == {"name": "RTX 4090", "memory": 24 * GIB, "in_use": 0, "usable": usable(24 * GIB)}
    names = [phase["phase"] for phase in found["proposed"]["phases"]]
    assert names == ["gen", "old_log_prob", "ref", "values", "update_critic", "update_actor", "update_weights"]
    assert max(phase["total"] for phase in found["proposed"]["phases"]) == found["proposed"]["peak"]
    assert found["speed"]["step"] == pytest.approx(sum(found["speed"]["seconds"].values()))
    assert {change["key"] for change in found["changes"]} == {word.split("=")[0] for word in found["overrides"].split()}


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "this machine has no NVIDIA GPU to plan for"),
        (("--gpu", "GTX 1080"), "--gpu 'GTX 1080' is not known"),
        (("--gpu-memory", "much"), "--gpu-memory 'much' is not a size"),
        (("--gpu-memory", "24GB", "optimizer.micro_batch_token=3"), "optimizer.micro_batch_tokens"),
        (("--gpu-memory", "24GB", "vllm.sleep_mode=true"), "has no effect"),
        (("--gpu-memory", "24GB", "--model", "./nowhere"), "there is no directory ./nowhere"),
        (("--gpu-memory", "24GB", "--recipe", "grpoo"), "no recipe 'grpoo'"),
    ],
)
def test_wrong_use_is_refused(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "plan", *words)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.slow
def test_a_local_model_is_planned_without_torch(toy_model_path: Path) -> None:
    code = (
        "import sys; from tinyzero_sdk.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    words = ["plan", "--model", str(toy_model_path), "--gpu-memory", "8GB", "rollout.engine=vllm"]
    words += ["rollout.max_completion_tokens=32", "--prompt-tokens", "32"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert "GiB in phase" in done.stdout
    assert not {"torch", "transformers", "numpy", "pyarrow"} & set(done.stderr.split())
