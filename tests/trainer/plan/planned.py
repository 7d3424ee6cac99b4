"""Runs to plan: configurations, real and drawn, and the models and GPUs that they are for."""

from typing import Any

from hypothesis import strategies as st

from tests.trainer.configurations import said
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.models.spec import WELL_KNOWN

HALF_B = "Qwen/Qwen2.5-0.5B"
SPECS = WELL_KNOWN
GRPO = ("data.prompts_per_step=32", "rollout.group_size=8")
"""As TinyZero's users run it on one GPU, with 1,024 new tokens."""


def config_of(*words: str, recipe: str | None = None, model: str = HALF_B) -> TrainConfig:
    return make_config(said(*words, f"model.path={model}", task="countdown", recipe=recipe))


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
        "rollout.max_num_seqs": st.none() | st.integers(8, 2048),
        "data.prompts_per_step": st.integers(4, 512),
        "rollout.group_size": st.integers(2, 16),
        "optimizer.micro_batch_tokens": st.integers(256, 65536),
        "optimizer.num_mini_batches": st.integers(1, 4),
        "memory.activation_checkpointing": st.booleans(),
        "memory.cpu_offload": st.sampled_from([None, "idle", "always"]),
        "model.compile": st.sampled_from([None, False, True]),
        "model.dtype": st.sampled_from(["auto", "float32"]),
        "algorithm.kl_coefficient": st.sampled_from([0.0, 0.001]),
        "algorithm.advantage_estimator": st.sampled_from(["grpo", "gae"]),
        "lora.rank": st.sampled_from([0, 16]),
    }
)
MODELS = st.sampled_from(sorted(PUBLISHED))
