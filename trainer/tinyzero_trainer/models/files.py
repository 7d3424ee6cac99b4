"""A model's files: where they are, how large the model is, and what is wrong with them. Reads headers, no weights.

Without torch and transformers, so that `tinyzero doctor` can tell of a model where these are broken; `loading.py` asks
where a model could not be loaded, and `sft/default_model.py` whether one that was kept is whole.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, TypeAlias

from tinyzero_trainer.models.spec import COUNTED, ModelSpec, spec_from_config
from tinyzero_trainer.models.well_known import CONFIG_FILE, well_known

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
"""What transformers loads: one file, or those that the index names."""

Sizes: TypeAlias = dict[str, tuple[int, ...]]
"""Of tensors, by their names."""

_POINTER = b"version https://git-lfs"
_LONGEST_HEADER = 100 * 2**20
"""As the library safetensors has it."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with a model's files."""

    what: str
    """The file, and what is wrong with it."""

    do: str
    """What to do about it."""

    command: str = ""
    """What to type for that; empty = nothing."""

    @property
    def line(self) -> str:
        """All of it in one line."""
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
        command = command or _download(file.parent)
        super().__init__(Fault(f"{file} {what}", "copy or download it again", command))

    @property
    def fault(self) -> Fault:
        """For the user."""
        found: Fault = self.args[0]
        return found


# ---- where a model is ------------------------------------------------------------------------------------------------


def hub_cache() -> Path:
    """Where huggingface_hub keeps models."""
    if named := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(named)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return Path(os.environ.get("HF_HOME") or caches / "huggingface") / "hub"


def snapshots(model: str, cache: Path) -> list[Path]:
    """Directories of the Hub's cache that hold a model, or parts of it."""
    return sorted((cache.expanduser() / f"models--{model.replace('/', '--')}" / "snapshots").glob("*"))


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
    # What of a snapshot is missing will be downloaded.
    for folder in snapshots(str(path), cache):
        if _is_whole(folder):
            found = _in_directory(name, folder, local=False)
            command = f"hf download {path} --force-download"
            return replace(found, fault=found.fault and replace(found.fault, command=command))
    return Model(name, False, None, shape=well_known(str(path)))


def _is_whole(snapshot: Path) -> bool:
    try:
        return bool(weight_files(snapshot)) and not missing_files(snapshot)
    except _Broken:
        return True  # which is to be told, and will not be downloaded


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
    """Of one file: eight bytes with the length of a header, the header as JSON, the numbers."""
    _refuse_pointer(file)
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or 8 + length > size:
                cut = size < 8 or length < _LONGEST_HEADER
                raise _Broken(file, f"is cut off after {size:,} bytes" if cut else "is no safetensors file")
            header = json.loads(stream.read(length))
        tensors = {name: tensor for name, tensor in header.items() if name != "__metadata__"}
        whole = 8 + length + max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
        sizes = {name: tuple(map(int, tensor["shape"])) for name, tensor in tensors.items()}
    except OSError as error:
        raise _Broken(file, f"cannot be read ({error.strerror})", f"ls -l {quote(str(file))}") from error
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise _Broken(file, "is no safetensors file") from error
    if size != whole:
        state = "is cut off" if size < whole else "is damaged"
        raise _Broken(file, f"{state}: it has {size:,} bytes, and its header tells of {whole:,}")
    return sizes


def _refuse_pointer(file: Path) -> None:
    """Git leaves a text of three lines in place of a large file where Git LFS was not there to fetch it."""
    try:
        with file.open("rb") as stream:
            is_pointer = stream.read(len(_POINTER)) == _POINTER
    except OSError as error:
        raise _Broken(file, f"cannot be read ({error.strerror})", f"ls -l {quote(str(file))}") from error
    if is_pointer:
        raise _Broken(file, "is a pointer of Git LFS, not the file", f"git -C {quote(str(file.parent))} lfs pull")


def _read_object(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise _Broken(file, "is missing")
    _refuse_pointer(file)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise _Broken(file, f"cannot be read ({error.strerror})", f"ls -l {quote(str(file))}") from error
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
