"""What the rollout engine `torch` can do."""

from tinyzero_trainer.kinds import EngineKind

KIND = EngineKind(
    name="torch",
    build="tinyzero_trainer.rollout.torch.build",
    cost_model="tinyzero_trainer.rollout.torch.cost_model",
    fp8=frozenset({"kv_cache_dtype", "quantization"}),
    fp8_gpu_only=True,
    max_async_level=None,
    continuous=True,
)
