"""The sizes of a model that a user names: a directory, a name on the Hub, or the tiny model."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.config.model_defaults import BUILT_IN_MODEL, TINY_MODEL, directory_of, is_path
from tinyzero_trainer.errors import first_line
from tinyzero_trainer.models.files import cached_snapshot, hub_cache
from tinyzero_trainer.models.spec import (
    CONFIG_FILE,
    COUNTED,
    ModelSpec,
    refuse_untrainable,
    spec_from_config,
    well_known,
)

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_FAULTS = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What broken files and odd architectures end in, in transformers as well."""


def find_spec(model: str | None, *, download: bool = True) -> ModelSpec:
    """The sizes of a model, without its weights; a SettingsError if there is none, or none that can be trained.

    `download`: whether the config.json of a name that is neither in the Hub's cache nor well known may be fetched.
    """
    directory = _directory(model)
    if directory is None and (known := well_known(str(model))) is not None:
        return known
    if directory is None and not download:
        raise SettingsError(f"the model {model} is not in the Hub's cache")
    if directory is None:
        _require_on_hub(str(model))
    name = TINY_MODEL if directory == BUILT_IN_MODEL else str(model)
    try:
        config = {} if directory is None else _read_config(directory)
        if config.get("model_type") not in COUNTED:
            return _by_transformers(name, str(directory or model))
        refuse_untrainable(name, config)
        return spec_from_config(name, config)
    except _FAULTS as error:
        raise SettingsError(
            f"{directory / CONFIG_FILE if directory else model} does not describe a language model "
            f"({first_line(error)}); give --model a directory with a transformers causal LM, or its name on the Hub"
        ) from error


def config_of(model: str | None) -> Mapping[str, Any]:
    """A model's config.json; empty if it is not on this machine, or broken."""
    directory = _directory(model)
    try:
        return {} if directory is None else _read_config(directory)
    except _FAULTS:
        return {}  # loading the model reports it


def _read_config(directory: Path) -> dict[str, Any]:
    return dict(json.loads((directory / CONFIG_FILE).read_text(encoding="utf-8")))


def refuse_unreachable(model: str | None) -> None:
    """Refuse a name that is neither on this machine nor on the Hub, within seconds, before PyTorch is loaded."""
    if model is not None and not is_path(model) and _directory(model) is None:
        _require_on_hub(model)


def _directory(model: str | None) -> Path | None:
    named = directory_of(model)
    if named is None or model is None:
        return BUILT_IN_MODEL
    return named.expanduser() if named.expanduser().is_dir() else cached_snapshot(model, hub_cache())


def _require_on_hub(model: str) -> None:
    """Refuse at once a name that the Hub does not have or give, for which transformers would retry half a minute."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    hub = constants.ENDPOINT
    try:
        get_hf_file_metadata(hf_hub_url(model, CONFIG_FILE, endpoint=hub), timeout=constants.HF_HUB_ETAG_TIMEOUT)
        return
    except GatedRepoError:
        reason = f"it asks to accept its terms at {hub}/{model}, and then for HF_TOKEN"
    except RepositoryNotFoundError:
        reason = f"{hub} has none of that name, or a private one that needs HF_TOKEN"
    except HfHubHTTPError:
        return  # transformers says what is wrong
    except ValueError as error:  # not a name that the Hub allows
        reason = first_line(error)
    except Exception as error:  # of the HTTP library, which depends on the version of huggingface_hub
        reason = f"{hub} cannot be reached: {first_line(error)}"
    raise SettingsError(
        f"cannot find the model {model!r}: there is no such directory, and {reason}; give --model a model's "
        "directory, or its name on the Hub"
    )


def architecture(model: str | None) -> "tuple[PreTrainedConfig, type[PreTrainedModel]]":
    """The configuration and the class of transformers of a `model.path`, from its config.json alone.

    Raises:
        SettingsError: it is not one that can be trained.
        OSError, ValueError: it cannot be read.
    """
    from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedConfig, __version__

    source = str(directory_of(model) or BUILT_IN_MODEL)
    content, _ = PreTrainedConfig.get_config_dict(source)
    refuse_untrainable(source, content)
    kind = content.get("model_type")
    if kind is not None and kind not in CONFIG_MAPPING:
        code = ", and it brings code of its own in auto_map, which is not run" if "auto_map" in content else ""
        raise SettingsError(f"{source}: transformers {__version__} has no {kind!r}{code}; give a model that it knows")
    config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    # Either may name code of the Hub that transformers would fetch and run.
    config._attn_implementation = config._experts_implementation = None
    architecture: Any = AutoModelForCausalLM._model_mapping.get(type(config), None)
    text = config.get_text_config()
    if text is not config and (architecture is None or architecture.config_class is type(config)):
        raise SettingsError(
            f"{source}: {kind!r} is multimodal, and only text models are trained; give a text model, such as one of "
            f"model_type {text.model_type!r}"
        )
    if architecture is None or config.is_encoder_decoder:
        raise SettingsError(f"{source}: {kind!r} is no causal LM that transformers knows; give one, such as a Qwen3")
    return config, architecture


def outline(model: str | None) -> "PreTrainedModel":
    """The model of a `model.path` without memory for its weights, in a second; raises what `architecture` raises."""
    import torch
    from transformers import AutoModelForCausalLM

    config, _ = architecture(model)
    with torch.device("meta"):
        built: PreTrainedModel = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return built


@cache  # it takes seconds
def _by_transformers(name: str, source: str) -> ModelSpec:
    """The sizes of a model of any architecture that transformers knows."""
    model = outline(source)
    config = model.config
    text = config.get_text_config()
    sizes = (
        *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
        *("intermediate_size", "vocab_size", "max_position_embeddings"),
    )
    content = text.to_dict() | {key: getattr(text, key, None) for key in sizes}
    content |= {"model_type": text.model_type, "tie_word_embeddings": bool(config.tie_word_embeddings)}
    return spec_from_config(name, content, parameters=sum(parameter.numel() for parameter in model.parameters()))
