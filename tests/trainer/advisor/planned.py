"""Runs to plan: configurations, real and generated, and the models and GPUs that they are for."""

from typing import Any

from hypothesis import strategies as st

from tests.trainer.configurations import typed
from tinyzero_trainer.advisor.memory import Memory, Phase
from tinyzero_trainer.advisor.target_gpu import TargetGpu
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.config.settings import with_settings
from tinyzero_trainer.hardware.gpu import GIB
from tinyzero_trainer.hardware.gpu_specs import GpuSpec, find_gpu_spec
from tinyzero_trainer.models.spec import WELL_KNOWN, ModelSpec, spec_from_config

HALF_B = "Qwen/Qwen2.5-0.5B"
SPECS = WELL_KNOWN
SEVEN_B = "Qwen/Qwen2.5-7B"
GRPO = ("data.prompts_per_step=32", "rollout.group_size=8")
"""As TinyZero's users run it on one GPU, with 1,024 new tokens."""
GRPO_1024 = (*GRPO, "rollout.max_completion_tokens=1024")
TYPED = (
    *("optimizer.micro_batch_tokens=16384", "memory.activation_checkpointing=false", "memory.cpu_offload=none"),
    "memory.recompute_logits=true",
)
"""So that nothing but what the engine decides is left to the run."""


def config_of(*words: str, recipe: str | None = None, model: str = HALF_B) -> TrainConfig:
    return make_config(typed(*words, f"model.path={model}", task="countdown", recipe=recipe))


def configured(values: dict[str, Any]) -> TrainConfig:
    """A configuration of `SETTINGS`; vLLM's memory is fixed."""
    if values["rollout.engine"] == "vllm":
        values = {**values, "vllm.gpu_memory_gb": 20.0, "vllm.sleep_mode": False}
    return with_settings(TrainConfig(), values)


def on(config: TrainConfig, gpus: int, **settings: Any) -> TrainConfig:
    """The configuration through Ray on several GPUs; `group__name=value` sets more."""
    given = {key.replace("__", "."): value for key, value in settings.items()}
    return with_settings(config, {"run.executor": "ray", "ray.gpus": gpus, **given})


def gpu_of(name: str) -> GpuSpec:
    gpu = find_gpu_spec(name)
    assert gpu is not None
    return gpu


def target_of(name: str) -> TargetGpu:
    gpu = gpu_of(name)
    return TargetGpu(gpu.name, int(gpu.memory * GIB), gpu)


def shape_like(model: Any) -> ModelSpec:
    return spec_from_config("m", model.config.to_dict())


def phase_of(memory: Memory, name: str) -> Phase:
    [found] = [phase for phase in memory.phases if phase.name == name]
    return found


H200 = gpu_of("H200")
OWN = ModelSpec(
    "m", 9_930_624, hidden=384, layers=6, heads=6, kv_heads=2, head_size=64, mlp=1024, vocabulary=1252, tied=True
)
"""About the small model that `train` makes."""
ASYNC = {"rollout.max_async_level": 1, "rollout.return_logprobs": "always", "rollout_correction.is_level": "token"}
COMMON: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
PUBLISHED = {
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-14B": 14_770_033_664,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
}
"""By the safetensors on the Hub."""
SETTINGS = st.fixed_dictionaries(
    {
        "rollout.engine": st.sampled_from(["torch", "vllm"]),
        "rollout.max_completion_tokens": st.integers(1, 4096),
        "rollout.max_num_seqs": st.just("auto") | st.integers(8, 2048),
        "data.prompts_per_step": st.integers(4, 512),
        "rollout.group_size": st.integers(2, 16),
        "optimizer.micro_batch_tokens": st.integers(256, 65536),
        "optimizer.num_mini_batches": st.integers(1, 4),
        "memory.activation_checkpointing": st.booleans(),
        "memory.cpu_offload": st.sampled_from(["none", "idle", "always"]),
        "model.compile": st.sampled_from([None, False, True]),
        "model.dtype": st.sampled_from(["auto", "float32"]),
        "algorithm.kl_coefficient": st.sampled_from([0.0, 0.001]),
        "algorithm.advantage_estimator": st.sampled_from(["grpo", "gae"]),
        "lora.rank": st.sampled_from([0, 16]),
    }
)
MODELS = st.sampled_from(sorted(PUBLISHED))
