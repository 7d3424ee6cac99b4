"""What `tinyzero train` says of a run that will not fit, before it starts and when memory runs out."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.advisor.planned import (
    GRPO,
    GRPO_1024,
    HALF_B,
    MODELS,
    SETTINGS,
    SEVEN_B,
    SPECS,
    TYPED,
    config_of,
    on,
    target_of,
)
from tests.trainer.configurations import call
from tinyzero_sdk.settings import flatten, parse_overrides
from tinyzero_trainer.advisor import advice, target_gpu
from tinyzero_trainer.advisor.fit import settle
from tinyzero_trainer.advisor.memory import predict_memory
from tinyzero_trainer.advisor.plan import make_plan
from tinyzero_trainer.advisor.target_gpu import TargetGpu
from tinyzero_trainer.cli import oom_advice
from tinyzero_trainer.config import SftConfig, TrainConfig
from tinyzero_trainer.config.settings import resumable, with_settings
from tinyzero_trainer.distributed.sizes import usable
from tinyzero_trainer.hardware.gpu import GIB
from tinyzero_trainer.utils.oom import OutOfMemoryError

RTX_4090 = target_of("RTX 4090")
LARGER, VLLM = "Qwen/Qwen2.5-1.5B", "rollout.engine=vllm"


@pytest.fixture
def small_gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine with one GPU, which a test may make smaller."""
    gpu = SimpleNamespace(target=RTX_4090)
    for module in (advice, target_gpu):
        monkeypatch.setattr(module, "present_gpu", lambda device: None if device == "cpu" else gpu.target)
    return gpu


@pytest.mark.slow
def test_train_warns_of_a_run_that_will_not_fit_and_starts_it(
    toy_task: str, toy_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_gpu: SimpleNamespace,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from tinyzero_trainer.controller import loop

    started = []
    monkeypatch.setattr(loop, "train", lambda config, **_: started.append(config))

    def warnings(target: TargetGpu | None, *words: str) -> list[str]:
        small_gpu.target = target
        arguments = ["--task", toy_task, "--model", str(toy_model_path), "--output", str(tmp_path / "run")]
        arguments += ["data.prompts_per_step=512", "rollout.max_completion_tokens=192", *words]
        code, _, err = call(capsys, "train", *arguments)
        assert code == 0
        is_known = target is not None and started[-1].optimizer.micro_batch_tokens != "auto"
        chosen = [line for line in err.splitlines() if line.startswith("auto: ")]
        assert any(" optimizer.micro_batch_tokens=" in line for line in chosen) == is_known
        return [line for line in err.splitlines() if line.startswith("warning:")]

    small = TargetGpu("a small GPU", GIB // 2, None)
    [line] = warnings(small)
    assert "a small GPU has 0.5 GiB" in line
    assert "details: tinyzero plan" in line
    [line] = warnings(small, "--gpus", "2")
    assert "GiB on each GPU, and a small GPU has 0.5 GiB" in line
    assert not warnings(RTX_4090)
    assert not warnings(None)
    assert not warnings(small, "run.device=cpu")
    assert not warnings(small, "run.executor=ray", "parallel.world_size=2")
    sizes = [config.optimizer.micro_batch_tokens for config in started]
    assert [size == "auto" for size in sizes] == [False, False, False, True, True, True]


@pytest.mark.slow
def test_sft_warns_too_and_tells_what_it_chooses(
    toy_task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_gpu: SimpleNamespace,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Of a decoder that does not exist yet as well."""
    from tinyzero_trainer.sft import train as sft

    started: list[SftConfig] = []
    monkeypatch.setattr(sft, "fine_tune", lambda config, **_: started.append(config))
    words = ["--task", toy_task, "--output", str(tmp_path / "run"), "new_model.hidden_size=4096", "new_model.layers=32"]
    code, _, fits = call(capsys, "sft", *words, "lora.rank=8")
    assert code == 0
    chosen = started[0].optimizer.micro_batch_tokens
    assert f" optimizer.micro_batch_tokens={chosen} " in fits
    assert "warning" not in fits
    code, _, err = call(capsys, "sft", *words, "memory.cpu_offload=none")
    warned = err[err.index("warning: ") :].splitlines()[0]
    assert warned.startswith("warning: update_actor is predicted to take ")
    assert "; give " in warned
    assert warned.endswith("(details: tinyzero plan --sft)")


def test_the_warning_names_the_settings_to_give(small_gpu: SimpleNamespace) -> None:
    words = (*GRPO_1024, "algorithm.kl_coefficient=0.001")
    assert advice.warning(config_of(*words)) is None  # what is left to the run fits
    found = advice.warning(config_of(*words, *TYPED)) or ""
    assert found.startswith("update_actor is predicted to take ")
    named = [word for word in found.split() if "=" in word]
    assert advice.warning(config_of(*words, *named)) is None
    assert "\n" not in found


@pytest.mark.usefixtures("small_gpu")
def test_there_is_no_warning_of_a_model_that_cannot_be_found() -> None:
    unknown = config_of(model="nobody/nothing")
    assert advice.warning(unknown) is None
    assert advice.after_out_of_memory(unknown, ["gen"]) == "rollout.max_num_seqs=512"
    assert advice.after_out_of_memory(unknown, ["update_actor"]) == "optimizer.micro_batch_tokens=8192"
    assert advice.after_out_of_memory(unknown, [advice.LOADING]) == "memory.cpu_offload=idle"


def test_the_order_of_what_is_tried() -> None:
    config = config_of("rollout.engine=vllm", "vllm.sleep_mode=false", "vllm.gpu_memory_gb=30")
    assert [next(iter(change)) for change in advice.candidate_changes(config)] == [
        *("vllm.sleep_mode", "rollout.max_num_seqs", "optimizer.micro_batch_tokens", "memory.cpu_offload"),
        *("memory.activation_checkpointing", "memory.cpu_offload", "lora.rank"),
    ]


def test_out_of_memory_names_the_next_setting_of_that_phase(small_gpu: SimpleNamespace) -> None:
    small_gpu.target = TargetGpu("NVIDIA H200", 140 * GIB, None)  # where it was planned to fit
    config = config_of("rollout.max_completion_tokens=1024", "rollout.max_num_seqs=256")
    assert advice.after_out_of_memory(config, ["update_actor"]) == "optimizer.micro_batch_tokens=8192"
    assert advice.after_out_of_memory(config, ["gen"]) == "rollout.max_num_seqs=128"
    values = {"optimizer.micro_batch_tokens": 2048}
    named = []
    while words := advice.after_out_of_memory(with_settings(config, values), ["update_actor"]):
        key, _, value = words.partition("=")
        named.append(words)
        values[key] = {"true": True}.get(value, value)
    assert named == ["memory.cpu_offload=idle", "memory.activation_checkpointing=true", "memory.cpu_offload=always"]


def test_where_resuming_cannot_help_a_new_run_may(small_gpu: SimpleNamespace, tmp_path: Path) -> None:
    small_gpu.target = TargetGpu("NVIDIA H200", 140 * GIB, None)
    (tmp_path / "checkpoints" / "step_1").mkdir(parents=True)
    spare = ["memory.cpu_offload=always", "memory.activation_checkpointing=true", "optimizer.micro_batch_tokens=1024"]
    config = config_of(f"run.output={tmp_path}", *GRPO_1024, *spare)
    line = oom_advice.advice_for(OutOfMemoryError("the weights were updated"), config)
    words = line.partition("no setting that --resume may change helps: start a run in another --output with ")[2]
    assert words.startswith("lora.rank=32 optimizer.learning_rate=1e-05, or take a smaller model or a GPU")


@pytest.mark.slow
@pytest.mark.usefixtures("small_gpu")
def test_vllm_is_given_less_where_it_is_what_memory_ran_out_for() -> None:
    config = config_of("rollout.engine=vllm", "vllm.gpu_memory_gb=10", "vllm.sleep_mode=true")
    assert advice.after_out_of_memory(config, ["gen"]) == "vllm.gpu_memory_gb=8.0"


@pytest.mark.slow
@given(MODELS, SETTINGS, st.sampled_from(["gen", "update_actor", "update_weights"]), st.sampled_from([None, RTX_4090]))
@settings(max_examples=30, deadline=None)
def test_all_advice_after_out_of_memory_lowers_that_phase(
    name: str, values: dict[str, Any], phase: str, gpu: TargetGpu | None
) -> None:
    config = with_settings(TrainConfig(), {**values, "model.path": name, "run.device": "cuda"})
    target = gpu or TargetGpu("a large GPU", 1000 * GIB, None)
    words = advice.after_out_of_memory(config, [phase], target)
    if not words:
        return
    limit = usable(target.memory)
    known = settle(SPECS[name], config, limit)
    changes = dict(flatten(parse_overrides(words.split())))
    assert changes.keys() <= resumable(TrainConfig)
    before, after = (
        {found.name: found.total for found in predict_memory(SPECS[name], chosen).phases}[phase]
        for chosen in (known, with_settings(known, changes))
    )
    assert after < before


def test_what_others_hold_of_the_gpu_is_counted_and_named() -> None:
    config, spec = config_of(*GRPO_1024, *TYPED), SPECS[HALF_B]
    assert advice.warning_for(spec, config, TargetGpu("a GPU", 48 * GIB, None)) is None
    found = advice.warning_for(spec, config, TargetGpu("a GPU", 48 * GIB, None, in_use=42 * GIB)) or ""
    assert "and a GPU has 48.0 GiB, 42.0 GiB of it in use by other processes; give " in found
    assert found.endswith(", or end the other processes on it")
    named = [word.rstrip(",") for word in found.split() if "=" in word]
    assert make_plan(spec, config_of(*GRPO_1024, *named), 6 * GIB).fits
    small = advice.warning_for(spec, config, TargetGpu("a GPU", 4 * GIB, None, in_use=20 * 2**20)) or "other processes"
    assert "other processes" not in small


def test_after_a_run_ran_out_of_memory_what_is_in_use_is_its_own(small_gpu: SimpleNamespace) -> None:
    small_gpu.target = TargetGpu("NVIDIA H200", 140 * GIB, None, in_use=139 * GIB)
    config = config_of("rollout.max_completion_tokens=1024", "rollout.max_num_seqs=256", "memory.cpu_offload=idle")
    assert advice.after_out_of_memory(config, ["gen"]) == "rollout.max_num_seqs=128"


def test_train_warns_of_memory_that_the_machine_has_not() -> None:
    spec, config = SPECS[SEVEN_B], config_of("memory.cpu_offload=always", *GRPO, model=SEVEN_B)
    assert advice.warning_for(spec, config, TargetGpu("a GPU", 140 * GIB, None, 256 * GIB)) is None
    found = advice.warning_for(spec, config, TargetGpu("a GPU", 140 * GIB, None, 64 * GIB)) or ""
    assert "113.5 GiB in host memory, which has 64.0 GiB" in found


def test_the_warning_names_the_kind_of_gpu_and_settings_that_fit() -> None:
    spec = SPECS[SEVEN_B]
    config = on(config_of(*GRPO_1024, *TYPED, model=SEVEN_B), 4, rollout__num_engines=1)
    found = advice.warning_for(spec, config, target_of("H100")) or ""
    assert "update_actor is predicted to take " in found
    assert " GiB on a rank's GPU, and H100 has 79.6 GiB" in found
    named = [word for word in found.split() if "=" in word and not word.startswith("(")]
    several = ("run.executor=ray", "ray.gpus=4", "rollout.num_engines=1")
    better = config_of(*GRPO_1024, *several, *named, model=SEVEN_B)
    assert advice.warning_for(spec, better, target_of("H100")) is None
