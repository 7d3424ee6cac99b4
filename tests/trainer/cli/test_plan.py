"""`tinyzero plan`, as it is typed: what it prints, in text and as JSON."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.advisor.planned import HALF_B
from tests.trainer.configurations import call
from tinyzero_trainer.advisor import target_gpu as target
from tinyzero_trainer.cli import plan_report
from tinyzero_trainer.distributed.sizes import usable
from tinyzero_trainer.hardware.gpu import GIB, Driver, GpuInfo
from tinyzero_trainer.rollout.sizes import GB


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "nvidia_driver", lambda: None)


SEVEN_B = "Qwen/Qwen2.5-7B"
PPO = ("--task", "countdown", "--model", HALF_B, "--recipe", "tinyzero-ppo", "rollout.engine=vllm")
APART = f"--task countdown --model {SEVEN_B} --gpus 4 --gpu H200 --address 10.0.0.1:6379 rollout.num_engines=1"
APART = (*APART.split(), "rollout.engine=vllm")


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr, each in one line."""
    code, out, err = call(capsys, "plan", *words)
    return code, " ".join(out.split()), " ".join(err.split())


def as_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    return json.loads(call(capsys, "plan", *words, "--json")[1])


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_report.stdout, "_width", 80)


def test_without_a_model_it_plans_the_one_that_train_makes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--task", "countdown", "--gpu", "H200")
    found = as_json(capsys, *words)
    assert found["model"]["parameters"] == 9_926_784
    assert found["work"]["completions"] == 128 * 16
    smaller = as_json(capsys, *words, "default_model.layers=4", "data.prompts_per_step=8")
    assert smaller["model"]["layers"] == 4
    assert smaller["work"]["completions"] == 8 * 16
    assert as_json(capsys, *words, "--model", "tiny")["model"]["parameters"] == 653_824


@pytest.mark.slow
def test_what_others_hold_of_the_gpu_that_is_here_is_planned_around(capsys, monkeypatch):

    def planned(taken: int, *more: str) -> tuple[int, str]:
        gpu = GpuInfo(0, "NVIDIA GeForce RTX 4090", (8, 9), 24 * GIB, used=taken, uuid="a")
        monkeypatch.setattr(target, "nvidia_driver", lambda: Driver(gpus=(gpu,)))
        return call(capsys, "plan", "--task", "countdown", "--model", HALF_B, *more)[:2]

    monkeypatch.setattr(plan_report.stdout, "_width", 80)
    line = "NVIDIA GeForce RTX 4090: 24.0 GiB, 9.0 GiB of it in use by other processes"
    code, out = planned(9 * GIB)
    assert (code, line in out.splitlines()) == (0, True)
    assert ", of 15.0 GiB; " in out
    assert max(len(line) for line in out.splitlines() if "=" not in line) <= 80
    assert "other processes" not in planned(2**20)[1]
    assert planned(23 * GIB)[0] == 1
    found = json.loads(planned(9 * GIB, "--json")[1])
    assert found["gpu"]["in_use"] == 9 * GIB
    assert found["gpu"]["usable"] == usable(15 * GIB) >= found["proposed"]["peak"]


@pytest.mark.usefixtures("narrow")
def test_the_page_has_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs/training/plan.md").read_text()
    example = page.partition("$ tinyzero plan --task countdown --model Qwen/Qwen2.5-7B --gpus")[2].partition("```")[0]
    typed, printed = example.replace("\\\n", " ").split("\n", 1)
    words = typed.split()
    out = call(capsys, "plan", "--task", "countdown", "--model", SEVEN_B, "--gpus", *words)[1]
    lines = [line.rstrip() for line in out.splitlines()]
    assert "\n".join(lines).strip() in printed


def test_json_has_each_type_of_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, *APART)
    assert [(one["gpu"], one["count"]) for one in found["gpus"]] == [("rank", 3), ("engine", 1)]
    assert found["proposed"]["peak"] == max(one["peak"] for one in found["gpus"])


@pytest.mark.slow
def test_the_plan_says_that_vllm_has_no_room_for_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "--gpu", "A100", "--model", "Qwen/Qwen2.5-1.5B", "rollout.engine=vllm")
    code, out, _ = call(capsys, *words, "vllm.gpu_memory_gb=1")
    out = " ".join(out.split())
    assert "vllm.gpu_memory_gb=1 is too small: weights, workspaces and one sequence are predicted to take " in out
    assert "the requested settings fit" not in out
    line = out.partition("to add to the command: ")[2]
    assert line.count("vllm.gpu_memory_gb=") == 1
    assert code == 0
    assert "micro_batch_tokens" not in line  # nothing else is amiss
    again = [word for word in line.split() if word.startswith("vllm.")]
    out = call(capsys, *words, *again)[1]
    assert "too small" not in out
    assert 3.1 * GB < as_json(capsys, *words[1:], "vllm.gpu_memory_gb=1")["vllm_needs"] < 10 * GB
    assert as_json(capsys, *words[1:], *again)["vllm_needs"] == 0


@pytest.mark.slow
def test_supervised_fine_tuning_is_planned_too(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--sft", "--model", SEVEN_B, "data.path=FILE", "data.batch_size=32", "lora.rank=8", "--gpu", "H100")
    assert "32 examples a step, of 256 + 256 tokens" in plan(capsys, *words)[1]
    found = as_json(capsys, *words)
    assert found["fits"]
    assert set(found["speed"]["seconds"]) == {"update_actor"}
    code, out, _ = plan(capsys, *words[:-3], "--gpu", "L4", "memory.cpu_offload=none")
    assert (code, "to add to the command: " in out) == (0, True)
    assert "a new decoder: 653,824 parameters" in plan(capsys, "--sft", "--gpu", "L4")[1]


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "this machine has no NVIDIA GPU to plan for"),
        ("--gpu GTX1080", "--gpu 'GTX1080' is not known"),
        ("--gpu-memory much", "--gpu-memory 'much' is not a size"),
        ("--gpu-memory 24GB rollout.num_engines=1", "has no such setting"),
        ("--gpu H200 --sft --recipe tinyzero-ppo", "is for reinforcement learning, and --sft plans none; leave out"),
        ("run.device=cpu", "run.device=cpu uses no GPU, and a plan is for GPUs; leave it out"),
        ("--gpu H200 --gpus 0", "a run on Ray with ray.gpus=0 uses no GPU, and a plan is for GPUs; give --gpus N"),
        ("--gpu H200 --gpus 4 parallel.dp_replicate=3", "parallel.dp_replicate=3 does not divide the 4 ranks"),
        ("--gpu H200 --gpus 8 parallel.sequence_parallel=8", "does not divide the model's 14 attention heads"),
        ("--gpu H200 rollout.engine=vllm vllm.tensor_parallel=2", "takes 2 GPUs, and the plan is for one; give"),
        (
            "--gpu A100 rollout.engine=torch rollout.quantization=fp8",
            "rollout.quantization=fp8 with rollout.engine=torch needs a GPU of compute "
            "capability 8.9 or more (Ada, Hopper), and the A100 has 8.0; leave it out",
        ),
        ("--gpu T4 --sft model.float8=rowwise", "model.float8=rowwise needs a GPU of compute capability 8.9"),
    ],
)
def test_wrong_use_is_refused_in_one_line(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "plan", "--model", HALF_B, *words.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert len(err) < 420


FP8 = "rollout.engine=torch rollout.quantization=fp8 rollout.kv_cache_dtype=fp8"


@pytest.mark.parametrize(
    ("words", "planned"),
    [
        (f"--gpu L4 {FP8}", True),
        ("--gpu A100 rollout.engine=vllm rollout.kv_cache_dtype=fp8", True),
        (FP8, False),
        (f"--gpu-memory 24GB {FP8}", True),  # of another GPU than the one that is here
        (f"--gpus 2 --address 10.0.0.1:6379 {FP8}", True),
    ],
)
def test_fp8_is_planned_unless_the_gpu_is_known_to_have_none(
    words: str, planned: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = GpuInfo(0, "NVIDIA GeForce RTX 3060", (8, 6), 12 * GIB, uuid="a")
    monkeypatch.setattr(target, "nvidia_driver", lambda: Driver(gpus=(here,)))
    code, _, err = call(capsys, "plan", "--model", HALF_B, *words.split())
    assert (code != 2, "the RTX 3060 has 8.6; leave it out" in err) == (planned, not planned)


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
