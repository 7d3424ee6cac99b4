"""The shape of a model that a user names: a directory, a name on the Hub, or the tiny model."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.config import OwnModelConfig
from tinyzero_trainer.plan.shape import COUNTED, ModelShape, shape_of
from tinyzero_trainer.presets import BUILT_IN_MODEL, TINY_MODEL, directory_of

CONFIG_FILE = "config.json"


def find_shape(model: str | None, *, download: bool = True) -> ModelShape:
    """The shape of a model; nothing of its weights is read.

    Args:
        model: `model.path`.
        download: whether the config.json of a name that is neither in the Hub's cache nor well known may be fetched.

    Raises:
        SettingsError: there is no such model, or it is no language model.
    """
    named = directory_of(model)
    if named is None or model is None:
        return _of_directory(TINY_MODEL, BUILT_IN_MODEL)
    directory = named.expanduser() if named.expanduser().is_dir() else _in_cache(model)
    return _by_name(model, download=download) if directory is None else _of_directory(model, directory)


def shape_of_own(own: OwnModelConfig) -> ModelShape:
    """The shape of the small model that `train` makes on a GPU where none is named, with the tiny one's vocabulary."""
    config = {
        "model_type": "qwen2",
        "hidden_size": own.hidden_size,
        "num_hidden_layers": own.layers,
        "num_attention_heads": own.hidden_size // own.head_size,
        "num_key_value_heads": own.kv_heads,
        "intermediate_size": own.mlp_size,
        "vocab_size": find_shape(None).vocabulary,
        "tie_word_embeddings": True,
    }
    return shape_of("the small model that train makes (own_model)", config)


def well_known(model: str) -> ModelShape | None:
    """The shape of a model that many people use, which needs no download; also of what was made from it.

    Example:
        >>> well_known("Qwen/Qwen2.5-0.5B-Instruct").parameters
        494032768
    """
    for name, config in WELL_KNOWN.items():
        if model == name or model in (f"{name}-Instruct", f"{name}-Base"):
            return shape_of(model, config)
    return None


def _of_directory(name: str, directory: Path) -> ModelShape:
    file = directory / CONFIG_FILE
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        return shape_of(name, config) if config["model_type"] in COUNTED else _by_transformers(name, str(directory))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"{file} does not describe a language model ({type(error).__name__}: {error}); give --model the directory "
            "of a transformers causal LM"
        ) from error


def _by_name(model: str, *, download: bool) -> ModelShape:
    known = well_known(model)
    if known is not None:
        return known
    if not download:
        raise SettingsError(f"the model {model} is not in the Hub's cache")
    try:
        return _by_transformers(model, model)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SettingsError(
            f"cannot find the model {model!r} ({reason}); give --model a directory, a name on the Hub, or one of "
            f"{', '.join(WELL_KNOWN)}"
        ) from error


def _by_transformers(name: str, source: str) -> ModelShape:
    """Built without memory for its weights, which takes seconds: any architecture that transformers knows."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(source)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    text = config.get_text_config()
    content = {key: getattr(text, key, None) for key in _KEYS}
    content |= {"model_type": text.model_type, "tie_word_embeddings": bool(config.tie_word_embeddings)}
    return shape_of(name, content, parameters=sum(parameter.numel() for parameter in model.parameters()))


_KEYS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("intermediate_size", "vocab_size"),
)


def _in_cache(model: str) -> Path | None:
    from tinyzero_trainer.doctor.probe import hub_cache, snapshots

    return next((folder for folder in snapshots(model, hub_cache()) if (folder / CONFIG_FILE).is_file()), None)


_SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "vocab_size"),
)


def _config(kind: str, *sizes: int, **more: Any) -> Mapping[str, Any]:
    return {"model_type": kind, **dict(zip(_SIZES, sizes, strict=True)), "tie_word_embeddings": True, **more}


WELL_KNOWN = {
    "Qwen/Qwen2.5-0.5B": _config("qwen2", 896, 4864, 24, 14, 2, 151_936),
    "Qwen/Qwen2.5-1.5B": _config("qwen2", 1536, 8960, 28, 12, 2, 151_936),
    "Qwen/Qwen2.5-3B": _config("qwen2", 2048, 11_008, 36, 16, 2, 151_936),
    "Qwen/Qwen2.5-7B": _config("qwen2", 3584, 18_944, 28, 28, 4, 152_064, tie_word_embeddings=False),
    "Qwen/Qwen3-0.6B": _config("qwen3", 1024, 3072, 28, 16, 8, 151_936, head_dim=128),
    "Qwen/Qwen3-1.7B": _config("qwen3", 2048, 6144, 28, 16, 8, 151_936, head_dim=128),
    "Qwen/Qwen3-4B": _config("qwen3", 2560, 9728, 36, 32, 8, 151_936, head_dim=128),
    "meta-llama/Llama-3.2-1B": _config("llama", 2048, 8192, 16, 32, 8, 128_256, head_dim=64),
    "meta-llama/Llama-3.2-3B": _config("llama", 3072, 8192, 28, 24, 8, 128_256, head_dim=128),
}
"""As their config.json on the Hub says."""
