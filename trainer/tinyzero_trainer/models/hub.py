"""The sizes of a model that a user names: a directory, a name on the Hub, or the tiny model."""

import json
from pathlib import Path

from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.config.model_defaults import BUILT_IN_MODEL, TINY_MODEL, directory_of
from tinyzero_trainer.errors import first_line
from tinyzero_trainer.models.files import cached_snapshot, hub_cache
from tinyzero_trainer.models.spec import (
    CONFIG_FILE,
    COUNTED,
    WELL_KNOWN,
    ModelSpec,
    context_in,
    spec_from_config,
    well_known,
)

_HUB_SECONDS = 5.0
_FAULTS = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What broken files and odd architectures end in, in transformers as well."""


def find_spec(model: str | None, *, download: bool = True) -> ModelSpec:
    """The sizes of a model; its weights are not read.

    Args:
        download: whether the config.json of a name that is neither in the Hub's cache nor well known may be fetched.

    Raises:
        SettingsError: there is no such model, or it is not a language model.
    """
    directory = _directory(model)
    if directory is None:
        return _by_name(str(model), download=download)
    name, file = TINY_MODEL if directory == BUILT_IN_MODEL else str(model), directory / CONFIG_FILE
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        is_counted = config["model_type"] in COUNTED
        return spec_from_config(name, config) if is_counted else _by_transformers(name, str(directory))
    except _FAULTS as error:
        raise SettingsError(
            f"{file} does not describe a language model ({first_line(error)}); give --model the directory of a "
            "transformers causal LM"
        ) from error


def context_of(model: str | None) -> int | None:
    """Tokens of the longest sequence a model was made for, if its config.json is on this machine and says so."""
    directory = _directory(model)
    try:
        config = None if directory is None else json.loads((directory / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None  # loading the model reports it
    return context_in(config) if isinstance(config, dict) else None


def _directory(model: str | None) -> Path | None:
    named = directory_of(model)
    if named is None or model is None:
        return BUILT_IN_MODEL
    return named.expanduser() if named.expanduser().is_dir() else cached_snapshot(model, hub_cache())


def _by_name(model: str, *, download: bool) -> ModelSpec:
    if (known := well_known(model)) is not None:
        return known
    if not download:
        raise SettingsError(f"the model {model} is not in the Hub's cache")
    try:
        _check_hub(model)
        return _by_transformers(model, model)
    except _FAULTS as error:
        raise SettingsError(
            f"cannot find the model {model!r} ({first_line(error)}); give --model a directory, a name on the Hub, or "
            f"a well-known one such as {next(iter(WELL_KNOWN))}"
        ) from error


def _check_hub(model: str) -> None:
    """Raise an OSError at once where the Hub cannot be reached: transformers would retry for half a minute."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    url = hf_hub_url(model, CONFIG_FILE, endpoint=constants.ENDPOINT)
    try:
        get_hf_file_metadata(url, timeout=_HUB_SECONDS)
    except HfHubHTTPError:
        pass  # transformers says what is wrong, e.g. that a token is needed
    except (OSError, ValueError):
        raise
    except Exception as error:  # of the HTTP library, which depends on the version of huggingface_hub
        raise OSError(f"{constants.ENDPOINT} cannot be reached: {error}") from error


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
    sizes = (
        *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
        *("intermediate_size", "vocab_size", "max_position_embeddings"),
    )
    content = {key: getattr(text, key, None) for key in sizes}
    content |= {"model_type": text.model_type, "tie_word_embeddings": bool(config.tie_word_embeddings)}
    return spec_from_config(name, content, parameters=sum(parameter.numel() for parameter in model.parameters()))
