"""A model's files: where they are, how large the model is, and what is wrong with them. Reads headers, not weights.

Without torch and transformers, so that `tinyzero doctor` can report on a model where these are broken.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, TypeAlias

from safetensors import SafetensorError, safe_open

from tinyzero_trainer.models.spec import COUNTED, ModelSpec, spec_from_config
from tinyzero_trainer.models.well_known import CONFIG_FILE, well_known

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
"""What transformers loads: one file, or those that the index names."""

Sizes: TypeAlias = dict[str, tuple[int, ...]]
"""Of tensors, by their names."""

_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class Fault:
    """What is wrong with a model's files."""

    what: str
    do: str
    command: str = ""

    @property
    def line(self) -> str:
        """All in one line."""
        return f"{self.what}; {self.do}{f': {self.command}' if self.command else ''}"


@dataclass(frozen=True)
class Model:
    """A model, as far as it is on this disk."""

    name: str
    """As the user gave it."""

    local: bool
    """Whether it is a directory; otherwise a name on the Hub."""

    parameters: int | None
    """From the headers of its safetensors; None = there are none here, or they are broken."""

    fault: Fault | None = None
    """What is wrong with its files; None = nothing that can be seen without loading it."""

    shape: ModelSpec | None = None
    """What memory depends on; None = not known."""

    @property
    def size(self) -> int | None:
        """Parameters, of a model that is not here too; None = not known."""
        return self.parameters or (self.shape.parameters if self.shape else None)


class _Broken(Exception):
    """A file is not what it should be."""

    def __init__(self, file: Path, what: str, command: str = "") -> None:
        super().__init__(what)
        self.fault = Fault(f"{file} {what}", "copy or download it again", command or _download(file.parent))


# ---- where a model is ------------------------------------------------------------------------------------------------


def hub_cache() -> Path:
    """Where huggingface_hub keeps models."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def cached_snapshot(model: str, cache: Path) -> Path | None:
    """The directory of the Hugging Face Hub's cache that holds a model's current version, or part of it."""
    from huggingface_hub import try_to_load_from_cache  # late: it takes a quarter of a second
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model, CONFIG_FILE, cache_dir=cache)
    except HFValidationError:  # no name that the Hub allows
        return None
    return Path(found).parent if isinstance(found, str) else None


def find_model(name: str, path: Path, cache: Path) -> Model:
    """A model that is a directory, or in the Hub's cache; of one that is neither, the shape if many people use it.

    Args:
        name: how the user calls it.
        path: the directory, or its name on the Hub.
        cache: of the Hub.
    """
    local = path.expanduser()
    if local.is_dir():
        return _in_directory(name, local, local=True)
    snapshot = cached_snapshot(str(path), cache)
    if snapshot is None or not _has_weights(snapshot):  # what is missing will be downloaded
        return Model(name, False, None, shape=well_known(str(path)))
    found = _in_directory(name, snapshot, local=False)
    command = f"hf download {path} --force-download"
    return replace(found, fault=found.fault and replace(found.fault, command=command))


def _has_weights(snapshot: Path) -> bool:
    try:
        return bool(weight_files(snapshot)) and not missing_files(snapshot)
    except _Broken:
        return True  # to be reported, since it is not downloaded again


def _in_directory(name: str, directory: Path, *, local: bool) -> Model:
    try:
        sizes = read_sizes(directory)
    except _Broken:
        sizes = {}
    parameters = sum(map(math.prod, sizes.values())) or None
    return Model(name, local, parameters, fault=find_fault(directory), shape=_shape_of(name, directory, parameters))


def _shape_of(name: str, directory: Path, parameters: int | None) -> ModelSpec | None:
    try:
        config = read_config(directory)
        return spec_from_config(name, config, None if config["model_type"] in COUNTED else parameters)
    except (_Broken, ArithmeticError, KeyError, TypeError, ValueError):
        return None


# ---- what is wrong with it -------------------------------------------------------------------------------------------


def find_fault(directory: Path) -> Fault | None:
    """Why a model's directory cannot be loaded; None where nothing can be seen without loading it."""
    try:
        config = read_config(directory)
        if (directory / "tokenizer.json").is_file():
            _read_object(directory / "tokenizer.json")
        for missing in missing_files(directory):
            raise _Broken(missing, f"is missing, which {INDEX} names")
        sizes = read_sizes(directory)
        if not sizes:
            do = "give --model a directory with config.json, model.safetensors and tokenizer"
            return Fault(f"{directory} holds no safetensors", do)
        return mismatch(directory, config, sizes)
    except _Broken as broken:
        return broken.fault


def read_config(directory: Path) -> dict[str, Any]:
    """What config.json says.

    Raises:
        _Broken: it says nothing of a model.
    """
    config = _read_object(directory / CONFIG_FILE)
    if not isinstance(config.get("model_type"), str):
        raise _Broken(directory / CONFIG_FILE, "names no model_type")
    return config


def weight_files(directory: Path) -> list[Path]:
    """The files with a model's weights, there or not; none if there is neither one file nor an index.

    Raises:
        _Broken: the index is broken.
    """
    if (directory / WEIGHTS).is_file():
        return [directory / WEIGHTS]
    if not (directory / INDEX).is_file():
        return []
    named = _read_object(directory / INDEX).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise _Broken(directory / INDEX, "names no files")
    return [directory / name for name in sorted(map(str, named.values()))]


def missing_files(directory: Path) -> list[Path]:
    """Files that the index names and that are not there."""
    return [file for file in weight_files(directory) if not file.is_file()]


def read_sizes(directory: Path) -> Sizes:
    """The sizes of a model's tensors, by the headers of its files; empty if it has none.

    Raises:
        _Broken: a file is cut off, or is something else.
    """
    sizes: Sizes = {}
    for file in dict.fromkeys(weight_files(directory)):
        sizes |= _sizes_in(file)
    return sizes


def _sizes_in(file: Path) -> Sizes:
    _refuse_pointer(file)
    try:
        with safe_open(file, framework="numpy") as tensors:
            return {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    except SafetensorError as error:
        reason = str(error).rpartition(": ")[2] if "JSON" not in str(error) else "its header is invalid"
        raise _Broken(file, f"is cut off, or is no safetensors file ({reason})") from error
    except OSError as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: OSError) -> _Broken:
    return _Broken(file, f"cannot be read ({error.strerror or error})", f"ls -l {quote(str(file))}")


def _refuse_pointer(file: Path) -> None:
    """Git leaves a text of three lines in place of a large file that Git LFS has not fetched."""
    try:
        with file.open("rb") as stream:
            is_pointer = stream.read(len(_POINTER)) == _POINTER
    except OSError as error:
        raise _unreadable(file, error) from error
    if is_pointer:
        raise _Broken(file, "is a pointer of Git LFS, not the file", f"git -C {quote(str(file.parent))} lfs pull")


def _read_object(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise _Broken(file, "is missing")
    _refuse_pointer(file)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise _unreadable(file, error) from error
    except (ValueError, RecursionError) as error:
        raise _Broken(file, "is not valid JSON") from error
    if not isinstance(content, dict):
        raise _Broken(file, "holds no JSON object")
    return content


# ---- whether its files go together -----------------------------------------------------------------------------------


def mismatch(directory: Path, config: Mapping[str, Any], held: Sizes) -> Fault | None:
    """Where the weights are not of the sizes that config.json tells of; only for the architectures counted here.

    Args:
        directory: the model's.
        config: its config.json.
        held: its tensors.
    """
    if config["model_type"] not in COUNTED or "quantization_config" in config:
        return None
    file = directory / CONFIG_FILE
    try:
        shape = spec_from_config("", config)
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        what = f"has no {error}" if isinstance(error, KeyError) else f"has impossible sizes ({error})"
        return _Broken(file, what).fault
    there = {name.removeprefix("model."): size for name, size in held.items()}  # the head's name has no such beginning
    for name, size in _asked(shape):
        if there.get(name) != size:
            has = f"one of {_by(there[name])}" if name in there else "none"
            do = "copy or download both again, of one model"
            what = f"{file} asks for {name} of {_by(size)}, and the weights have {has}"
            return Fault(what, do, _download(directory))
    return None


def _asked(shape: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Tensors that a model of a shape must have."""
    yield "embed_tokens.weight", (shape.vocabulary, shape.hidden)
    for layer in range(shape.layers):
        for name, (inside, outside) in shape.matrices.items():
            part = "self_attn" if name in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"
            yield f"layers.{layer}.{part}.{name}.weight", (outside, inside)
    if not shape.tied:
        yield "lm_head.weight", (shape.vocabulary, shape.hidden)


def _download(directory: Path) -> str:
    return f"hf download MODEL --local-dir {quote(str(directory))}"


def _by(size: tuple[int, ...]) -> str:
    return " × ".join(map(str, size))
