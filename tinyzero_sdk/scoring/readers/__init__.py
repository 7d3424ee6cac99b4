"""Readers of other tools' outputs, by name. Each yields blocks of rows with `completion` and `ground_truth`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tinyzero_sdk.data.files import READ_ENDINGS, check_ending, read_blocks
from tinyzero_sdk.data.table import Block
from tinyzero_sdk.errors import DataError, SettingsError, did_you_mean
from tinyzero_sdk.scoring.readers import hf, inspect_logs, lm_eval, verl


@dataclass(frozen=True, slots=True)
class Reader:
    """A format of outputs, by its name for `--format`."""

    name: str
    read: Callable[[Path], Iterator[Block]]  # yields the blocks of a file or folder, or raises DataError
    is_typed: Callable[[Path], bool]  # whether the blocks of this file have typed columns, and not JSON objects


OWN = Reader(
    name="rows",  # .jsonl, .csv or .parquet with `completion` and `ground_truth`
    read=read_blocks,
    is_typed=lambda path: path.suffix == ".parquet",
)

READERS = {
    reader.name: reader
    for reader in (
        OWN,
        Reader("verl", verl.read, lambda path: False),
        Reader("lm-eval", lm_eval.read, lambda path: False),
        Reader("inspect", inspect_logs.read, lambda path: False),
        Reader("hf", hf.read, lambda path: True),
    )
}


def find_reader(name: str | None, source: Path) -> Reader:
    """The reader of this name, or that of our own files; refuses unknown names and endings, and absent files."""
    if name is not None and name not in READERS:
        raise SettingsError(f"no format {name!r}; {did_you_mean(name, READERS)}known: {', '.join(READERS)}")
    reader = READERS[name or OWN.name]
    if reader is OWN:
        if source.suffix == ".eval":
            raise DataError(f"{source} looks like a log of Inspect; read it with: tinyzero score --format inspect")
        if source.suffix or source.exists():
            check_ending(source, READ_ENDINGS)
        if source.is_dir():
            raise DataError(f"{source} is a directory; expected a file, or one of --format {', '.join(READERS)}")
    if not source.exists():
        raise DataError(f"{source} does not exist; expected a file")
    return reader
