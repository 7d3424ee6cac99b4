"""A model's shape, read from what transformers writes as config.json, and its exact number of parameters."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

COUNTED = ("llama", "mistral", "qwen2", "qwen3")
"""Architectures (`model_type`) whose parameters are counted here; those of others are counted by transformers."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What memory and time depend on."""

    name: str
    """How the user calls the model."""

    parameters: int
    """All of them; a head that is the embedding counts once."""

    hidden: int
    """Width of the residual stream."""

    layers: int
    """Number of decoder layers."""

    heads: int
    """Attention heads."""

    kv_heads: int
    """Heads of keys and values."""

    head_size: int
    """Width of a head."""

    mlp: int
    """Width inside the gated MLP."""

    vocabulary: int
    """Tokens, padding included."""

    tied: bool
    """Whether the output head is the embedding."""

    graphs: bool = True
    """Whether `rollout.engine=torch` generates with CUDA graphs, which asks for room; see `has_graphs`."""

    context: int | None = None
    """Tokens of the longest sequence it was made for; None = its config.json does not say."""

    @property
    def embedding(self) -> int:
        """Parameters of the embedding; those of the head are as many."""
        return self.vocabulary * self.hidden

    @property
    def embeddings(self) -> int:
        """Parameters of embedding and head together."""
        return self.embedding * (1 if self.tied else 2)

    @property
    def layer(self) -> int:
        """Parameters of one layer."""
        return (self.parameters - self.embeddings) // max(1, self.layers)

    @property
    def attention(self) -> int:
        """Width of the queries, and of what attention gives."""
        return self.heads * self.head_size

    @property
    def kv(self) -> int:
        """Width of the keys; that of the values is the same."""
        return self.kv_heads * self.head_size

    @property
    def cache_numbers(self) -> int:
        """Numbers that a token's keys and values are in a cache."""
        return 2 * self.layers * self.kv

    @property
    def repeated_heads(self) -> int:
        """How many copies transformers makes of keys and values for the queries that share them; 0 = none share."""
        return self.heads // self.kv_heads if self.heads > self.kv_heads else 0

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Input and output width of a layer's linear layers, by their names."""
        return {
            "q_proj": (self.hidden, self.attention),
            "k_proj": (self.hidden, self.kv),
            "v_proj": (self.hidden, self.kv),
            "o_proj": (self.attention, self.hidden),
            "gate_proj": (self.hidden, self.mlp),
            "up_proj": (self.hidden, self.mlp),
            "down_proj": (self.mlp, self.hidden),
        }

    def adapter(self, rank: int, targets: tuple[str, ...] = ()) -> int:
        """Parameters that LoRA adds; a name that is not of this architecture adds nothing."""
        chosen = [sizes for name, sizes in self.matrices.items() if not targets or name in targets]
        return self.layers * rank * sum(map(sum, chosen))


def spec_from_config(name: str, config: Mapping[str, Any], parameters: int | None = None) -> ModelSpec:
    """The shape that a config.json describes.

    Args:
        name: how the user calls the model.
        config: what is in the file; of a model that sees or hears too, its part on text.
        parameters: their number; none = counted here.

    Raises:
        KeyError, TypeError, ValueError: it does not describe a decoder, or `parameters` is needed.

    Example:
        >>> small = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> spec_from_config("small", small | {"intermediate_size": 16, "vocab_size": 10}).parameters
        824
    """
    kind = str(config.get("model_type"))
    hidden, layers, heads = _first(config, _HIDDEN), _first(config, _LAYERS), _first(config, _HEADS)
    config = {**_DEFAULTS.get(kind, {}), **config}
    kv_heads, head_size = config.get("num_key_value_heads") or heads, config.get("head_dim") or hidden // heads
    shape = ModelSpec(
        name=name,
        parameters=parameters or 0,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=min(_size("num_key_value_heads", kv_heads), heads),
        head_size=_size("head_dim", head_size),
        mlp=_size("intermediate_size", config.get("intermediate_size") or config.get("n_inner") or 4 * hidden),
        vocabulary=_size("vocab_size", config["vocab_size"]),
        tied=bool(config.get("tie_word_embeddings", kind not in COUNTED)),
        graphs=has_graphs(config),
        context=context_in(config),
    )
    if parameters is not None:
        return shape
    if kind not in COUNTED:
        raise ValueError(f"parameters of the architecture {kind!r} are not counted here")
    return ModelSpec(**{key: getattr(shape, key) for key in shape.__slots__} | {"parameters": _count(shape, config)})


def context_in(config: Mapping[str, Any]) -> int | None:
    """Tokens of the longest sequence, as far as a config.json says it; see `models.LanguageModel.context`."""
    found = next((config[name] for name in _CONTEXT if config.get(name) is not None), None)
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None


_CONTEXT = ("max_position_embeddings", "n_positions")

_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {"intermediate_size": 11_008},
    "mistral": {"intermediate_size": 14_336, "num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"intermediate_size": 22_016, "num_key_value_heads": 32},
    "qwen3": {"intermediate_size": 22_016, "num_key_value_heads": 32, "head_dim": 128},
}
"""What transformers takes where a config.json says nothing."""

_LARGEST = 2**31
"""No size is that large."""

_HIDDEN, _LAYERS = ("hidden_size", "n_embd", "d_model"), ("num_hidden_layers", "n_layer", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "num_heads")


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    name = next((name for name in names if config.get(name) is not None), names[0])
    return _size(name, config[name])


def _size(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _LARGEST:
        raise ValueError(f"{name} is {str(value)[:40]!r}, expected a whole number of at least 1")
    return value


def _count(shape: ModelSpec, config: Mapping[str, Any]) -> int:
    """Parameters of Llama's architecture and its kin: norms, matrices, and the biases that each kind has."""
    kind = config["model_type"]
    attention = shape.attention + 2 * shape.kv
    if kind == "qwen2":
        biases = attention
    elif kind in ("llama", "qwen3") and config.get("attention_bias"):
        biases = attention + shape.hidden
    else:
        biases = 0
    if kind == "llama" and config.get("mlp_bias"):
        biases += 2 * shape.mlp + shape.hidden
    norms = 2 * shape.hidden + (2 * shape.head_size if kind == "qwen3" else 0)
    matrices = sum(inside * outside for inside, outside in shape.matrices.values())
    return shape.embeddings + shape.hidden + shape.layers * (matrices + biases + norms)


GRAPH_KINDS = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Architectures (`model_type`) that its fused decoder knows."""


def has_graphs(config: Mapping[str, Any]) -> bool:
    """Whether the engine `torch` has its fused decoder, and on a GPU CUDA graphs, for what a config.json describes."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    slides = config.get("sliding_window") and config.get("use_sliding_window", True)
    return (
        config.get("model_type") in GRAPH_KINDS
        and rope.get("rope_type", rope.get("type", "default")) in ("default", "linear", "llama3", "yarn")  # fixed ones
        and set(config.get("layer_types") or ["full_attention"]) == {"full_attention"}
        and not slides
        and config.get("hidden_act", "silu") == "silu"
        and not config.get("mlp_bias")
    )


def context_error(name: str, context: int, prompt: int, max_tokens: int) -> str:
    """That a prompt and the longest completion exceed a model's context, and what to do.

    Args:
        name: the model's.
        context: tokens that it was made for.
        prompt: tokens.
        max_tokens: of the completion.
    """
    return (
        f"a prompt of {prompt} token{'s' * (prompt != 1)} and rollout.max_completion_tokens={max_tokens} exceed the "
        f"{context} tokens that {name} was made for; lower rollout.max_completion_tokens"
    )
