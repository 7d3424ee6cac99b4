"""A model's sizes, read from what transformers writes as config.json, and its exact number of parameters. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tinyzero_sdk.errors import SettingsError

CONFIG_FILE = "config.json"

COUNTED = ("llama", "mistral", "qwen2", "qwen3")
"""Architectures (`model_type`) whose parameters are counted here; transformers counts those of others."""

FUSED = (*COUNTED, "olmo2", "phi3", "smollm3")
"""Architectures that the engine `torch` generates with its own decoders, and with CUDA graphs; see `has_graphs`."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What memory and time depend on."""

    name: str
    parameters: int
    """All of them; a head that is the embedding counts once."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    mlp: int
    """Width inside the gated MLP."""

    vocabulary: int
    """Tokens, padding included."""

    tied: bool
    """Whether the output head is the embedding."""

    graphs: bool = True
    """Whether `rollout.engine=torch` generates with CUDA graphs, which need memory; see `has_graphs`."""

    context: int | None = None
    """Tokens of the longest sequence it was made for; None = its config.json does not say."""

    @property
    def embedding(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def embeddings(self) -> int:
        return self.embedding * (1 if self.tied else 2)

    @property
    def layer(self) -> int:
        return (self.parameters - self.embeddings) // max(1, self.layers)

    @property
    def attention(self) -> int:
        """Width of the queries, and of the attention's output."""
        return self.heads * self.head_size

    @property
    def kv(self) -> int:
        """Width of the keys; that of the values is the same."""
        return self.kv_heads * self.head_size

    @property
    def cache_numbers(self) -> int:
        """Numbers in the KV cache per token."""
        return 2 * self.layers * self.kv

    @property
    def repeated_heads(self) -> int:
        """Copies of keys and values that transformers makes for grouped queries; 0 = queries are not grouped."""
        return self.heads // self.kv_heads if self.heads > self.kv_heads else 0

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Input and output width of a layer's linear layers, by name."""
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
    """The sizes in a config.json, of a multimodal model in its text part; `parameters` = None are counted here.

    Raises:
        KeyError, TypeError, ValueError: it does not describe a decoder, or `parameters` is needed.

    Example:
        >>> small = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> spec_from_config("small", small | {"intermediate_size": 16, "vocab_size": 10}).parameters
        824
    """
    kind = str(config.get("model_type"))
    hidden = _size(config, "hidden_size", "n_embd", "d_model")
    layers = _size(config, "num_hidden_layers", "n_layer", "num_layers")
    heads = _size(config, "num_attention_heads", "n_head", "num_heads")
    config = {**_DEFAULTS.get(kind, {}), **config}
    mlp = config.get("n_inner") or 4 * hidden
    derived = {"num_key_value_heads": heads, "head_dim": hidden // heads, "intermediate_size": mlp}
    config |= {key: value for key, value in derived.items() if not config.get(key)}
    spec = ModelSpec(
        name,
        parameters or 0,
        hidden,
        layers,
        heads,
        kv_heads=min(_size(config, "num_key_value_heads"), heads),
        head_size=_size(config, "head_dim"),
        mlp=_size(config, "intermediate_size"),
        vocabulary=_size(config, "vocab_size"),
        tied=bool(config.get("tie_word_embeddings", kind not in COUNTED)),
        graphs=has_graphs(config),
        context=context_in(config),
    )
    if parameters is not None:
        return spec
    if kind not in COUNTED:
        raise ValueError(f"parameters of the architecture {kind!r} are not counted here")
    return replace(spec, parameters=_count(spec, config))


def refuse_untrainable(name: str, config: Mapping[str, Any]) -> None:
    """Refuse what a config.json rules out: quantised weights, and architectures that predict no next token."""
    if (settings := config.get("quantization_config")) is not None:
        how = settings.get("quant_method", "unnamed") if isinstance(settings, Mapping) else settings
        raise SettingsError(
            f"{name} is quantised ({str(how)[:40]}), which cannot be trained; give the model that it was made from"
        )
    heads = ("ForMaskedLM", "ForPreTraining", "Classification", "ForQuestionAnswering")
    for architecture in config.get("architectures") or ():
        if str(architecture).endswith(heads):
            raise SettingsError(f"{name} is a {architecture}, which predicts no next token; give a causal LM")


def context_in(config: Mapping[str, Any]) -> int | None:
    """Tokens of the longest sequence, as far as a config.json says it; see `models.loading.LanguageModel.context`."""
    keys = ("max_position_embeddings", "n_positions")
    length = next((config[key] for key in keys if config.get(key) is not None), None)
    return length if isinstance(length, int) and not isinstance(length, bool) and length > 0 else None


_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {"intermediate_size": 11_008},
    "mistral": {"intermediate_size": 14_336, "num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"intermediate_size": 22_016, "num_key_value_heads": 32},
    "qwen3": {"intermediate_size": 22_016, "num_key_value_heads": 32, "head_dim": 128},
}
"""What transformers takes where a config.json says nothing."""


def _size(config: Mapping[str, Any], *names: str) -> int:
    name = next((name for name in names if config.get(name) is not None), names[0])
    value = config[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
        raise ValueError(f"{name} is {str(value)[:40]!r}, expected a whole number of at least 1")
    return value


def _count(spec: ModelSpec, config: Mapping[str, Any]) -> int:
    kind, biases = config["model_type"], 0
    attention = spec.attention + 2 * spec.kv
    if kind == "qwen2":
        biases = attention
    elif kind in ("llama", "qwen3") and config.get("attention_bias"):
        biases = attention + spec.hidden
    if kind == "llama" and config.get("mlp_bias"):
        biases += 2 * spec.mlp + spec.hidden
    norms = 2 * spec.hidden + (2 * spec.head_size if kind == "qwen3" else 0)
    matrices = sum(inside * outside for inside, outside in spec.matrices.values())
    return spec.embeddings + spec.hidden + spec.layers * (matrices + biases + norms)


def has_graphs(config: Mapping[str, Any]) -> bool:
    """Whether the engine `torch` has its fused decoder, and on a GPU CUDA graphs, for what a config.json describes."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        return False
    slides = config.get("sliding_window") and config.get("use_sliding_window", True)
    return (
        config.get("model_type") in FUSED
        and rope.get("rope_type", rope.get("type", "default")) in ("default", "linear", "llama3", "yarn")  # fixed ones
        and (rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1) == 1
        and set(config.get("layer_types") or ["full_attention"]) == {"full_attention"}
        and not slides
        and config.get("hidden_act", "silu") == "silu"
        and not config.get("mlp_bias")
    )


def context_error(name: str, context: int, prompt: int, max_tokens: int) -> str:
    """That a prompt and the longest completion, in tokens, exceed a model's context, and what to do."""
    return (
        f"a prompt of {prompt} token{'s' * (prompt != 1)} and rollout.max_completion_tokens={max_tokens} exceed the "
        f"{context} tokens that {name} was made for; lower rollout.max_completion_tokens"
    )


def _qwen2_5(size: str, *sizes: int, tied: bool = True) -> ModelSpec:
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    config = dict(zip((*names, "vocab_size"), sizes, strict=True))
    return spec_from_config(f"Qwen/Qwen2.5-{size}", {"model_type": "qwen2", "tie_word_embeddings": tied, **config})


_QWEN2_5 = (
    _qwen2_5("0.5B", 896, 4864, 24, 14, 2, 151_936),
    _qwen2_5("1.5B", 1536, 8960, 28, 12, 2, 151_936),
    _qwen2_5("3B", 2048, 11_008, 36, 16, 2, 151_936),
    _qwen2_5("7B", 3584, 18_944, 28, 28, 4, 152_064, tied=False),
    _qwen2_5("14B", 5120, 13_824, 48, 40, 8, 152_064, tied=False),
    _qwen2_5("32B", 5120, 27_648, 64, 40, 8, 152_064, tied=False),
)
WELL_KNOWN = {spec.name: spec for spec in _QWEN2_5}


def well_known(model: str) -> ModelSpec | None:
    """The sizes of a well-known model, also of its instruction-tuned, coding and mathematical variants; else None.

    Example:
        >>> well_known("Qwen/Qwen2.5-0.5B-Instruct").parameters
        494032768
    """
    spec = WELL_KNOWN.get(model.removesuffix("-Instruct").replace("-Coder-", "-").replace("-Math-", "-"))
    return spec and replace(spec, name=model)
