"""The shapes of well-known models, so that a plan needs no network. No torch in here."""

from collections.abc import Mapping
from typing import Any

from tinyzero_trainer.models.spec import ModelSpec, spec_from_config

CONFIG_FILE = "config.json"

_SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "vocab_size"),
)


def _config(kind: str, *sizes: int, **more: Any) -> Mapping[str, Any]:
    return {"model_type": kind, **dict(zip(_SIZES, sizes, strict=True)), "tie_word_embeddings": True, **more}


_QWEN = {
    "0.5B": _config("qwen2", 896, 4864, 24, 14, 2, 151_936),
    "1.5B": _config("qwen2", 1536, 8960, 28, 12, 2, 151_936),
    "3B": _config("qwen2", 2048, 11_008, 36, 16, 2, 151_936),
    "7B": _config("qwen2", 3584, 18_944, 28, 28, 4, 152_064, tie_word_embeddings=False),
    "14B": _config("qwen2", 5120, 13_824, 48, 40, 8, 152_064, tie_word_embeddings=False),
    "32B": _config("qwen2", 5120, 27_648, 64, 40, 8, 152_064, tie_word_embeddings=False),
}
_LLAMA_8B = _config("llama", 4096, 14_336, 32, 32, 8, 128_256, tie_word_embeddings=False)

WELL_KNOWN = {
    **{f"Qwen/Qwen2.5-{size}": config for size, config in _QWEN.items()},
    "Qwen/Qwen3-0.6B": _config("qwen3", 1024, 3072, 28, 16, 8, 151_936, head_dim=128),
    "Qwen/Qwen3-1.7B": _config("qwen3", 2048, 6144, 28, 16, 8, 151_936, head_dim=128),
    "Qwen/Qwen3-4B": _config("qwen3", 2560, 9728, 36, 32, 8, 151_936, head_dim=128),
    "Qwen/Qwen3-8B": _config("qwen3", 4096, 12_288, 36, 32, 8, 151_936, head_dim=128, tie_word_embeddings=False),
    "Qwen/Qwen3-14B": _config("qwen3", 5120, 17_408, 40, 40, 8, 151_936, head_dim=128, tie_word_embeddings=False),
    "Qwen/Qwen3-32B": _config("qwen3", 5120, 25_600, 64, 64, 8, 151_936, head_dim=128, tie_word_embeddings=False),
    **{f"Qwen/Qwen2.5-Coder-{size}": config for size, config in _QWEN.items()},
    **{f"Qwen/Qwen2.5-Math-{size}": _QWEN[size] for size in ("1.5B", "7B")},
    "meta-llama/Llama-3.2-1B": _config("llama", 2048, 8192, 16, 32, 8, 128_256, head_dim=64),
    "meta-llama/Llama-3.2-3B": _config("llama", 3072, 8192, 28, 24, 8, 128_256, head_dim=128),
    "meta-llama/Llama-3.1-8B": _LLAMA_8B,
    "meta-llama/Meta-Llama-3-8B": _LLAMA_8B,
    "mistralai/Mistral-7B-v0.1": _config("mistral", 4096, 14_336, 32, 32, 8, 32_000, tie_word_embeddings=False),
    "mistralai/Mistral-7B-v0.3": _config(
        "mistral", 4096, 14_336, 32, 32, 8, 32_768, tie_word_embeddings=False, sliding_window=None
    ),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": {**_QWEN["1.5B"], "tie_word_embeddings": False},
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": _QWEN["7B"],
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": _LLAMA_8B,
}
"""As their config.json on the Hub says."""


def well_known(model: str) -> ModelSpec | None:
    """The shape of a model that many people use, which needs no download; also of what was made from it.

    Example:
        >>> well_known("Qwen/Qwen2.5-0.5B-Instruct").parameters
        494032768
    """
    for name, config in WELL_KNOWN.items():
        if model == name or model in (f"{name}-Instruct", f"{name}-Base"):
            return spec_from_config(model, config)
    return None
