"""Loading a language model, its tokenizer and its end tokens, and saving them so that others can load them."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.config.model_defaults import BUILT_IN_MODEL, TINY_MODEL, directory_of
from tinyzero_trainer.distributed.fsdp import on_device, ranks_of
from tinyzero_trainer.errors import first_line
from tinyzero_trainer.models.files import find_model, hub_cache, quiet_hub
from tinyzero_trainer.models.float8 import Float8Linear, Float8Mlp
from tinyzero_trainer.models.hub import architecture
from tinyzero_trainer.models.lora import DIRECTORY as ADAPTER_DIRECTORY
from tinyzero_trainer.models.lora import Adapter, merged_weights


class ModelError(TinyZeroError):
    """A model cannot be loaded, or cannot do what is asked of it."""


@dataclass(frozen=True, slots=True)
class LanguageModel:
    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    eos_ids: frozenset[int]
    """Every token that ends a completion: generation_config's (often several) and the tokenizer's."""

    pad_id: int
    adapter: Adapter | None = None
    """What is trained instead of all weights, with LoRA."""

    @property
    def context(self) -> int:
        """Longest sequence the model was made for, in tokens."""
        return int(getattr(self.model.config, "max_position_embeddings", 0) or 2**31)

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def trained_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)

    @property
    def trained(self) -> str:
        part = f"{self.trained_parameters:,} of {self.parameters:,}" if self.adapter else f"all {self.parameters:,}"
        in_float8 = sum(isinstance(module, Float8Mlp | Float8Linear) for module in self.model.modules())
        return f"training {part} parameters" + (f", {in_float8} modules in float8" if in_float8 else "")


def load_model(path: str | None, device: torch.device, dtype: torch.dtype = torch.float32) -> LanguageModel:
    """A causal LM and its tokenizer; safetensors only, since a pickle can hold any code.

    Raises a SettingsError if it cannot be trained, and a ModelError if it is not there, broken or an adapter.
    """
    source = str(directory_of(path) or BUILT_IN_MODEL)
    _refuse_adapter(source, Path(source, "adapter_config.json").exists())
    try:
        with _quiet_transformers():
            config, _ = architecture(source)
            # transformers gives what config.json lacks a size of its own, which may be gigabytes.
            _require_intact(source)
            tokenizer = _read_tokenizer(source)
            # Missing or mismatched weights would be random numbers: the report lists them.
            model, report = cast(Any, AutoModelForCausalLM).from_pretrained(
                source,
                config=config,
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except (MemoryError, torch.OutOfMemoryError, TinyZeroError):
        raise
    except Exception as error:  # the border to transformers: broken files raise anything there
        _require_intact(source)
        raise _loading_error(source, first_line(error)) from error
    _refuse_adapter(source, getattr(model, "_hf_peft_config_loaded", False))  # transformers loads those of the Hub
    misfits = [f"{name} is of {tuple(has)} and not of {tuple(needs)}" for name, has, needs in report["mismatched_keys"]]
    misfits += [f"{name} is missing" for name in report["missing_keys"]]
    if misfits:
        more = f", and {len(misfits) - 1} more like that" if len(misfits) > 1 else ""
        raise _loading_error(source, f"its weights do not fit its config.json: {min(misfits)}{more}")
    if not tokenizer.get_vocab().keys() - set(tokenizer.all_special_tokens):  # transformers' own, where it has no file
        raise _loading_error(source, "its tokenizer is missing or empty")
    model.to(device)
    require_finite(source, model)
    return from_parts(TINY_MODEL if directory_of(path) is None else source, model, tokenizer)


def load_tokenizer(path: str | None) -> PreTrainedTokenizerBase:
    """The tokenizer of a `model.path`; a ModelError if it cannot be loaded."""
    source = str(directory_of(path) or BUILT_IN_MODEL)
    try:
        with _quiet_transformers():
            return _read_tokenizer(source)
    except Exception as error:  # as in `load_model`
        _require_intact(source)
        raise _loading_error(source, first_line(error)) from error


def _read_tokenizer(source: str) -> PreTrainedTokenizerBase:
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    # Each checkpoint would copy them one by one, a fifth of what a small model's takes, only to write the tokenizer's
    # own in their place.
    tokenizer.init_kwargs.pop("added_tokens_decoder", None)
    return tokenizer


def require_same_tokens(path: str | None, teacher: str) -> None:
    """Raise a ModelError if a token of the model `path` is another one to the teacher; reads the tokenizers alone."""
    ours, theirs = (load_tokenizer(name).get_vocab() for name in (path, teacher))
    if different := sorted((index, token) for token, index in ours.items() if theirs.get(token) != index):
        index, token = different[0]
        raise ModelError(
            f"model.teacher={teacher} has another tokenizer than the policy: {len(different):,} of {len(ours):,} "
            f"tokens differ, the first is {token!r}, {index} to the policy and {theirs.get(token)} to the teacher; "
            "give a teacher of the policy's family"
        )


def _require_intact(source: str) -> None:
    """Raise a ModelError that names the broken file, if there is one."""
    if (fault := find_model(source, Path(source), hub_cache()).fault) is not None:
        raise ModelError(f"cannot load the model {source!r}: {fault}") from fault.__cause__


def _loading_error(source: str, reason: str) -> ModelError:
    return ModelError(
        f"cannot load the model {source!r} ({reason}); give a directory with config.json, safetensors and tokenizer, "
        "or a model name on the Hub"
    )


def _refuse_adapter(source: str, is_adapter: bool) -> None:
    if is_adapter:
        raise ModelError(
            f"{source} is an adapter, not a model; give a model that has it merged (a run's checkpoints/step_N has)"
        )


def require_finite(source: str, model: nn.Module) -> None:
    """Raise a ModelError that names the first weights with values that are NaN or infinite."""
    for name, weights in model.named_parameters():
        # A sum takes a tenth of the time, in a pass without memory of its own; where it overflows, it says nothing.
        if not (weights.sum().isfinite() or weights.isfinite().all()):
            raise ModelError(f"{source} has NaN or infinite values in {name}; give an intact model")


def from_parts(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> LanguageModel:
    """Combine a model and its tokenizer.

    Raises:
        ModelError: neither has an end token, so that completions would never end, or tokens that a prompt or a
            completion can have are none of the model.
    """
    ids, rows = set[int](), len(cast(Any, model.get_input_embeddings()).weight)
    for source in (model.generation_config, tokenizer):
        value = getattr(source, "eos_token_id", None)
        tokens = value if isinstance(value, list) else [] if value is None else [value]
        if wrong := [token for token in tokens if type(token) is not int]:
            raise ModelError(f"{name} has the end token {wrong[0]!r}; set eos_token_id to the number of a token")
        ids.update(tokens)
    if not ids:
        raise ModelError(f"{name} names no end token; set eos_token in its tokenizer or generation_config.json")
    if wrong := [token for token in sorted(ids) if not 0 <= token < rows]:
        raise ModelError(
            f"{name} has {rows:,} embeddings, and the end token {wrong[0]:,}; set eos_token_id to one of them"
        )
    added, written = tokenizer.added_tokens_decoder, str(tokenizer.chat_template)
    for token, number in tokenizer.get_vocab().items() if len(tokenizer) > rows else ():
        # A special one that nothing writes may be beyond them, as that of images in a text model's tokenizer.
        is_unused = number in added and added[number].special and token != tokenizer.bos_token and token not in written
        if number >= rows and not is_unused:
            raise ModelError(
                f"{name} has {rows:,} embeddings, and its tokenizer {token!r} as number {number:,}; give the tokenizer "
                "that it was trained with, or resize its embeddings (resize_token_embeddings)"
            )
    pad_id = tokenizer.pad_token_id
    pad_id = min(ids) if pad_id is None or pad_id >= rows else pad_id  # read nowhere
    return LanguageModel(name, model, tokenizer, frozenset(ids), cast(int, pad_id))


def save_model(directory: Path, language_model: LanguageModel) -> None:
    """Write weights and tokenizer as transformers and vLLM load them: an adapter merged, and also separately.

    Where several ranks hold the model, all must call this, and the first writes from host memory.
    """
    model, ranks = language_model.model, ranks_of(language_model.model)
    with _quiet_transformers(), on_device(model):
        state = _gathered(model, keep=ranks.is_main)
        if ranks.is_main:
            model.save_pretrained(directory, state_dict=state)
            language_model.tokenizer.save_pretrained(directory)
        if language_model.adapter is not None:
            language_model.adapter.save(directory / ADAPTER_DIRECTORY)


def _gathered(model: PreTrainedModel, *, keep: bool) -> dict[str, torch.Tensor]:
    """All weights on the host, gathered one after another; tied ones once, as transformers expects."""
    tied = {name: id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)}
    state, once = dict[str, torch.Tensor](), dict[int | str, torch.Tensor]()
    for name, tensor in merged_weights(model):
        if keep:
            state[name] = once.setdefault(tied.get(name, name), tensor.cpu())
    return state


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No progress bars and no advice on standard error, where the run shows its progress."""
    logging = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with quiet_hub():
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
