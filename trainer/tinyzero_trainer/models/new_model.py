"""A small decoder with random weights and its tokenizer: what a laptop trains when no model can be downloaded.

The architecture is Qwen2 with tied embeddings, so transformers and vLLM load the saved directory as it is.
The tokenizer spells any text: numbers up to 999 and the tags of answers are whole tokens, all else is bytes.
"""

from typing import TYPE_CHECKING, Any

from tinyzero_trainer.config import DefaultModelConfig, NewModelConfig
from tinyzero_trainer.models.hub import find_spec
from tinyzero_trainer.models.spec import ModelSpec, spec_from_config

if TYPE_CHECKING:
    from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

END_OF_TEXT = "<|endoftext|>"
PADDING = "<|pad|>"
TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def build_tokenizer() -> "Qwen2Tokenizer":
    """Bytes, plus whole tokens for 10 … 999 and the tags of answers (1,252 tokens in all).

    Longer numbers are split into groups of up to three digits, from the left. Numbers are added tokens
    rather than merges, because transformers gives every Qwen2 model a pre-tokenizer that splits digits.
    """
    from tokenizers import AddedToken, pre_tokenizers
    from transformers import Qwen2Tokenizer

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate([*alphabet, END_OF_TEXT, PADDING])},
        merges=[],
        eos_token=END_OF_TEXT,
        pad_token=PADDING,
        unk_token=END_OF_TEXT,
    )
    # Not "special": a decoder that skips special tokens must keep them.
    words = [*TAGS, *(str(number) for number in range(10, 1000))]
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words])
    return tokenizer


def qwen2_sizes(shape: NewModelConfig, vocabulary: int) -> dict[str, Any]:
    """The sizes in the config.json of a decoder of this shape."""
    return {
        "vocab_size": vocabulary,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.mlp_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads or shape.heads,
        "max_position_embeddings": shape.context,
        "tie_word_embeddings": True,
    }


def default_shape(config: DefaultModelConfig) -> NewModelConfig:
    """The shape of the default model."""
    return NewModelConfig(config.hidden_size, config.layers, config.head_size, config.kv_heads, config.mlp_size)


def default_spec(config: DefaultModelConfig) -> ModelSpec:
    """The sizes of the default model."""
    return new_spec("the small model that train makes (default_model)", default_shape(config))


def new_spec(name: str, shape: NewModelConfig) -> ModelSpec:
    """The sizes of a new decoder, which has the tiny model's vocabulary."""
    sizes = {"model_type": "qwen2", **qwen2_sizes(shape, find_spec(None).vocabulary)}
    return spec_from_config(name, sizes)


def build_model(shape: NewModelConfig, tokenizer: "Qwen2Tokenizer", seed: int) -> "Qwen2ForCausalLM":
    """A decoder of this shape with random weights, in float32; equal seeds give equal weights."""
    import torch
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        **qwen2_sizes(shape, len(tokenizer)),
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config).float()
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return model
