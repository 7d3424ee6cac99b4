"""Readers of other tools' outputs, by name. Each yields blocks of rows with `completion` and `ground_truth`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from tinyzero_sdk.data.files import READ_ENDINGS, check_ending, read_blocks
from tinyzero_sdk.data.table import Block
from tinyzero_sdk.errors import DataError, SettingsError, describe_error, did_you_mean
from tinyzero_sdk.plugins.validation import check_sdk_version
from tinyzero_sdk.scoring.readers import hf, lm_eval, verl


@dataclass(frozen=True, slots=True)
class Reader:
    """A format of outputs. A plugin adds its own by name, through the entry-point group `tinyzero.readers`."""

    read: Callable[[Path], Iterator[Block]]  # yields the blocks of a file or folder, or raises DataError
    is_typed: Callable[[Path], bool] = lambda path: False  # whether the blocks have typed columns, and not JSON objects
    export: Callable[[Path, Path, bool], dict[Path, int]] | None = None
    """Writes the scored completions of a source to a target, replacing files if told so; completions of each file."""


OWN = Reader(read_blocks, is_typed=lambda path: path.suffix == ".parquet")
"""A .jsonl, .csv or .parquet file with `completion` and `ground_truth`."""

READERS = {
    "rows": OWN,
    "verl": Reader(verl.read),
    "lm-eval": Reader(lm_eval.read),
    "hf": Reader(hf.read, is_typed=lambda path: True),
}
INSTALLABLE = {"inspect": "tinyzero-inspect"}  # distributions with further formats


def load_reader(name: str) -> Reader:
    """The reader of this name, built in or of an installed plugin."""
    if name in READERS:
        return READERS[name]
    installed = entry_points(group="tinyzero.readers")
    if name not in installed.names:
        if name in INSTALLABLE:
            raise SettingsError(f"the format {name!r} needs a plugin: pip install {INSTALLABLE[name]}")
        known = dict.fromkeys([*READERS, *INSTALLABLE, *sorted(installed.names)])
        raise SettingsError(f"no format {name!r}; {did_you_mean(name, known)}known: {', '.join(known)}")
    point = installed[name]
    assert point.dist is not None  # entry_points() sets it
    check_sdk_version(point.dist)
    try:
        reader = point.load()
    except Exception as error:  # whatever the plugin's module raises
        raise SettingsError(f"the format {name!r} of {point.dist.name} fails: {describe_error(error)}") from error
    if not isinstance(reader, Reader):
        raise SettingsError(f"the format {name!r} of {point.dist.name} is a {type(reader).__name__}; expected a Reader")
    return reader


def find_reader(name: str | None, source: Path) -> Reader:
    """The reader of this name, or that of our own files; refuses unknown names and endings, and absent files."""
    reader = OWN if name is None else load_reader(name)
    if reader is OWN:
        if source.suffix == ".eval":
            raise DataError(f"{source} looks like a log of Inspect; read it with: tinyzero score --format inspect")
        if source.suffix or source.exists():
            check_ending(source, READ_ENDINGS)
        if source.is_dir():
            known = ", ".join([*READERS, *INSTALLABLE])
            raise DataError(f"{source} is a directory; expected a file, or one of --format {known}")
    if not source.exists():
        raise DataError(f"{source} does not exist; expected a file")
    return reader
