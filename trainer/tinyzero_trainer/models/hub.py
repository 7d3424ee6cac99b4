"""The shape of a model that a user names: a directory, a name on the Hub, or the tiny model."""

import json
import os
from pathlib import Path
from ssl import SSLError
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import urlopen

from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.config import DefaultModelConfig
from tinyzero_trainer.config.model_defaults import BUILT_IN_MODEL, TINY_MODEL, directory_of
from tinyzero_trainer.models.spec import COUNTED, ModelSpec, context_in, spec_from_config
from tinyzero_trainer.models.well_known import CONFIG_FILE, WELL_KNOWN, well_known


def find_spec(model: str | None, *, download: bool = True) -> ModelSpec:
    """The shape of a model; nothing of its weights is read.

    Args:
        model: `model.path`.
        download: whether the config.json of a name that is neither in the Hub's cache nor well known may be fetched.

    Raises:
        SettingsError: there is no such model, or it is no language model.
    """
    directory = _directory(model)
    if directory is None:
        return _by_name(str(model), download=download)
    return _of_directory(TINY_MODEL if directory == BUILT_IN_MODEL else str(model), directory)


def context_of(model: str | None) -> int | None:
    """Tokens of the longest sequence a model was made for, if its config.json is here and says so; no more is read."""
    directory = _directory(model)
    try:
        config = None if directory is None else json.loads((directory / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None  # who loads the model says what is wrong with it
    return context_in(config) if isinstance(config, dict) else None


def shape_of_own(own: DefaultModelConfig) -> ModelSpec:
    """The shape of the small model that `train` makes on a GPU where none is named, with the tiny one's vocabulary."""
    tiny = find_spec(None)
    config = {
        "model_type": "qwen2",
        "hidden_size": own.hidden_size,
        "num_hidden_layers": own.layers,
        "num_attention_heads": own.hidden_size // own.head_size,
        "num_key_value_heads": own.kv_heads,
        "intermediate_size": own.mlp_size,
        "vocab_size": tiny.vocabulary,
        "max_position_embeddings": tiny.context,
        "tie_word_embeddings": True,
    }
    return spec_from_config("the small model that train makes (default_model)", config)


def _of_directory(name: str, directory: Path) -> ModelSpec:
    file = directory / CONFIG_FILE
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        return (
            spec_from_config(name, config)
            if config["model_type"] in COUNTED
            else _by_transformers(name, str(directory))
        )
    except _FAULTS as error:
        raise SettingsError(
            f"{file} does not describe a language model ({_first_line(error)}); give --model the directory of a "
            "transformers causal LM"
        ) from error


def _by_name(model: str, *, download: bool) -> ModelSpec:
    known = well_known(model)
    if known is not None:
        return known
    if not download:
        raise SettingsError(f"the model {model} is not in the Hub's cache")
    try:
        _ask_hub(model)
        return _by_transformers(model, model)
    except _FAULTS as error:
        raise SettingsError(
            f"cannot find the model {model!r} ({_first_line(error)}); give --model a directory, a name on the Hub, or "
            f"a well-known one such as {next(iter(WELL_KNOWN))}"
        ) from error


def _ask_hub(model: str) -> None:
    """Fail at once where the Hub cannot be reached: its own client goes on trying for half a minute.

    Raises:
        OSError: there is no connection.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):  # as the Hub's client reads it
        raise OSError("it is not in the Hub's cache, and HF_HUB_OFFLINE is set")
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    try:
        with urlopen(f"{endpoint}/{quote(model)}/resolve/main/{CONFIG_FILE}", timeout=_HUB_SECONDS):
            pass
    except HTTPError:
        pass  # somebody is there, who may want a token
    except URLError as error:
        if not isinstance(error.reason, SSLError):  # the Hub's client may know other certificates
            raise OSError(f"{endpoint} cannot be reached: {error.reason}") from error


def _by_transformers(name: str, source: str) -> ModelSpec:
    """Built without memory for its weights, which takes seconds: any architecture that transformers knows."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    content, _ = PreTrainedConfig.get_config_dict(source)
    if "auto_map" in content and content.get("model_type") not in CONFIG_MAPPING_NAMES:
        raise ValueError("it brings code of its own in auto_map, which is not run")
    config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    if config.is_encoder_decoder:
        raise ValueError(f"{config.model_type!r} is an encoder with a decoder")
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except ValueError as error:
        raise ValueError(f"{config.model_type!r} is no causal LM that transformers knows") from error
    text = config.get_text_config()
    content = {key: getattr(text, key, None) for key in _KEYS}
    content |= {"model_type": text.model_type, "tie_word_embeddings": bool(config.tie_word_embeddings)}
    return spec_from_config(name, content, parameters=sum(parameter.numel() for parameter in model.parameters()))


_FAULTS = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What broken files and odd architectures end in, in transformers as well."""


def _first_line(error: BaseException) -> str:
    line = next(iter(str(error).strip().splitlines()), "")
    line = f"{line[:_LONGEST]}…" if len(line) > _LONGEST else line
    return f"{type(error).__name__}: {line}" if isinstance(error, LookupError) or not line else line


_LONGEST = 160
"""Characters of a reason."""

_HUB_SECONDS = 5.0
"""In which the Hub must answer."""

_KEYS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("intermediate_size", "vocab_size", "max_position_embeddings"),
)


def _directory(model: str | None) -> Path | None:
    """Where its config.json is; None = not on this machine."""
    named = directory_of(model)
    if named is None or model is None:
        return BUILT_IN_MODEL
    from tinyzero_trainer.models.files import cached_snapshot, hub_cache

    return named.expanduser() if named.expanduser().is_dir() else cached_snapshot(model, hub_cache())
