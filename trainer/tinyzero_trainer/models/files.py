"""A model's files: where they are, how large the model is, and what is wrong with them. Reads headers, not weights.

Without torch and transformers, so that `tinyzero doctor` can report on a model where these are broken.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from io import StringIO
from logging import CRITICAL, getLogger
from pathlib import Path
from shlex import quote
from typing import Any

from safetensors import SafetensorError, safe_open

from tinyzero_sdk.progress import Progress
from tinyzero_trainer.config.model_defaults import directory_of
from tinyzero_trainer.errors import Fault
from tinyzero_trainer.models.spec import CONFIG_FILE, COUNTED, ModelSpec, spec_from_config, well_known

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
"""What transformers loads: one file, or those that the index names."""

_LOADED = ["*.json", "*.txt", "*.model", "*.jinja", WEIGHTS, "model-*.safetensors"]
"""What transformers loads of a repository on the Hub; others hold the same weights again."""

_POINTER = b"version https://git-lfs"  # such a text stands for a large file that Git LFS has not fetched


@dataclass(frozen=True)
class Model:
    """A model, as far as it is on this disk."""

    name: str
    local: bool
    """Whether it is a directory; otherwise a name on the Hub."""

    parameters: int | None
    """From the headers of its safetensors; None if it has none here, or they are broken."""

    fault: Fault | None = None
    shape: ModelSpec | None = None

    @property
    def size(self) -> int | None:
        """Parameters, also of a model that is not downloaded; None = unknown."""
        return self.parameters or (self.shape.parameters if self.shape else None)


def hub_cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def cached_snapshot(model: str, cache: Path) -> Path | None:
    """The directory of the Hugging Face Hub's cache that holds a model's current version, or part of it."""
    from huggingface_hub import try_to_load_from_cache  # late: it takes a quarter of a second
    from huggingface_hub.errors import HFValidationError

    try:
        file = try_to_load_from_cache(model, CONFIG_FILE, cache_dir=cache)
    except HFValidationError:  # not a name that the Hub allows
        return None
    return Path(file).parent if isinstance(file, str) else None


def start_loading(model: str | None, progress: Progress) -> None:
    """Begin the phase of loading a `model.path`; before it, download what is not on this machine."""
    named = directory_of(model)
    here = named is None or named.expanduser().is_dir()
    snapshot = None if here else cached_snapshot(str(named), hub_cache())
    if not here and (snapshot is None or not _is_complete(snapshot)):
        phase = f"downloading {model} from the Hugging Face Hub"
        progress.phase(phase)
        with suppress(Exception), quiet_hub():  # loading the model tries again, and says what is wrong
            _fetch(str(model), phase, progress)
    progress.phase("loading the model")


def _fetch(model: str, phase: str, progress: Progress) -> None:
    from huggingface_hub import constants, snapshot_download
    from tqdm import tqdm  # type: ignore[import-untyped]

    counted = dict[int, float]()  # bytes received, and bytes written: the library has a bar for each

    class Counter(tqdm):
        def __init__(self, *values: Any, **options: Any) -> None:
            super().__init__(*values, **{**options, "file": StringIO()})

        def display(self, *values: Any, **options: Any) -> None:
            """Nothing: the phase shows it."""

        def update(self, n: float | None = 1) -> bool | None:
            shown = super().update(n)
            if self.unit == "B":
                counted[id(self)] = self.n
                progress.update(max(counted.values()) / 1e6)
            return shown

    patterns = {"allow_patterns": _LOADED, "ignore_patterns": "*/*"}
    fetch: Any = partial(snapshot_download, model, **patterns, endpoint=constants.ENDPOINT, tqdm_class=Counter)
    size = sum(file.file_size for file in fetch(dry_run=True) if file.will_download)
    progress.phase(phase, size / 1e6, "MB")
    fetch()


@contextmanager
def quiet_hub() -> Iterator[None]:
    """No log of the Hub's library, whose retries are warnings: what fails is reported by the caller."""
    hub = getLogger("huggingface_hub")
    level = hub.level
    hub.setLevel(CRITICAL)
    try:
        yield
    finally:
        hub.setLevel(level)


def find_model(name: str, path: Path, cache: Path) -> Model:
    """A model that is a directory, or in the Hub's cache; of one that is neither, the shape if it is well known."""
    if path.expanduser().is_dir():
        return _in_directory(name, path.expanduser(), local=True)
    snapshot = cached_snapshot(str(path), cache)
    if snapshot is None or not _is_complete(snapshot):  # what is missing will be downloaded
        return Model(name, False, None, shape=well_known(str(path)))
    return _in_directory(name, snapshot, local=False, download=f"hf download {path} --force-download")


def _is_complete(snapshot: Path) -> bool:
    try:
        files = weight_files(snapshot)
    except Fault:
        return True  # a broken index is reported: it would not be downloaded again
    return bool(files) and all(file.is_file() for file in files)


def _in_directory(name: str, directory: Path, *, local: bool, download: str = "") -> Model:
    """A model with what is known of it before its first fault; `download` is what mends one of a cached model."""
    parameters, shape = None, None
    try:
        config = _read_config(directory)
        parameters = _count_parameters(directory)
        shape = _read_shape(name, directory, config, parameters)
    except Fault as fault:
        mended = Fault(fault.what, fault.do, (download,)) if download else fault
        mended.__cause__ = fault.__cause__
        return Model(name, local, parameters, mended)
    return Model(name, local, parameters, shape=shape)


def _read_config(directory: Path) -> dict[str, Any]:
    """The content of config.json; reads the tokenizer too, if there is one, to see that it is intact."""
    config = _read_object(directory / CONFIG_FILE)
    if not isinstance(config.get("model_type"), str):
        raise _fault(directory / CONFIG_FILE, "names no model_type")
    if (directory / "tokenizer.json").is_file():
        _read_object(directory / "tokenizer.json")
    return config


def weight_files(directory: Path) -> list[Path]:
    """The files with a model's weights, present or not; none if there is neither one file nor an index."""
    if (directory / WEIGHTS).is_file():
        return [directory / WEIGHTS]
    if not (directory / INDEX).is_file():
        return []
    files = _read_object(directory / INDEX).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise _fault(directory / INDEX, "names no files")
    return sorted({directory / str(name) for name in files.values()})


def _count_parameters(directory: Path) -> int:
    """A model's parameters, by the headers of its files."""
    files, parameters = weight_files(directory), 0
    if not files:
        do = "give --model a directory with config.json, model.safetensors and tokenizer"
        raise Fault(f"{directory} holds no safetensors", do)
    for file in files:
        if not file.is_file():
            raise _fault(file, f"is missing, which {INDEX} names")
        try:
            with safe_open(file, framework="numpy") as tensors:
                parameters += sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
        except SafetensorError as error:
            raise _damaged(file, f"is cut off, or is no safetensors file ({error})") from error
        except OSError as error:
            raise _fault(file, f"cannot be read ({error.strerror or error})") from error
    return parameters


def _read_shape(name: str, directory: Path, config: dict[str, Any], parameters: int) -> ModelSpec | None:
    is_counted = config["model_type"] in COUNTED
    try:
        return spec_from_config(name, config, None if is_counted else parameters)
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        if not is_counted:
            return None  # transformers knows what its config.json means
        what = f"has no {error}" if isinstance(error, KeyError) else f"has impossible sizes ({error})"
        raise _fault(directory / CONFIG_FILE, what) from error


def _read_object(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise _fault(file, "is missing") from error
    except OSError as error:
        raise _fault(file, f"cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise _damaged(file, "is not valid JSON") from error
    if not isinstance(content, dict):
        raise _fault(file, "holds no JSON object")
    return content


def _fault(file: Path, what: str, command: str = "") -> Fault:
    download = f"hf download MODEL --local-dir {quote(str(file.parent))}"
    return Fault(f"{file} {what}", "copy or download it again", (command or download,))


def _damaged(file: Path, what: str) -> Fault:
    with file.open("rb") as stream:
        if stream.read(len(_POINTER)) == _POINTER:
            return _fault(file, "is a pointer of Git LFS, not the file", f"git -C {quote(str(file.parent))} lfs pull")
    return _fault(file, what)
