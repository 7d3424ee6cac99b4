"""What `tinyzero train` says of a run that will not fit, before it starts and when it ends without memory."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.configurations import call
from tests.trainer.plan.planned import GRPO, MODELS, SETTINGS, SPECS, config_of
from tinyzero_sdk.settings import flatten, format_value, parse_overrides
from tinyzero_trainer.cli import oom_advice
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.estimate.fit import setting, settle, usable, with_settings
from tinyzero_trainer.estimate.memory import predict_memory
from tinyzero_trainer.hardware.gpu import GIB
from tinyzero_trainer.hardware.gpu_specs import find_gpu_spec
from tinyzero_trainer.plan import advice
from tinyzero_trainer.plan.plan import make_plan
from tinyzero_trainer.plan.target_gpu import TargetGpu
from tinyzero_trainer.utils.oom import OutOfMemoryError

RTX_4090 = TargetGpu("NVIDIA GeForce RTX 4090", 24 * GIB, find_gpu_spec("RTX 4090"))


def oom_line(config: TrainConfig, phase: str, reason: str = "") -> str:
    error = OutOfMemoryError(phase, reason)
    error.advice = oom_advice.advice_for(error, config)
    return str(error)


@pytest.fixture
def small_gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine with one GPU, which a test may make smaller."""
    gpu = SimpleNamespace(target=RTX_4090)
    monkeypatch.setattr(advice, "present_gpu", lambda device: None if device == "cpu" else gpu.target)
    return gpu


@pytest.mark.slow
def test_train_warns_of_a_run_that_will_not_fit_and_goes_on(
    toy_task: str, toy_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_gpu: SimpleNamespace,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from tinyzero_trainer.controller import loop

    begun = []
    monkeypatch.setattr(loop, "train", lambda config, **_: begun.append(config))
    words = ["train", "--task", toy_task, "--model", str(toy_model_path), "data.prompts_per_step=512"]
    words += ["rollout.max_completion_tokens=192"]
    small_gpu.target = TargetGpu("a small GPU", GIB // 2, None)
    code, _, err = call(capsys, *words, "--output", str(tmp_path / "run"))
    [line] = [line for line in err.splitlines() if line.startswith("warning:")]
    assert "a small GPU has 0.5 GiB" in line
    assert "details: tinyzero plan" in line
    assert (code, len(begun)) == (0, 1)
    for changes in ({"target": RTX_4090}, {"target": None}):
        vars(small_gpu).update(changes)
        assert "warning:" not in call(capsys, *words, "--output", str(tmp_path / "run"))[2]
    small_gpu.target = TargetGpu("a small GPU", GIB // 2, None)
    assert "warning:" not in call(capsys, *words, "run.device=cpu", "--output", str(tmp_path / "run"))[2]


def test_the_warning_names_the_settings_to_give(small_gpu: SimpleNamespace) -> None:
    config = config_of(*GRPO, "rollout.max_completion_tokens=1024", "algorithm.kl_coefficient=0.001")
    found = advice.warning(config)
    assert found is not None
    assert found.startswith("update_actor is predicted to take ")
    named = [word for word in found.split() if "=" in word]
    better = config_of(*GRPO, "rollout.max_completion_tokens=1024", "algorithm.kl_coefficient=0.001", *named)
    assert advice.warning(better) is None
    assert "\n" not in found


@pytest.mark.usefixtures("small_gpu")
def test_nothing_is_said_of_a_model_that_cannot_be_found() -> None:
    assert advice.warning(config_of(model="nobody/nothing")) is None
    unknown = config_of(model="nobody/nothing")
    assert advice.after_out_of_memory(unknown, ["gen"]) == "rollout.max_num_seqs=512"
    assert advice.after_out_of_memory(unknown, ["update_actor"]) == "optimizer.micro_batch_tokens=8192"
    assert advice.after_out_of_memory(unknown, [advice.LOADING]) == "memory.cpu_offload=idle"


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


def test_out_of_memory_where_the_plan_did_not_fit_names_the_whole_plan(small_gpu: SimpleNamespace) -> None:
    config = config_of("rollout.max_completion_tokens=1024", model="Qwen/Qwen2.5-3B")
    words = advice.after_out_of_memory(config, ["update_actor"])
    assert words == advice.as_overrides(make_plan(SPECS["Qwen/Qwen2.5-3B"], config, 24 * GIB).changes)
    assert "memory.cpu_offload=always" in words
    line = oom_line(config, "the weights were updated", "Tried to allocate 4.64 GiB")
    assert words in line
    assert "\n" not in line


@pytest.mark.usefixtures("small_gpu")
@pytest.mark.parametrize(
    ("phase", "advised"),
    [
        ("the models were loaded", "memory.cpu_offload=idle"),
        ("the checkpoint was loaded", "memory.cpu_offload=idle"),
        ("completions were generated", "memory.cpu_offload=idle"),
        ("the rollout engine took over the weights", "memory.cpu_offload=idle"),
        ("a checkpoint was saved", "memory.cpu_offload=idle"),
        ("log-probabilities and values were computed", "optimizer.micro_batch_tokens=8192"),
        ("the largest micro-batch was tried out", "optimizer.micro_batch_tokens=8192"),
        ("the weights were updated", "optimizer.micro_batch_tokens=8192"),
    ],
)
def test_what_is_advised_lowers_what_was_held_where_memory_ran_out(phase: str, advised: str) -> None:
    config = config_of(*GRPO, "rollout.max_completion_tokens=1024", "rollout.max_num_seqs=8", "run.output=nowhere")
    assert oom_line(config, phase).endswith(f"while {phase}; start again with {advised}")


@pytest.mark.slow
def test_where_no_settings_fit_the_line_says_what_would(small_gpu: SimpleNamespace) -> None:
    small_gpu.target = TargetGpu("a small GPU", 8 * GIB, None)
    config = config_of(*GRPO, "run.output=nowhere", model="Qwen/Qwen2.5-7B")
    for phase in oom_advice.PHASES:
        line = oom_line(config, phase)
        assert line.endswith("; no settings were found that help: take a smaller model or a GPU with more memory")


def test_where_resuming_cannot_help_a_new_run_may(small_gpu: SimpleNamespace, tmp_path: Path) -> None:
    small_gpu.target = TargetGpu("NVIDIA H200", 140 * GIB, None)
    (tmp_path / "checkpoints" / "step_1").mkdir(parents=True)
    spare = ["memory.cpu_offload=always", "memory.activation_checkpointing=true", "optimizer.micro_batch_tokens=1280"]
    config = config_of(f"run.output={tmp_path}", *GRPO, "rollout.max_completion_tokens=1024", *spare)
    line = oom_line(config, "the weights were updated")
    words = line.partition("; no setting that --resume may change helps: start a run in another --output with ")[2]
    assert words.startswith("lora.rank=32 optimizer.learning_rate=1e-05, or take a smaller model or a GPU")


@pytest.mark.usefixtures("small_gpu")
def test_vllm_is_given_less_where_it_is_what_memory_ran_out_for() -> None:
    config = config_of("rollout.engine=vllm", "vllm.gpu_memory_gb=10", "vllm.sleep_mode=true")
    assert advice.after_out_of_memory(config, ["gen"]) == "vllm.gpu_memory_gb=8.0"
    assert advice.after_out_of_memory(config, [advice.LOADING]) == "memory.cpu_offload=idle"


@pytest.mark.slow
@given(MODELS, SETTINGS, st.sampled_from(["gen", "update_actor", "update_weights"]), st.sampled_from([None, RTX_4090]))
@settings(max_examples=30, deadline=None)
def test_every_word_said_after_out_of_memory_lowers_that_phase(
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
    before, after = (
        {found.name: found.total for found in predict_memory(SPECS[name], chosen).phases}[phase]
        for chosen in (known, with_settings(known, changes))
    )
    assert after < before


@pytest.mark.slow
@given(MODELS, SETTINGS, st.sampled_from(["gen", "update_actor", "elsewhere"]))
@settings(max_examples=30, deadline=None)
def test_what_is_said_after_out_of_memory_may_be_changed_and_helps(
    name: str, values: dict[str, Any], phase: str
) -> None:
    config = with_settings(TrainConfig(), {**values, "model.path": name})
    words = advice.after_out_of_memory(config, [phase], RTX_4090)
    assert not any(word.startswith(("lora", "optimizer.learning_rate")) for word in words.split())
    assert advice.after_out_of_memory(config, [phase], RTX_4090) == words
    for word in words.split():
        key, _, value = word.partition("=")
        assert format_value(setting(config, key)) != value


def test_what_others_hold_of_the_gpu_is_counted_and_said() -> None:
    config, spec = config_of(*GRPO, "rollout.max_completion_tokens=1024"), SPECS["Qwen/Qwen2.5-0.5B"]
    assert advice.warning_for(spec, config, TargetGpu("a GPU", 48 * GIB, None)) is None
    found = advice.warning_for(spec, config, TargetGpu("a GPU", 48 * GIB, None, in_use=42 * GIB))
    assert found is not None
    assert "and a GPU has 48.0 GiB, 42.0 GiB of it in use by other processes; give " in found
    assert found.endswith(", or end the other processes on it (details: tinyzero plan)")
    named = [word.rstrip(",") for word in found.split() if "=" in word]
    assert make_plan(spec, config_of(*GRPO, "rollout.max_completion_tokens=1024", *named), 6 * GIB).fits
    small = advice.warning_for(spec, config, TargetGpu("a GPU", 4 * GIB, None, in_use=20 * 2**20))
    assert small is not None
    assert "other processes" not in small
    assert "end the other" not in small


def test_after_a_run_ran_out_of_memory_what_is_in_use_is_its_own(small_gpu: SimpleNamespace) -> None:
    small_gpu.target = TargetGpu("NVIDIA H200", 140 * GIB, None, in_use=139 * GIB)
    config = config_of("rollout.max_completion_tokens=1024", "rollout.max_num_seqs=256", "memory.cpu_offload=idle")
    assert advice.after_out_of_memory(config, ["gen"]) == "rollout.max_num_seqs=128"
    assert advice.fits_without_offload(config)


def test_train_warns_of_memory_that_the_machine_has_not() -> None:
    spec, config = SPECS["Qwen/Qwen2.5-7B"], config_of("memory.cpu_offload=always", *GRPO, model="Qwen/Qwen2.5-7B")
    assert advice.warning_for(spec, config, TargetGpu("a GPU", 140 * GIB, None, 256 * GIB)) is None
    found = advice.warning_for(spec, config, TargetGpu("a GPU", 140 * GIB, None, 64 * GIB))
    assert found is not None
    assert "113.5 GiB in host memory, which has 64.0 GiB" in found
