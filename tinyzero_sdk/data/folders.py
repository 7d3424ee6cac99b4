"""Folders of data: which of their files belong to which split, whether `datasets`, the Hub or a user made them.

Reads names and the lists of `save_to_disk` alone; the rows are read elsewhere.
"""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tinyzero_sdk.errors import DataError

TABLES = ("*.parquet", "*.arrow")
_SPLITS = ("train", "test", "validation", "valid", "val", "dev")


def split_files(path: Path, patterns: Sequence[str] = (*TABLES, "*.jsonl")) -> dict[str, list[Path]]:
    """The files of each split, in the order of their rows; all under "" if they are not divided.

    Raises:
        DataError: the folder has no such files, or a list of `save_to_disk` is damaged.
    """
    if (path / "dataset_dict.json").is_file():
        splits = _read_list(path / "dataset_dict.json", "splits", lambda name: name)
        return {split: saved_files(path / split) for split in splits}
    if (path / "state.json").is_file():
        return {"": saved_files(path)}
    files = files_of(path, *patterns)
    names = list(dict.fromkeys(map(_split_of, files)))
    if None in names and len(names) <= 2:
        return {"": files}
    return {name or "": [file for file in files if _split_of(file) == name] for name in names}


def files_of(path: Path, *patterns: str) -> list[Path]:
    """A file, or the files of a folder in the order of the numbers in their names.

    Raises:
        DataError: the folder has no such file.
    """
    if not path.is_dir():
        return [path]
    files = {file for pattern in patterns for file in path.glob(pattern)}
    if not files:
        raise DataError(f"the folder {path} has no file like {' or '.join(patterns)}; name the file, or its folder")
    return sorted(files, key=_natural)


def saved_files(path: Path) -> list[Path]:
    """The Arrow files that `Dataset.save_to_disk` wrote, in the order of their rows."""
    return [path / name for name in _read_list(path / "state.json", "_data_files", lambda entry: entry["filename"])]


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(word), "") if word.isdigit() else (-1, word) for word in re.split(r"([0-9]+)", path.name)]


def _split_of(file: Path) -> str | None:
    """The split in a file's name, as in `train-00000-of-00002.parquet`, `train.jsonl` or `gsm8k-train.arrow`."""
    shard = re.match(r"(.+?)-\d+-of-\d+", file.name)
    words = re.split(r"[^a-z]+", shard[1] if shard else file.stem)
    return next((word for word in (words[0], words[-1]) if word in _SPLITS), shard[1] if shard else None)


def _read_list(path: Path, key: str, name_of: Callable[[Any], Any]) -> list[str]:
    """The names that a file of `save_to_disk` lists under a key; at least one."""
    try:
        names = [name_of(entry) for entry in json.loads(path.read_text(encoding="utf-8"))[key]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a file of save_to_disk ({type(error).__name__}: {error})") from error
    if not names or not all(isinstance(name, str) for name in names):
        raise DataError(f"{path} names no files under {key!r}; expected a list of names, as save_to_disk writes")
    return names
