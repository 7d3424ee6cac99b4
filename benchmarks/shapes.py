"""Models of well-known shapes with random weights, to measure speed and memory without a download.

Not a benchmark. The tokenizer is the tiny model's, which uses only the beginning of the vocabulary.
"""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

QWEN = {
    "0.5B": {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "intermediate_size": 4864},
    "1.5B": {"hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12, "intermediate_size": 8960},
    "3B": {"hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16, "intermediate_size": 11008},
    "7B": {"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "intermediate_size": 18944}
    | {"num_key_value_heads": 4, "vocab_size": 152_064, "tie_word_embeddings": False},
}
"""Of Qwen2.5; where it says nothing else with two key-value heads, 151,936 tokens and a tied head."""

SMALL = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1024}
"""The trainer's own small model: 9.9 million parameters with the tiny tokenizer's vocabulary, two key-value heads."""


def write_model(directory: Path, shape: str) -> int:
    """Write a model directory as transformers, vLLM and the trainer load it; returns the number of parameters.

    In a separate process, which frees the GPU's memory when it ends.

    Args:
        directory: must not exist yet.
        shape: a key of `QWEN`, or `10M`.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_write, directory, shape).result()


def _write(directory: Path, shape: str) -> int:
    import torch
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    from tinyzero_trainer.models.new_model import build_tokenizer

    tokenizer = build_tokenizer()
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    sizes: dict[str, Any] = {
        "num_key_value_heads": 2,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
        **QWEN.get(shape, SMALL),
    }
    sizes |= {} if shape in QWEN else {"vocab_size": len(tokenizer)}
    config = Qwen2Config(**sizes, max_position_embeddings=32_768, bos_token_id=None, **ends)
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(**ends)
    model.bfloat16().save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return sum(parameter.numel() for parameter in model.parameters())
