"""A tiny model with random weights of each architecture, with what sets that architecture apart."""

import functools
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GenerationConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from tinyzero_trainer.models.loading import LanguageModel, from_parts
from tinyzero_trainer.models.new_model import build_tokenizer

WINDOW = 8
"""Tokens that a layer with a sliding window sees: fewer than any of the checks' sequences has."""

_SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LOCAL = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}

ARCHITECTURES: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "Qwen2": (Qwen2Config, {"tie_word_embeddings": True}),
    "Qwen3": (Qwen3Config, {"head_dim": 64}),
    "Llama": (LlamaConfig, {"rope_parameters": _LLAMA3 | {"original_max_position_embeddings": 64}}),
    "Mistral": (MistralConfig, {"head_dim": 32, "sliding_window": None}),
    "Mistral, sliding window": (MistralConfig, {"sliding_window": WINDOW}),
    "Gemma 3": (
        Gemma3TextConfig,
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 64,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": _LOCAL,
            "final_logit_softcapping": 2.0,
        },
    ),
    "Phi-3": (Phi3Config, {}),
    "SmolLM3": (SmolLM3Config, {"no_rope_layers": [1, 0]}),
    "OLMo 2": (Olmo2Config, {}),
}


@functools.cache
def _tokenizer() -> Any:
    return build_tokenizer()


def config_of(name: str) -> PreTrainedConfig:
    kind, own = ARCHITECTURES[name]
    tokenizer = _tokenizer()
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    return kind(**{**_SIZES, "vocab_size": len(tokenizer), **ids, **own})


def tiny(name: str, device: str = "cpu") -> LanguageModel:
    """Weights are large enough that attention is far from uniform, and no two tokens are equally likely."""
    tokenizer = _tokenizer()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config_of(name)).float()
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        if model.config.tie_word_embeddings:  # or the likeliest token would often be the last one again
            model.get_input_embeddings().weight.mul_(0.3)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return from_parts(name, model.eval().to(device), tokenizer)
