"""What `rollout.engine=auto` chooses."""

import json
from dataclasses import replace
from math import log
from pathlib import Path

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.advisor.planned import ASYNC, GRPO_1024, HALF_B, OWN, SPECS, config_of, on, target_of
from tests.trainer.configurations import call
from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import to_mapping
from tinyzero_trainer.advisor import engine_choice
from tinyzero_trainer.advisor.engine_choice import FAR, EngineSpeed, choose_engine, nearest, resolve_engine
from tinyzero_trainer.config import SftConfig
from tinyzero_trainer.config.resume import fingerprint, resume_config
from tinyzero_trainer.config.settings import with_settings
from tinyzero_trainer.utils.vllm_version import VllmMissingError

AUTO = "rollout.engine=auto"
ROW = EngineSpeed("NVIDIA H200", 500_000_000, 1024, 140, 1024, "2026-11-21", torch=200, vllm=100)
GEMMA = replace(SPECS[HALF_B], graphs=False)
SIZES = st.tuples(*[st.integers(1, 10**10), *[st.integers(1, 10**5)] * 3])


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H200 with vLLM, which is faster with prompts of more than 500 tokens."""
    monkeypatch.setattr(engine_choice, "require_vllm", lambda: "0.25.1")
    monkeypatch.setattr(engine_choice, "present_gpu", lambda device: None if device == "cpu" else target_of("H200"))
    monkeypatch.setattr(
        engine_choice, "read_speeds", lambda: [ROW, replace(ROW, prompt_tokens=2048, torch=100, vllm=150)]
    )


@pytest.mark.usefixtures("vllm")
def test_the_engine_that_was_faster_at_the_nearest_sizes_is_taken() -> None:
    found, reason = resolve_engine(config_of(*GRPO_1024, AUTO), SPECS[HALF_B])
    assert (found, reason) == (
        config_of(*GRPO_1024),
        "2.00 times as fast as vllm at the nearest sizes measured: 0.5B, 1,024 × (140 + 1,024) tokens on NVIDIA H200",
    )
    assert resolve_engine(found) == (found, "")
    engine_, reason = choose_engine(config_of(*GRPO_1024, AUTO), SPECS[HALF_B], prompt_tokens=1000)
    assert (engine_, reason[:30]) == ("vllm", "1.50 times as fast as torch at")


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize(
    ("words", "chosen", "reason"),
    [
        ("run.device=cpu", "torch", "no GPU is used"),
        ("run.executor=ray", "torch", "no GPU is used"),
        ("run.device=cpu vllm.tensor_parallel=2", "vllm", "for vllm.tensor_parallel=2"),
        ("vllm.cuda_graphs=false", "vllm", "for vllm.cuda_graphs=false"),
        ("run.device=cuda:1", "torch", "vLLM takes the first GPU that it sees, not run.device=cuda:1"),
        ("rollout.temperature=3", "torch", "rollout.engine='vllm' samples at temperatures up to 2, not 3"),
        ("rollout.quantization=fp8", "torch", "rollout.quantization=fp8 is for rollout.engine=torch, not vllm"),
    ],
)
def test_what_only_one_engine_can_do_decides(words: str, chosen: str, reason: str) -> None:
    assert choose_engine(config_of(AUTO, *words.split()), GEMMA) == (chosen, reason)


@pytest.mark.usefixtures("vllm")
def test_sampling_beside_the_update_is_for_torch_unless_engines_have_gpus() -> None:
    beside = with_settings(config_of(AUTO), ASYNC)
    assert choose_engine(beside, GEMMA)[0] == "torch"
    assert choose_engine(on(beside, 2, rollout__num_engines=1), replace(GEMMA, graphs=True))[0] == "torch"
    with pytest.raises(SettingsError, match=r"^vllm\.cuda_graphs=false is for .*, but rollout\.max_async_level=1 gen"):
        choose_engine(with_settings(beside, {"vllm.cuda_graphs": False}), GEMMA)


@pytest.mark.usefixtures("vllm")
def test_without_cuda_graphs_vllm_is_taken_if_it_runs_the_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_choice, "architecture", lambda _: (None, type("Gemma3ForCausalLM", (), {})))
    for known, chosen in ((True, "vllm"), (False, "torch")):
        monkeypatch.setattr(engine_choice, "runs", lambda kind, known=known: known)
        assert choose_engine(config_of(AUTO), GEMMA)[0] == chosen


def test_without_vllm_it_is_torch_but_for_settings_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_choice, "present_gpu", lambda _: target_of("H200"))
    expected = "torch", "rollout.engine=vllm needs vLLM, which is not installed"
    assert choose_engine(config_of(AUTO), GEMMA) == choose_engine(config_of(AUTO), OWN) == expected
    given_ = config_of(AUTO, "vllm.tensor_parallel=2")
    with pytest.raises(VllmMissingError):
        choose_engine(given_, OWN)
    elsewhere = with_settings(given_, {"run.executor": "ray", "ray.gpus": 2, "ray.address": "head:6379"})
    assert choose_engine(elsewhere, OWN)[0] == "vllm"


def test_on_another_machine_vllm_counts_as_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_choice, "read_speeds", lambda: [replace(ROW, vllm=300)])
    asked = config_of(*GRPO_1024, AUTO), SPECS[HALF_B], "NVIDIA H200"
    assert choose_engine(*asked)[0] == "torch"
    assert choose_engine(*asked, elsewhere=True)[0] == "vllm"


@pytest.mark.usefixtures("vllm")
def test_a_model_that_cannot_be_read_gets_torch() -> None:
    assert choose_engine(config_of(AUTO, model="nobody/nothing")) == ("torch", "the model's sizes are not known")


@given(st.lists(SIZES, min_size=1, max_size=8, unique=True), SIZES, st.sampled_from([None, "NVIDIA H200", "NVIDIA L4"]))
def test_the_nearest_row_has_both_speeds_and_the_gpu_if_one_has(measured: list, sizes: tuple, gpu: str | None) -> None:
    rows = [
        ROW,
        *(EngineSpeed("NVIDIA L4", *each, date="", torch=1, vllm=n % 2 or None) for n, each in enumerate(measured)),
    ]
    found = nearest(rows, sizes, gpu)
    if found is None:
        assert all(not row.is_complete or abs(log(row.parameters / sizes[0])) > log(FAR) for row in rows)
        return
    assert found.is_complete
    assert abs(log(found.parameters / sizes[0])) <= log(FAR) * (1 + 1e-9)
    has_l4 = any(
        row.gpu == "NVIDIA L4" and row.is_complete and 1 / FAR <= row.parameters / sizes[0] <= FAR for row in rows
    )
    assert gpu != "NVIDIA L4" or not has_l4 or found.gpu == gpu
    assert nearest(rows[::-1], found.sizes, found.gpu).sizes == found.sizes  # what was measured is its own nearest


def test_a_resumed_run_keeps_the_choice_whether_auto_is_typed_or_not(tmp_path: Path) -> None:
    chosen = replace(config_of("run.output=" + str(tmp_path)))
    assert resolve_engine(config_of(AUTO, "run.output=" + str(tmp_path), "run.device=cpu"))[0].rollout == chosen.rollout
    for name in ("torch", "vllm"):
        saved = with_settings(chosen, {"rollout.engine": name})
        (tmp_path / "config.toml").write_text(tomli_w.dumps(to_mapping(saved)))
        assert resume_config(tmp_path, {"rollout": {"engine": "auto"}}) == resume_config(tmp_path, {}) == saved
        assert fingerprint(resume_config(tmp_path, {"rollout": {"engine": "auto"}})) == fingerprint(saved)


def test_fine_tuning_records_the_choice() -> None:
    config = SftConfig(rollout=replace(SftConfig().rollout, engine="auto"))
    resolved, _ = resolve_engine(replace(config.workers_config, run=config_of("run.device=cpu").run), OWN)
    assert config.with_resolved(resolved).rollout == SftConfig().rollout


@pytest.mark.slow
@pytest.mark.usefixtures("vllm")
def test_a_plan_shows_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("plan", "--model", HALF_B, "--gpu", "H200", AUTO)
    code, out, _ = call(capsys, *words)
    assert (code, "rollout.engine=torch" in out.split("the run will choose:")[1]) == (0, True)
    found = json.loads(call(capsys, *words, "--prompt-tokens", "2000", "--json")[1])
    assert {**found["chosen"][0], "trade_off": ""} == {
        "key": "rollout.engine",
        "value": "vllm",
        "before": "auto",
        "trade_off": "",
    }
    assert "vllm.gpu_memory_gb" in {change["key"] for change in found["chosen"]}
    code, _, error = call(capsys, *words, "vllm.tensor_parallel=2")
    assert (code, "vllm.tensor_parallel=2 takes 2 GPUs, and the plan is for one" in error) == (2, True)
